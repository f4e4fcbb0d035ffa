"""Shards: together they have each row of the whole replica once, and none says that a row isn't there which another has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.replica.replica import MEMORY
from millpond.schema.definition.table import parse_definition
from millpond.schema.shard import parse_shard
from millpond.settings import Retention
from servers.shard_jobs import answer_or_condition
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import CELLS
from suite.sizes import a_few

CELLS_OF_NOW = [cell for cell in CELLS if "/" not in cell or cell.startswith("spark-4.3")]
KEPT = a_few([(cell, ("lmdb", "memory")[n % 2]) for n, cell in enumerate(CELLS_OF_NOW)], 5)
ALL = Retention(closed_seconds=None, history_batches=100)


@pytest.mark.parametrize(("cell", "kept_in"), KEPT)
def test_shards_have_each_row_once_at_every_batch(golden: Callable[[str], Any], tmp_path: Path, cell: str, kept_in: str) -> None:
    copy, draw = golden(cell), random.Random(cell)
    if (copy.source / "definition.json").exists():
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    copy.uncommit()
    copy.commit(0)
    home = tmp_path / "home" if kept_in == "lmdb" else MEMORY
    shards = drawn_shards(draw)
    with ExitStack() as opened:
        whole = opened.enter_context(millpond.open(copy.checkpoint, replica_dir=home, retention=ALL))
        parts = [
            opened.enter_context(millpond.open(copy.checkpoint, replica_dir=home, retention=ALL, shard=text)) for text in shards
        ]
        rows = 0
        for batch in range(copy.last + 1):
            if batch:
                copy.commit(batch)
            for pond in (whole, *parts):
                pond.catch_up(60)
            for name in whole.tables():
                rows += compare(whole[name], [part[name] for part in parts], draw)
        assert rows or "ttl" in cell  # all have expired by now


def drawn_shards(draw: random.Random) -> list[str]:
    """Shards that have each of up to five partitions once."""
    if draw.random() < 0.5:
        count = draw.randrange(1, 5)
        return [f"{number + 1}/{count}" for number in range(count)]
    numbers = draw.sample(range(5), 5)
    cuts = sorted(draw.sample(range(1, 5), draw.randrange(0, 3)))
    return [",".join(map(str, numbers[a:b])) for a, b in zip([0, *cuts], [*cuts, 5], strict=True)]


def compare(whole: millpond.Table, parts: list[millpond.Table], draw: random.Random) -> int:
    """How many rows the whole table has, after a comparison with its shards."""
    names = [column.name for column in whole.definition.key]
    expected = list(whole.scan())
    scans = [list(part.scan(bounds=part.here)) for part in parts]
    assert sorted(map(repr, expected)) == sorted(repr(row) for scan in scans for row in scan)
    for scan in scans:  # each in the order of the whole
        order = iter(map(repr, expected))
        assert all(repr(row) in order for row in scan)
    assert whole.count() == sum(part.count(bounds=part.here) for part in parts)
    if expected:
        assert_pages(parts, scans, draw)
    asked = [{name: row[name] for name in names} for row in draw.sample(expected, min(20, len(expected)))]
    asked += mixed(asked, draw)
    for key in asked:
        there = whole.get(key)
        try:
            answers = [answer for part in parts if (answer := owned(part, key)) is not None]
        except RequestError as error:  # of pandas: it may lie anywhere
            assert (error.condition, None in key.values(), whole.name.count("transform")) == ("ONLY_A_SHARD", True, 2)
            found = [part.get(key, bounds=part.here) for part in parts]
            assert [row for row in found if row] == ([there] if there else [])
            continue
        assert len(answers) == 1, (whole.name, key)
        assert (answers[0], answers[0].evicted, answers[0].changed_batch) == (there, there.evicted, there.changed_batch)
    if asked and len(parts) > 1:
        for read in (lambda: parts[0].scan(), lambda: parts[0].count(), lambda: parts[0].changes(0), lambda: parts[0].to_arrow()):
            assert condition_of(read) == "ONLY_A_SHARD"
    try:
        changes = [repr(change) for change in whole.changes(0)]
        assert sorted(changes) == sorted(repr(change) for part in parts for change in part.changes(0, bounds=part.here))
    except ReplicaError as error:  # built again: other variables, or other partitions, whose rows may be another shard's
        assert error.condition == "HISTORY_GONE"
        assert any(word in whole.job for word in ("evolution", "variables", "repartitioned"))
    return len(expected)


def assert_pages(parts: list[millpond.Table], scans: list[list[Any]], draw: random.Random) -> None:
    """Pages of a shard's scan have the same rows."""
    number = draw.randrange(len(parts))
    part, found = parts[number], []
    page = part.scan(limit=2, bounds=part.here)
    found += page
    while page.token is not None:
        page = part.scan(limit=2, token=page.token)
        found += page
    assert found == scans[number]


def mixed(keys: list[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    """Keys whose columns come from several of these; most have no row."""
    return [{name: draw.choice(keys)[name] for name in keys[0]} for _ in range(10)] if keys else []


def owned(part: millpond.Table, key: dict[str, Any]) -> millpond.Row | None:
    """The row of a key; None if another shard has its partition."""
    try:
        return part.get(key)
    except RequestError as error:
        if error.condition != "OTHER_SHARD":
            raise
        return None


def condition_of(read: Callable[[], Any]) -> str:
    """The condition of the error that a read raises."""
    with pytest.raises(MillpondError) as refused:
        read()
    return refused.value.condition


# ---------------------------------------------------------------- what shards are


@pytest.mark.parametrize(
    ("text", "becomes", "of_five"),
    [
        ("1/3", "1/3", (0,)),
        ("2/3", "2/3", (1, 2)),
        ("3/3", "3/3", (3, 4)),
        ("1/1", "1/1", (0, 1, 2, 3, 4)),
        ("7/9", "7/9", ()),
        ("0-2", "0-2", (0, 1, 2)),
        ("3,0-1,2", "0-3", (0, 1, 2, 3)),
        ("4", "4", (4,)),
        ("7-9", "7-9", ()),
        ("2-9,0", "0,2-9", (0, 2, 3, 4)),
    ],
)
def test_a_shard_by_its_text(text: str, becomes: str, of_five: tuple[int, ...]) -> None:
    shard = parse_shard(text)
    assert (shard.text, shard.partitions(5)) == (becomes, of_five)
    assert [p for p in range(5) if shard.has(p, 5)] == list(of_five)
    assert parse_shard(shard.text) == shard


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("partitions", [0, 1, 2, 5, 7, 200])
def test_shares_have_each_partition_once(count: int, partitions: int) -> None:
    shares = [parse_shard(f"{number}/{count}").partitions(partitions) for number in range(1, count + 1)]
    assert sorted(p for share in shares for p in share) == list(range(partitions))


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1/0", "a", "1-", "3-1", "1/2/3", "-1", "1,,2", " 1", "1-9999999", "²"])
def test_what_is_no_shard_is_refused(text: str, tmp_path: Path) -> None:
    assert condition_of(lambda: parse_shard(text)) == "INVALID_REQUEST"
    assert condition_of(lambda: millpond.open(tmp_path, shard=text)) == "INVALID_REQUEST"
    assert condition_of(lambda: millpond.Bounds(shard=text)) == "INVALID_BOUND"


# ---------------------------------------------------------------- one shard


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([(f"k{n}", n) for n in range(20)], snapshot=False)
    job.commit()
    return job


@pytest.fixture
def half(job: WrittenCheckpoint, tmp_path: Path) -> Iterator[millpond.Table]:
    with millpond.open(job.path, replica_dir=tmp_path / "home", shard="1/2") as pond:
        yield pond[f"{job.path.name}.aggregate_0"]


def test_the_bound_must_name_the_shard_that_is_there(half: millpond.Table, job: WrittenCheckpoint, tmp_path: Path) -> None:
    assert half.shard == "1/2"
    assert condition_of(lambda: half.scan(bounds=millpond.Bounds(shard="2/2"))) == "OTHER_SHARD"
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        whole = pond[half.name]
        assert (whole.shard, whole.here) == (None, None)
        assert condition_of(lambda: whole.scan(bounds=half.here)) == "OTHER_SHARD"
        assert condition_of(lambda: whole.get(k="k1", bounds=half.here)) == "OTHER_SHARD"
        assert len(half.scan(bounds=half.here)) < len(whole.scan()) == 20


@pytest.mark.parametrize("kept_in", ["disk", MEMORY])
def test_a_key_is_found_or_lies_elsewhere_however_often_it_is_asked_for(kept_in: str, tmp_path: Path) -> None:
    """Compiled code reads a row that is there; only Python tells whether one that isn't lies in another shard."""
    job, draw, name = WrittenCheckpoint(tmp_path / "job", partitions=5), random.Random(3), "job.aggregate_0"
    job.plan([((f"k{n}",), n) for n in range(20)], snapshot=False)
    job.commit()
    home, content = MEMORY if kept_in == MEMORY else tmp_path / "home", job.content()
    keys = [*content, *((f"nobody{n}",) for n in range(20))]
    with (
        millpond.open(job.path, replica_dir=home, shard="1/2") as one,
        millpond.open(job.path, replica_dir=home, shard="2/2") as other,
    ):
        seen = Counter[bool]()
        for key in draw.choices(keys, k=400):
            answers = [answer_or_condition(lambda pond=pond, key=key: pond[name].get(*key)) for pond in (one, other)]
            assert answers.count("OTHER_SHARD") == 1, key
            (row,) = (answer for answer in answers if answer != "OTHER_SHARD")
            assert row == ({"k": key[0], "v": content[key]} if key in content else {}), key
            seen[bool(row)] += 1
    assert min(seen.values()) > 50


def test_sql_of_a_shard_is_refused(half: millpond.Table, job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home", shard="1/2") as pond:
        assert condition_of(lambda: pond.sql(f'SELECT count(*) FROM "{half.name}"')) == "ONLY_A_SHARD"


def test_a_shard_has_a_folder_of_its_own_and_goes_on_in_it(job: WrittenCheckpoint, tmp_path: Path) -> None:
    name = f"{job.path.name}.aggregate_0"
    for _ in range(2):
        with (
            millpond.open(job.path, replica_dir=tmp_path / "home", shard="0") as first,
            millpond.open(job.path, replica_dir=tmp_path / "home", shard="1") as second,
        ):
            assert sum(pond[name].count(bounds=pond[name].here) for pond in (first, second)) == 20
            built = [next(iter(pond.statistics().values()))["bootstraps"] for pond in (first, second)]
        job.plan([("k1", 7)], snapshot=False)
        job.commit()
    assert built == [0, 0]
    assert len(list((tmp_path / "home" / "replicas").iterdir())) == 2


def test_a_cut_says_which_rows_are_there(half: millpond.Table) -> None:
    cut = half.cut(bounds=half.here)
    assert (cut.state.shard, cut.state.partitions, cut.state.hashed) == ("1/2", 2, 1)
    then = half.at(cut=cut.token)
    assert list(then.scan(bounds=half.here)) == list(half.scan(bounds=half.here))
    assert condition_of(then.scan) == "ONLY_A_SHARD"
    assert condition_of(lambda: half.cut(bounds=millpond.Bounds(shard="2/2"))) == "OTHER_SHARD"

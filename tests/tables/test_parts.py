"""A table in parts reads like a table without parts: the same job gives the same answers both ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside, open_jobs
from millpond.checkpoint.rows.unsaferow import encoder
from millpond.errors import MillpondError
from millpond.replica.keys.codec import KeyCodec
from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.definition.parts import Parts
from millpond.schema.definition.table import TableDefinition, ValueColumn, key_columns, parse_definition
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, atomic, struct_of
from millpond.tables.cold.report import inspect_job
from millpond.tables.finish.merge_rows import store_parts
from spark_files.checkpoint import VALUE, WrittenCheckpoint
from suite.sizes import IS_LONG

LONG = atomic("long")
PART = Field("shard", atomic("integer"))
PARTS = (-4, 0, 3)
SECOND = 1_000_000
WINDOW = struct_of((Field("start", atomic("timestamp")), Field("end", atomic("timestamp"))))
# Long keys are cut and hashed; with a part's bytes in front, slightly shorter keys are, too.
LONG_TEXTS = ["z" * n + end for n in (485, 488, 490, 495, 500, 503, 504, 505, 506, 508, 510, 520) for end in ("", "a", "b")]
TEXTS = ["", "a", "b", "a\0", "ab", "\xff", "ü", *LONG_TEXTS]
KEYS: dict[str, tuple[tuple[Field, ...], Callable[[Random], tuple[Any, ...]]]] = {
    "text": ((Field("k", atomic("string")),), lambda r: (r.choice([None, *TEXTS]),)),
    "long texts": ((Field("k", atomic("string")),), lambda r: (r.choice(LONG_TEXTS),)),
    "window, text": (
        (Field("window", WINDOW, window=True), Field("k", atomic("string"))),
        lambda r: ((t := r.randrange(5) * 5 * SECOND, t + 5 * SECOND), r.choice(TEXTS[:9])),
    ),
    "nothing": ((), lambda _: ()),
}
SUM = (Expression("aggregate", LONG, options={"function": "sum", "buffers": [0], "mode": "ansi"}),)
HOW = ("copies", "shares", "shares that go")
Kept = millpond.Retention(history_batches=None)


def definition(key: tuple[Field, ...], parts: Parts | None) -> TableDefinition:
    """The table `t` of a written checkpoint."""
    whole = TableDefinition(
        table="t",
        operator=0,
        key=key_columns(key if parts is None else (PART, *key)),
        values=(ValueColumn("v", LONG, buffer_column(0, LONG)),),
        key_schema=key if parts is None else (PART, *key),
        value_schema=VALUE,
    )
    return whole if parts is None else whole.over_parts(parts)


def written(path: Path, key: tuple[Field, ...], parts: Parts | None, **more: Any) -> WrittenCheckpoint:
    job = WrittenCheckpoint(path, key=key if parts is None else (PART, *key), **more)
    create_beside(str(path)).write_definition(definition(key, parts))
    return job


def shares(values: tuple[int, ...] = PARTS) -> Parts:
    return Parts(column=PART, values=values, merges=SUM)


def copies(values: tuple[int, ...] = PARTS) -> Parts:
    return Parts(column=PART, values=values, merges=None)


class Twins:
    """Two jobs with the same content.  In one of them keys lie in parts, and a key's value is the sum of its shares."""

    def __init__(self, path: Path, kind: str, seed: int, how: Parts, *, shares_go: bool) -> None:
        self.key, self.draw = KEYS[kind]
        self.random, self.how, self.shares_go = Random(f"{kind} {seed}"), how, shares_go
        self.in_parts = written(path / "parts", self.key, how)
        self.whole = written(path / "whole", self.key, None)
        self.shares: dict[tuple[Any, ...], dict[int, int]] = {}

    def commit(self) -> None:
        random, changed = self.random, []
        for key in {self.draw(random) for _ in range(random.randrange(1, 12))}:
            shares = self.shares.setdefault(key, {})
            if self.how.merges is None:
                # One batch writes all copies.
                value = random.choice([None, random.randrange(100)])
                shares_of = dict.fromkeys(PARTS, value)
            else:
                some = random.sample(PARTS, random.randint(1, len(PARTS)))
                shares_of = {part: shares.get(part, 0) + random.randrange(1, 100) for part in some}
                if self.shares_go:
                    shares_of |= dict.fromkeys(random.sample(PARTS, random.randint(0, len(PARTS))))
                elif random.random() < 0.3:
                    shares_of = dict.fromkeys(PARTS)
            for part, value in shares_of.items():
                changed.append(((part, *key), value))
                if value is None:
                    shares.pop(part, None)
                else:
                    shares[part] = value
        random.shuffle(changed)
        self.in_parts.plan(changed, snapshot=random.random() < 0.2)
        keys = {key[1:] for key, _ in changed}
        self.whole.plan([(key, self.merged(key)) for key in keys], snapshot=False)
        self.in_parts.commit()
        self.whole.commit()

    def merged(self, key: tuple[Any, ...]) -> int | None:
        found = list(self.shares[key].values())
        return None if not found else found[0] if self.how.merges is None else sum(found)


@pytest.fixture(
    params=[(kind, how, seed) for kind in KEYS for how in HOW for seed in range(2 if IS_LONG and kind != "nothing" else 1)], ids=str
)
def twins(request: pytest.FixtureRequest, tmp_path: Path) -> Twins:
    kind, how, seed = request.param
    made = Twins(tmp_path, kind, seed, copies() if how == "copies" else shares(), shares_go=how == "shares that go")
    for _ in range(4):
        made.commit()
    return made


@pytest.fixture
def both(twins: Twins, tmp_path: Path) -> Iterator[tuple[millpond.Pond, millpond.Pond]]:
    with (
        millpond.open(twins.in_parts.path, replica_dir=tmp_path / "home", retention=Kept) as parts,
        millpond.open(twins.whole.path, replica_dir=tmp_path / "home", retention=Kept) as whole,
    ):
        yield parts, whole


@pytest.fixture
def rows(twins: Twins) -> Callable[[list[Any]], list[Any]]:
    """The rows without the batch of the last change, since nobody knows which batch removed a share."""
    return (lambda found: [(*row.items(), row.final) for row in found]) if twins.shares_go else stamped


def stamped(found: list[Any]) -> list[Any]:
    return [(*row.items(), row.changed_batch, row.final) for row in found]


def pages(table: millpond.Table, **how: Any) -> list[Any]:
    page = table.scan(limit=3, **how)
    found = [*page]
    while page.token is not None:
        page = table.scan(limit=3, token=page.token, **how)
        found += page
    return found


def versions(found: list[Any]) -> list[tuple[Any, ...]]:
    return [(v.row, v.batch, v.until_batch) for v in found]


def test_every_read_is_that_of_the_job_without_parts(
    twins: Twins, both: tuple[millpond.Pond, millpond.Pond], rows: Callable[[list[Any]], list[Any]]
) -> None:
    in_parts, whole = (pond["t"] for pond in both)
    began = twins.in_parts.next_batch - 1
    for _ in range(3):
        twins.commit()
        for pond in both:
            pond.catch_up()
        assert in_parts.columns == whole.columns
        assert rows(in_parts.scan()) == rows(whole.scan())
        assert rows(in_parts.scan(reverse=True)) == rows(whole.scan(reverse=True))
        assert rows(pages(in_parts)) == rows(whole.scan())
        assert rows(pages(in_parts, reverse=True)) == rows(whole.scan(reverse=True))
        assert in_parts.count() == whole.count()
        for row in whole.scan():
            key = {name: row[name] for name in whole.key_order}
            assert rows([in_parts.get(key)]) == rows([whole.get(key)])
            first = {whole.key_order[0]: key[whole.key_order[0]]} if whole.key_order else {}
            assert rows(in_parts.scan(first)) == rows(whole.scan(first))
            if first and None not in first.values():
                assert rows(in_parts.range(start=first)) == rows(whole.range(start=first))
                assert rows(in_parts.range(end=first, reverse=True)) == rows(whole.range(end=first, reverse=True))
        assert in_parts.to_arrow().to_pylist() == whole.to_arrow().to_pylist()
        for batch in range(began, in_parts.scan().batch):
            assert rows(in_parts.at(batch=batch).scan()) == rows(whole.at(batch=batch).scan())
            assert in_parts.at(batch=batch).count() == whole.at(batch=batch).count()
    by_table = [[(c.kind, c.batch, c.old, c.new, c.final) for c in table.changes(began)] for table in (in_parts, whole)]
    assert by_table[0] == by_table[1]
    assert versions(in_parts.history()) == versions(whole.history())


def test_changes_go_on_within_a_batch_without_loss_or_repetition(twins: Twins, both: tuple[millpond.Pond, millpond.Pond]) -> None:
    table, began = both[0]["t"], twins.in_parts.next_batch - 1
    for _ in range(3):
        twins.commit()
    both[0].catch_up()
    found, page = [], table.changes(began, limit=2)
    found += page
    while page.more:
        page = table.changes(page.token, limit=2)
        found += page
    assert found == table.changes(began)


def test_changes_as_of_a_batch_end_with_it(twins: Twins, both: tuple[millpond.Pond, millpond.Pond]) -> None:
    began = twins.in_parts.next_batch - 1
    for _ in range(4):
        twins.commit()
    for pond in both:
        pond.catch_up()
        table = pond["t"]
        newest = table.changes(began)
        page = table.changes(began, limit=2)
        for batch in range(began, newest.batch + 1):
            earlier = table.at(batch=batch)
            assert earlier.changes(began) == [change for change in newest if change.batch <= batch]
            for since in range(began, batch + 1):
                asked = earlier.changes(since)
                assert asked == [change for change in newest if since < change.batch <= batch]
                assert (asked.batch, asked.more) == (batch, False)
                assert asked + table.changes(asked.token) == table.changes(since)
            for since in [*range(batch + 1, newest.batch + 1)]:
                assert condition(lambda earlier=earlier, since=since: earlier.changes(since)).condition == "NOT_UP_TO_BOUND"
        found = list(page)
        while page.more:  # a token in the middle of a batch, and states that have and haven't got there
            there = found[-1].batch
            if there > began + 1:
                before = table.at(batch=there - 1)
                assert condition(lambda token=page.token, before=before: before.changes(token)).condition == "NOT_UP_TO_BOUND"
            assert found + table.at(batch=there).changes(page.token) == [change for change in newest if change.batch <= there]
            page = table.changes(page.token, limit=2)
            found += page
        assert found == newest


def test_a_read_without_a_replica_is_the_same(twins: Twins, both: tuple[millpond.Pond, millpond.Pond]) -> None:
    expected = both[1]["t"].scan()
    found = millpond.read_arrow(twins.in_parts.path, "t").to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, both[1]["t"].to_arrow().to_pylist()))
    for row in expected:
        key = {name: row[name] for name in both[1]["t"].key_order}
        assert millpond.read_row(twins.in_parts.path, "t", key) == row


def test_windows_that_expired_are_merged_and_final(tmp_path: Path) -> None:
    key, _ = KEYS["window, text"]
    jobs = [written(tmp_path / "parts", key, shares(), watermarked=True, watermarked_column=1)]
    jobs.append(written(tmp_path / "whole", key, None, watermarked=True))
    first, second = ((t * SECOND, (t + 5) * SECOND) for t in (0, 5))
    batches: list[tuple[int, dict[tuple[Any, ...], int | None], dict[tuple[Any, ...], int | None]]] = [
        (0, {(0, first, "a"): 1, (3, first, "a"): 2, (3, second, "a"): 5}, {(first, "a"): 3, (second, "a"): 5}),
        (6000, {(-4, first, "a"): 10}, {(first, "a"): 13}),
        (6000, dict.fromkeys([(p, first, "a") for p in PARTS]), {(first, "a"): None}),
        (6000, {(0, second, "a"): 1}, {(second, "a"): 6}),
    ]
    with (
        millpond.open(jobs[0].path, replica_dir=tmp_path / "home", wait_seconds=0, retention=Kept) as parts,
        millpond.open(jobs[1].path, replica_dir=tmp_path / "home", wait_seconds=0, retention=Kept) as whole,
    ):
        for watermark_ms, *changes in batches:
            for job, changed in zip(jobs, changes, strict=True):
                job.watermark_ms = watermark_ms
                job.plan(list(changed.items()), snapshot=False)
                job.commit()
            tables = []
            for pond in (parts, whole):
                pond.catch_up()
                tables.append(pond["t"])
            assert stamped(tables[0].scan()) == stamped(tables[1].scan())
            assert stamped(tables[0].windows(k="a", reverse=True)) == stamped(tables[1].windows(k="a", reverse=True))
            assert stamped(tables[0].live().scan()) == stamped(tables[1].live().scan())
            assert tables[0].count() == tables[1].count()
        final = tables[0].get(k="a", window_start="1970-01-01T00:00:00Z", window_end="1970-01-01T00:00:05Z")
        assert (final["v"], final.final, final.changed_batch) == (13, True, 2)
        missing = [t.get(k="b", window_start="1970-01-01T00:00:00Z", window_end="1970-01-01T00:00:05Z") for t in tables]
        assert [m.evicted for m in missing] == [missing[1].evicted] * 2
        by_table = [[(c.kind, c.batch, c.old, c.new, c.final) for c in t.changes(0)] for t in tables]
        assert by_table[0] == by_table[1]
        assert by_table[0][1][0] == "expire"


def commit(job: WrittenCheckpoint, **changes: dict[int, int | None]) -> None:
    """Commit a batch: key -> what each part gets."""
    job.plan([((part, key), value) for key, values in changes.items() for part, value in values.items()], snapshot=False)
    job.commit()


def condition(ask: Callable[[], Any]) -> MillpondError:
    with pytest.raises(MillpondError) as raised:
        ask()
    return raised.value


@pytest.mark.parametrize("other", [2, None], ids=["another value", "no row"])
def test_copies_that_differ_are_an_error_of_every_read_and_inspect_names_them(tmp_path: Path, other: int | None) -> None:
    job = written(tmp_path / "ck", KEYS["text"][0], copies())
    commit(job, a=dict.fromkeys(PARTS, 1), b={-4: 1, 0: 1} | ({} if other is None else {3: other}))
    with millpond.open(job.path, replica_dir="memory://", retention=Kept) as pond:
        table = pond["t"]
        assert table.get(k="a") == {"k": "a", "v": 1}
        found = [
            condition(ask)
            for ask in (lambda: table.get(k="b"), table.scan, lambda: table.scan(reverse=True), table.count, table.to_arrow)
        ]
    found += [
        condition(lambda: millpond.read_arrow(job.path, "t")),
        condition(lambda: millpond.read_row(job.path, "t", {"k": "b"})),
    ]
    assert {error.condition for error in found} == {"COPIES_DIFFER"}
    assert all("'b'" in error.message and "3: " in error.message for error in found)
    (folder,) = open_jobs(job.path)
    (unread,) = inspect_job(folder).unread
    assert unread.condition == "COPIES_DIFFER"
    assert "'b'" in unread.message
    commit(job, b=dict.fromkeys(PARTS, 7))
    assert inspect_job(folder).unread == ()


@pytest.mark.parametrize("foreign", [-9, 1, 9])
def test_rows_in_a_part_that_nobody_named_are_no_part_of_a_sum(tmp_path: Path, foreign: int) -> None:
    job = written(tmp_path / "ck", KEYS["text"][0], shares())
    commit(job, a={0: 1, foreign: 1}, b={0: 1})
    with millpond.open(job.path, replica_dir="memory://") as pond:
        table = pond["t"]
        found = [condition(ask) for ask in (lambda: table.get(k="b"), table.scan, table.count, table.to_arrow)]
        assert condition(lambda: table.scan(limit=1)).condition == "DEFINITION_MISMATCH"
    found.append(condition(lambda: millpond.read_arrow(job.path, "t")))
    assert {error.condition for error in found} == {"DEFINITION_MISMATCH"}


def test_a_definition_in_parts_survives_its_file(tmp_path: Path) -> None:
    for parts in (shares(), copies()):
        made = definition(KEYS["window, text"][0], parts)
        assert parse_definition(json.loads(json.dumps(made.to_json()))) == made
        assert made.fingerprint() != definition(KEYS["window, text"][0], None).fingerprint()
        assert made.fingerprint() != replace(made, parts=replace(parts, values=(0, 1))).fingerprint()


@pytest.mark.parametrize(
    "damage",
    [
        {"values": []},
        {"merges": [Expression("literal", LONG, options={"value": 1}).to_json()]},
        {"merges": [Expression("aggregate", LONG, options={"function": "sum", "buffers": [1]}).to_json()]},
        {"values": [1, 1]},
        {"values": ["1"]},
        {"column": {"name": "s", "type": "string"}},
        {"merges": [{"op": "?"}]},
    ],
    ids=str,
)
def test_damaged_parts_of_a_definition_are_refused(damage: dict[str, Any]) -> None:
    data = definition(KEYS["text"][0], shares()).to_json()
    data["parts"] |= damage
    assert condition(lambda: parse_definition(data)).condition == "DEFINITION_MISMATCH"


def test_columns_without_a_function_are_refused_when_they_are_read(tmp_path: Path) -> None:
    job = written(tmp_path / "ck", KEYS["text"][0], replace(shares(), merges=()))
    commit(job, a={0: 1})
    with millpond.open(job.path, replica_dir="memory://") as pond:
        assert condition(lambda: pond["t"].get(k="a")).condition == "DEFINITION_MISMATCH"


def test_sums_that_overflow_are_refused(tmp_path: Path) -> None:
    job = written(tmp_path / "ck", KEYS["text"][0], shares())
    commit(job, a={0: (1 << 63) - 1, 3: 1}, b={0: 5, 3: 6})
    with millpond.open(job.path, replica_dir="memory://") as pond:
        assert condition(lambda: pond["t"].get(k="a")).condition == "VALUE_OUT_OF_RANGE"
        assert condition(pond["t"].scan).condition == "VALUE_OUT_OF_RANGE"
        assert pond["t"].count() == 2
        assert pond["t"].get(k="b")["v"] == 11


JUNK: list[Any] = [None, True, -1, 3, 1 << 70, 1.5, "", "sum", "string", [], [0], {}, {"function": "avg"}]


def damaged(random: Random, value: Any) -> Any:
    """The same JSON with one member replaced, left out or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(sorted(value))
        if random.random() < 0.1:
            return {n: v for n, v in value.items() if n != name}
        return {**value, name: damaged(random, value[name])}
    if isinstance(value, list) and value and random.random() < 0.9:
        place = random.randrange(len(value))
        return [*value[:place], *random.choice([[], [value[place]] * 2, [damaged(random, value[place])]]), *value[place + 1 :]]
    return random.choice(JUNK)


def test_whatever_is_damaged_in_parts_is_an_error_of_ours_or_none(tmp_path: Path) -> None:
    key = KEYS["text"][0]
    schema = StoreSchema(
        operator=0, operator_name="stateStoreSave", store="default", index=0, key=(PART, *key), value=VALUE, single=False
    )
    rows = [encoder(VALUE)((n,)) for n in range(3)]
    whole, random, read = definition(key, shares()).to_json(), Random(7), 0
    for _ in range(3000):
        data = {**whole, "parts": damaged(random, whole["parts"])}
        try:
            parsed = parse_definition(data)
            parts = store_parts(parsed, schema)
            if parts is not None:
                count = len(parts.prefixes)
                parts.merge(KeyCodec(key).encode(("a",)), (rows * count)[:count])
                read += 1
        except MillpondError:
            continue
    assert read > 100

"""What a what-if says, held against the same really done: restored in that form, or rows recounted one by one."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import millpond
from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.files.records import DELETE, MERGE
from millpond.checkpoint.log import newest_committed, read_batch
from millpond.checkpoint.operators import read_each_operator, watermark_delays
from millpond.checkpoint.partition import partition_of
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.operate.what_if.answer import Figure, WhatIf
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, atomic
from millpond.storage import open_storage
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import GOLDEN
from suite.sizes import a_few, examples

# Names of SSTs are drawn, so that a zip which lists them may differ by some bytes.
ZIP_BYTES = 40
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("counts-hdfs", {"partitions": 5}),
    ("counts-hdfs", {"partitions": 1, "codec": "zstd"}),
    ("counts-hdfs", {"provider": "rocksdb"}),
    ("counts-hdfs-zstd", {"codec": "snappy"}),
    ("counts-rocksdb-changelog", {"provider": "hdfs", "codec": "zstd", "partitions": 3}),
    ("counts-rocksdb-format2", {"partitions": 7}),
    ("windows-rocksdb-changelog", {"codec": "zstd"}),
    ("spark-4.3/join-inner-hdfs", {"partitions": 3}),
    ("spark-4.3/join-full-rocksdb-changelog", {"provider": "hdfs"}),
    ("spark-4.3/transform-ttl-rocksdb-changelog", {"partitions": 4}),
    ("spark-4.3/chained-hdfs", {"partitions": 4, "provider": "rocksdb"}),
]


def figure(found: WhatIf, what: str) -> Figure:
    (only,) = (each for each in found.figures if each.what == what)
    return only


def state_files(checkpoint: Path) -> tuple[dict[int, Counter[int]], int]:
    """Operator -> partition -> bytes of its state files; and how many of them are zips."""
    sizes: dict[int, Counter[int]] = {}
    zips = 0
    for file in (checkpoint / "state").rglob("*"):
        place = file.relative_to(checkpoint / "state").parts
        if file.is_file() and not any(part[0] in "_." for part in place):
            sizes.setdefault(int(place[0]), Counter())[int(place[1])] += file.stat().st_size
            zips += file.suffix == ".zip"
    return sizes, zips


@pytest.mark.parametrize(("cell", "form"), a_few(FORMS, 4))
def test_sizes_are_those_of_the_state_really_restored_so(cell: str, form: dict[str, Any], tmp_path: Path) -> None:
    source = shutil.copytree(GOLDEN / cell / "checkpoint", tmp_path / "checkpoint")
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    found = millpond.what_if(source, **form)
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before

    plan_savepoint(source, "as-it-is").run()
    plan_restore(source, "as-it-is", tmp_path / "restored", **form).run()
    sizes, zips = state_files(tmp_path / "restored")
    assert {each.operator for each in found.partitions} == sizes.keys()
    for each in found.partitions:
        mine = [sizes[each.operator][number] for number in sorted(sizes[each.operator])]
        assert len(each.then_bytes) == len(mine)
        assert all(abs(a - b) <= (ZIP_BYTES * 4 if zips else 0) for a, b in zip(each.then_bytes, mine, strict=True))
        assert sum(each.now_rows) == sum(each.then_rows)
    total = sum(each.total() for each in sizes.values())
    then = figure(found, "state as snapshots").then
    assert (then.known, abs(then.value - total) <= zips * ZIP_BYTES) == ("measured", True)
    rows = figure(found, "rows")
    assert rows.now.value == rows.then.value == sum(sum(each.then_rows) for each in found.partitions) > 0
    assert figure(found, "all state files").then.known == "estimate"
    is_in_order = "rocksdb" in cell and form.get("provider") == "hdfs"
    assert any("in key order" in sentence for sentence in found.unknown) == is_in_order


def random_job(place: Path, draw: random.Random, rows: int, partitions: int) -> WrittenCheckpoint:
    key = (Field("k", atomic("string")), Field("n", atomic("long")))
    job = WrittenCheckpoint(place, key=key, partitions=partitions)
    for batch in range(draw.randrange(1, 6)):
        changes = []
        for _ in range(rows):
            name = "x" * draw.randrange(30) + str(draw.randrange(rows))
            changes.append(((name, draw.randrange(3)), None if draw.random() < 0.1 else draw.randrange(10**6)))
        job.plan(changes, snapshot=batch == 1)
        job.commit()
    return job


def test_rows_by_partition_are_the_hashes_of_the_keys(tmp_path: Path) -> None:
    """Of random states, to any number of partitions; each partition has the rows whose key Spark's hash puts there."""
    draw = random.Random(18)
    for number in range(examples(30, fewest=5)):
        job = random_job(tmp_path / str(number), draw, draw.choice([0, 5, 300]), draw.randrange(1, 6))
        after = draw.randrange(1, 12)
        found = millpond.what_if(job.path, partitions=after)
        there = [key for partition in job.state for key in partition]
        expected = Counter(partition_of(job.key, key, after) for key in there)
        (operator,) = found.partitions
        assert operator.then_rows == tuple(expected[partition] for partition in range(after))
        assert operator.now_rows == tuple(len(partition) for partition in job.state)
        assert figure(found, "files a batch").then.value == pytest.approx(
            figure(found, "files a batch").now.value * after / job.partitions
        )


@pytest.mark.long
def test_a_sample_says_so_and_has_the_truth_near(tmp_path: Path) -> None:
    """Of a larger state a part is read: what it says of all is within a tenth, and the range has it."""
    draw = random.Random(5)
    job = random_job(tmp_path / "job", draw, 2000, 12)
    whole = millpond.what_if(job.path, codec="zstd", most_bytes=1 << 30)
    size = sum(file.stat().st_size for file in (job.path / "state").rglob("*") if file.suffix in (".delta", ".snapshot"))
    found = millpond.what_if(job.path, codec="zstd", partitions=5, most_bytes=size // 4)
    for what in ("rows", "state as snapshots", "change files"):
        part, truth = figure(found, what), figure(whole, what)
        assert (part.then.known, truth.then.known) == ("sample", "measured")
        assert part.then.value == pytest.approx(truth.then.value, rel=0.1)
        assert part.now.value == pytest.approx(truth.now.value, rel=0.1)
        assert part.then.low is not None
        assert part.then.high is not None
        assert part.then.low <= part.then.value <= part.then.high
    assert "of 12 partitions" in figure(found, "rows").then.source
    assert found.partitions == ()
    assert any("Sizes of the new partitions" in sentence for sentence in found.unknown)


def newest_rows(checkpoint: Path, wanted: Callable[[StoreSchema], bool]) -> tuple[StoreSchema, dict[bytes, bytes]]:
    """A store, and its rows, read record by record; a list's elements with the size of each."""
    storage = open_storage(checkpoint)
    batch, reader = read_batch(storage, newest_committed(storage)), StateReader(storage)
    (store,) = filter(wanted, read_each_operator(storage, batch.batch)[0])
    rows: dict[bytes, bytes] = {}
    for partition in partitions_of(batch, store):
        for kind, key, value in reader.iter_state(batch, store, partition):
            if kind == DELETE:
                rows.pop(key, None)
            else:
                rows[key] = rows.get(key, b"") + value if kind == MERGE else value
    return store, rows


def expiries(checkpoint: Path, family: str) -> list[list[int]]:
    """The times of each key's elements, of one variable."""
    store, rows = newest_rows(checkpoint, lambda store: store.family == family)
    read = decoder(store.value)
    return [[read(row)[-1] for row in (iter_elements(value) if store.many else [value])] for value in rows.values()]


# The query's own TTLs, in seconds: make_operators.py.
TTLS = {"value": 86_400.0, "list": 4.0, "map": 3.0, "short": 2.5}


@pytest.mark.parametrize("cell", ["transform-ttl-rocksdb-changelog", "transform-ttl-avro-rocksdb-changelog"])
@pytest.mark.parametrize("seconds", a_few([3, 1, 4, 60, 86_400], 2))
def test_another_ttl_leaves_the_rows_whose_time_hasnt_come(cell: str, seconds: int) -> None:
    """The TTL that each variable has is found in the changes; each element expires that much earlier or later."""
    checkpoint = GOLDEN / "spark-4.3" / cell / "checkpoint"
    found = millpond.what_if(checkpoint, ttl=f"{seconds}s")
    storage = open_storage(checkpoint)
    batch = read_batch(storage, newest_committed(storage))
    stores, _ = read_each_operator(storage, batch.batch)
    there = left = 0
    for family, had in TTLS.items():
        for times in expiries(checkpoint, family):
            there += 1
            left += any(at - round(had * 1000) + seconds * 1000 > batch.started_ms for at in times)
    others = figure(found, "rows").now.value - there
    assert {store.family for store in stores if store.ttl} == TTLS.keys()
    assert figure(found, "rows").then.value == left + others
    assert figure(found, "rows").then.known == "measured"
    assert any("would have kept for longer" in sentence for sentence in found.unknown) == (seconds > 2.5)


@pytest.mark.parametrize("cell", ["windows-hdfs", "windows-rocksdb-changelog", "spark-4.3/dedupe-hdfs"])
@pytest.mark.parametrize("seconds", a_few([20, 1, 60, 110], 1))
def test_a_shorter_delay_leaves_what_ends_after_it(cell: str, seconds: int) -> None:
    checkpoint = GOLDEN / cell / "checkpoint"
    storage = open_storage(checkpoint)
    batch = read_batch(storage, newest_committed(storage))
    store, rows = newest_rows(checkpoint, lambda store: bool(store.watermarked))
    found = millpond.what_if(checkpoint, ttl=f"{seconds}s")
    (delay_ms,) = watermark_delays(storage, batch.batch)[store.operator]
    assert batch.watermark_ms is not None
    last = (batch.watermark_ms + delay_ms - seconds * 1000) * 1000
    read = decoder(store.key)
    times = [read(key)[store.watermarked[0]] for key in rows]
    left = sum((time[1] if isinstance(time, tuple) else time) > last for time in times)
    assert figure(found, "rows").then.value == left


def test_another_trigger_is_an_estimate(tmp_path: Path) -> None:
    """Batches of 4 s every 20 s: every minute there would be a third, every second none would wait."""
    job = WrittenCheckpoint(tmp_path / "job")
    for batch in range(30):
        job.clock += 19_999
        job.plan([("k", batch)], snapshot=False)
        job.commit(at=job.clock / 1000 + 4)
    for trigger, each, mean in (("1m", 60, 34), ("1s", 4, 6)):
        found = millpond.what_if(job.path, trigger=trigger, storage="s3-standard")
        batches = figure(found, "batches a month")
        assert batches.now.value == pytest.approx(730 * 3600 / 20, rel=1e-3)
        assert batches.then.value == pytest.approx(730 * 3600 / each, rel=1e-2)
        assert (batches.now.known, batches.then.known) == ("measured", "estimate")
        waits = figure(found, "from a record's arrival to its commit, mean")
        assert (waits.now.value, waits.then.value) == (pytest.approx(14, rel=0.1), pytest.approx(mean, rel=0.2))
        assert (found.cost_then.a_month < found.cost_now.a_month) == (trigger == "1m")
        assert any("Bytes under another trigger" in sentence for sentence in found.unknown)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("counts-hdfs", {}, "INVALID_REQUEST"),
    ("counts-hdfs", {"codec": "lzf"}, "INVALID_REQUEST"),
    ("counts-hdfs", {"codec": "gzip"}, "UNSUPPORTED"),
    ("counts-hdfs", {"provider": "redis"}, "UNSUPPORTED"),
    ("counts-hdfs", {"partitions": 0}, "UNSUPPORTED"),
    ("counts-hdfs", {"ttl": "7d"}, "UNSUPPORTED"),
    ("counts-hdfs", {"ttl": "soon"}, "INVALID_REQUEST"),
    ("counts-hdfs", {"trigger": "no"}, "INVALID_REQUEST"),
    ("counts-hdfs", {"trigger": "forever"}, "INVALID_REQUEST"),
    ("counts-hdfs", {"retention": {"": "30 days"}}, "INVALID_REQUEST"),
    ("counts-hdfs", {"retention": {"": "30 days"}, "ttl": "7d"}, "INVALID_REQUEST"),
    ("spark-4.3/transform-ttl-rocksdb-changelog", {"provider": "hdfs"}, "UNSUPPORTED"),
    ("spark-4.3/join-inner-hdfs", {"ttl": "7d"}, "UNSUPPORTED"),
]


@pytest.mark.parametrize(("cell", "asked", "condition"), WRONG)
def test_what_cant_be_asked_is_refused(cell: str, asked: dict[str, Any], condition: str) -> None:
    with pytest.raises(MillpondError) as caught:
        millpond.what_if(GOLDEN / cell / "checkpoint", **asked)
    assert caught.value.condition == condition
    assert caught.value.hint


def test_the_command(tmp_path: Path) -> None:
    job = random_job(tmp_path / "job", random.Random(2), 200, 3)

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["what-if", str(job.path), *words])

    done = run("--partitions", "2", "--codec", "zstd", "--trigger", "30s")
    assert done.exit_code == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    rows = str(sum(map(len, job.state)))
    assert lines[0][0].endswith(": 2 partitions, codec zstd; a batch every 30.0 s")
    assert ["rows", rows, rows, "", "measured", "the whole state, written"] in lines
    assert [line[0] for line in lines if line[0].startswith("0 (stateStoreSave)")] == [
        "0 (stateStoreSave), now", "0 (stateStoreSave), then",
    ]  # fmt: skip
    assert any(line[0] == "cost a month" for line in lines)
    done = run("--codec", "snappy", "--json", "--sample-mib", "0")
    assert json.loads(done.stdout)["change"] == "codec snappy"
    for words in ((), ("--retention", "=3"), ("--retention", ""), ("--codec", "lzf")):
        wrong = run(*words)
        assert (wrong.exit_code, "[INVALID_REQUEST]" in wrong.stderr) == (2, True), wrong.stderr

"""Rows wait in the state and come out once, unchanged: many at a time, or when their time is over."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections import Counter, defaultdict
from decimal import Decimal

import pytest

import millpond
from live_jobs.rocksdb_state import rocksdb
from millpond.errors import RequestError
from millpond.schema.shards import shard_values
from millpond.spark.buffered import buffered
from suite.waiting import wait_until

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

SCHEMA = (
    "n long, flag boolean, b byte, s short, i int, f float, d double, price decimal(20,5), text string, raw binary, "
    "day date, t timestamp, local timestamp_ntz"
)
# Berlin had this hour twice.
TWICE = dt.datetime(2025, 10, 26, 0, 30, 0, 123456, tzinfo=dt.UTC)
ROWS = [
    (
        2**63 - 1,
        True,
        -128,
        32767,
        -(2**31),
        1.5,
        0.1,
        Decimal("123456789012345.12345"),
        "☃\x00",
        b"\x00\xff",
        dt.date(1, 1, 1),
        TWICE,
    ),
    (2**53 + 1, False, 0, 0, 0, math.inf, -0.0, Decimal("-0.00001"), "", b"", dt.date(9999, 12, 31), TWICE + dt.timedelta(hours=1)),
    (None,) * 12,
    (-1, None, None, 1, None, None, math.nan, None, None, None, None, dt.datetime(1900, 1, 1, tzinfo=dt.UTC)),
    # The ends of Python's calendar, which programs use for "never".
    (1, *(None,) * 10, dt.datetime.min.replace(tzinfo=dt.UTC)),
    (2, *(None,) * 10, dt.datetime.max.replace(tzinfo=dt.UTC)),
]
ROWS = [(*row, None if row[-1] is None else row[-1].replace(tzinfo=None)) for row in ROWS]


def as_text(rows) -> list[str]:
    """Rows as texts, sorted: NaN is NaN, and types count; times in UTC."""
    return sorted(repr(tuple(map(_plain, row))) for row in rows)


def _plain(value):
    if isinstance(value, bytearray):
        return bytes(value)
    is_aware = isinstance(value, dt.datetime) and value.tzinfo is not None
    return value.astimezone(dt.UTC) if is_aware else value


@pytest.fixture
def on_rocksdb(spark):
    with rocksdb(spark):
        yield spark


def test_rows_come_out_as_they_were_and_are_shown_while_they_wait(on_rocksdb, tmp_path) -> None:
    from pyspark.sql import functions as F

    folder, pond, out = tmp_path / "in", tmp_path / "pond", []
    on_rocksdb.createDataFrame(ROWS, SCHEMA).coalesce(1).write.parquet(str(folder))
    frame = on_rocksdb.readStream.schema(SCHEMA).parquet(str(folder))

    def collect(batch, number):
        # Spark's own texts of times don't depend on this machine's clock.
        out.extend(batch.withColumn("t", F.unix_micros("t")).collect())

    waiting = buffered(frame, at_least=100, after_seconds=4, shards=2, partitions=2)
    options = {"trigger": "500 milliseconds", "output_mode": "append", "partitions": 2, "sink": collect}
    with millpond.start(waiting, table="rows", pond=pond, **options) as job:
        job.wait_for_batch(0, 120)
        with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
            table, fill = opened["rows_waiting"], opened["rows_fill"]
            shown, filled = table.scan(), fill.scan()
            if out == []:  # else the machine has stopped this test for longer than rows wait
                assert as_text([tuple(row.values())[2:] for row in shown]) == as_text(ROWS)
                assert sum(row["rows"] for row in filled) == len(ROWS)
            then = millpond.read_arrow(pond, "rows_waiting", batch=0).to_pylist()
            assert as_text([tuple(row.values())[2:] for row in then]) == as_text(ROWS)
            wait_until(lambda: not table.count(), "the release of all rows")
            assert {row["rows"] for row in fill.scan()} == {0}
    assert {row.release for row in out} == {1}
    micros = [
        (
            *row[:11],
            None if row[11] is None else (row[11] - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1),
            row[12],
        )
        for row in ROWS
    ]
    assert as_text([tuple(row)[2:] for row in out]) == as_text(micros)


@pytest.mark.long
def test_a_shard_lets_go_of_all_it_has_as_soon_as_there_are_enough(on_rocksdb, tmp_path) -> None:
    folder, releases = tmp_path / "in", defaultdict(list)
    numbers = on_rocksdb.range(0, 300).selectExpr("id AS n")
    for part in range(6):
        numbers.where(f"n % 6 = {part}").coalesce(1).write.mode("append").parquet(str(folder))

    def collect(batch, number):
        for row in batch.collect():
            releases[row.shard, row.release].append((number, row.n))

    frame = on_rocksdb.readStream.schema("n long").option("maxFilesPerTrigger", 1).parquet(str(folder))
    waiting = buffered(frame, at_least=40, after_seconds=1000, shards=2, partitions=2)
    options = {"trigger": "0 seconds", "output_mode": "append", "partitions": 2, "sink": collect}
    with millpond.start(waiting, table="rows", pond=tmp_path / "pond", **options) as job:
        job.wait_for_batch(6, 120)
    with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as opened:
        left = [row["n"] for row in opened["rows_waiting"].scan()]
        fill = {row["shard"]: row for row in opened["rows_fill"].scan()}
    assert sorted(left + [n for rows in releases.values() for _, n in rows]) == list(range(300))
    assert len({shard for shard, _ in releases}) == 2  # both shards have rows
    for (shard, _), rows in releases.items():
        assert len(rows) >= 40
        assert len({batch for batch, _ in rows}) == 1
        assert fill[shard]["rows"] < 40
    counts = Counter(shard for shard, _ in releases)
    assert {shard: row["releases"] for shard, row in fill.items()} == counts
    assert sorted(releases) == [(shard, number) for shard in sorted(counts) for number in range(1, counts[shard] + 1)]


@pytest.mark.long
def test_the_number_of_shards_may_change_while_rows_wait(on_rocksdb, tmp_path) -> None:
    folder, pond, out, done = tmp_path / "in", tmp_path / "pond", [], set()
    numbers = on_rocksdb.range(0, 40).selectExpr("id AS n")

    def start(shards):
        def collect(batch, number):
            if number not in done:  # a batch runs again if the job stopped before its commit
                out.extend((shards, *row) for row in batch.collect())
                done.add(number)

        frame = on_rocksdb.readStream.schema("n long").parquet(str(folder))
        waiting = buffered(frame, at_least=1000, after_seconds=20, shards=shards, partitions=4)
        options = {"trigger": "500 milliseconds", "output_mode": "append", "partitions": 4, "sink": collect}
        return millpond.start(waiting, table="rows", pond=pond, **options)

    for part, shards in enumerate((3, 1, 4, 2)):
        numbers.where(f"n % 4 = {part}").coalesce(1).write.mode("append").parquet(str(folder))
        with start(shards) as job:
            job.wait_for_batch(0, 120)
            with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
                wait_until(
                    lambda so_far=10 * part + 10, table=opened["rows_waiting"]: table.count() + len(out) >= so_far,
                    "all rows so far",
                )
            if shards == 2:
                wait_until(lambda: len(out) >= 40, "the release of all rows", seconds=120)
    assert sorted(n for _, _, _, n in out) == list(range(40))
    # These rows came out in a run with fewer shards, which hadn't theirs.
    assert any(shard not in shard_values(shards, 4) for shards, shard, _, _ in out)


def test_a_shard_by_itself() -> None:
    from pyspark.sql import Row
    from pyspark.sql.streaming.tws_tester import TwsTester
    from pyspark.sql.types import LongType, StructType

    from millpond.spark.buffered import _Buffer

    tester = TwsTester(_Buffer(StructType().add("n", LongType()), 3, 1000), timeMode="ProcessingTime")

    def see(*numbers):
        return [(row.release, row.n) for row in tester.test(5, [Row(n=n) for n in numbers])]

    tester.setProcessingTime(100)
    assert see(1, 2) == []
    assert tester.peekListState("waiting", 5) == [(1,), (2,)]
    assert tester.peekValueState("fill", 5) == (2, 1100, 0)
    assert see(3, 4) == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert tester.peekValueState("fill", 5) == (0, 0, 1)
    assert tester.setProcessingTime(1100) == []  # the time of the first row, which is gone
    assert see(5) == []
    assert tester.setProcessingTime(2099) == []
    assert [(row.release, row.n) for row in tester.setProcessingTime(2100)] == [(2, 5)]
    assert see(6, 7, 8, 9) == [(3, 6), (3, 7), (3, 8), (3, 9)]
    assert see(None) == []
    assert see(10) == []
    assert see(11) == [(4, None), (4, 10), (4, 11)]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"])
def test_times_are_the_same_whatever_zone_the_worker_is_in(monkeypatch, zone) -> None:
    """PySpark gives times of the state as local times, where an hour in autumn comes twice, and the calendar's ends don't exist."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.tws_tester import TwsTester
    from pyspark.sql.types import StructType, TimestampType

    from millpond.spark.buffered import _Buffer

    first, last = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)
    hour = dt.timedelta(hours=1)
    times = [TWICE, TWICE + hour, None, TWICE - 2000 * hour, first, first + 30 * hour, last - 30 * hour, last]
    schema = StructType().add("t", TimestampType())
    processor = _Buffer(schema, len(times) + 1, 1000)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        tester = TwsTester(processor, timeMode="ProcessingTime")
        kept = processor._waiting.get
        # Rows of a state go through the JVM as numbers, which PySpark turns into times.
        monkeypatch.setattr(processor._waiting, "get", lambda: (schema.fromInternal(schema.toInternal(row)) for row in kept()))
        tester.setProcessingTime(100)
        assert tester.test(5, [Row(t=t) for t in times]) == []
        shown = [row.t for row in tester.setProcessingTime(1100)]
        assert shown == times
        assert {t.utcoffset() for t in shown if t is not None} == {dt.timedelta(0)}
        # Other users of PySpark get what they got before.
        assert schema.fromInternal(schema.toInternal((TWICE,))) == (TWICE.astimezone().replace(tzinfo=None),)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("schema", "options", "condition"),
    [
        ("n long", {"at_least": 0}, "INVALID_REQUEST"),
        ("n long", {"at_least": True}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": 0}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": -1.0}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": math.nan}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": math.inf}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": "60"}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": None}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": True}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": 1e16}, "INVALID_REQUEST"),
        ("n long", {"after_seconds": 10**400}, "INVALID_REQUEST"),
        ("n long", {"shards": 0}, "INVALID_REQUEST"),
        ("n long", {"shards": 3, "partitions": 2}, "INVALID_REQUEST"),
        ("n long", {"partitions": "2"}, "INVALID_REQUEST"),
        ("shard long", {}, "INVALID_REQUEST"),
        ("Shard long", {}, "INVALID_REQUEST"),
        ("n long, RELEASE long", {}, "INVALID_REQUEST"),
        ("n map<string, long>", {}, "WRONG_TYPE"),
        ("n array<timestamp>", {}, "WRONG_TYPE"),
    ],
)
def test_what_cant_be_is_refused_before_anything_runs(spark, tmp_path, schema, options, condition) -> None:
    frame = spark.readStream.schema(schema).json(str(tmp_path))
    with pytest.raises(RequestError) as refused:
        buffered(frame, **{"at_least": 5, "after_seconds": 1, **options})
    assert refused.value.condition == condition
    with pytest.raises(RequestError):
        buffered(spark.range(5), at_least=5, after_seconds=1)

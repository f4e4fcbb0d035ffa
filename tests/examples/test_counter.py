"""The counter by GroupState: both clocks end a host that is gone; the table has the hosts that are here."""

from __future__ import annotations

import json
import time
from collections import Counter

import pandas as pd
import pytest

import millpond
from suite.waiting import wait_until

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark


def collector():
    rows = []

    def collect(frame, batch):
        rows.extend((row.host, row.requests, row.gone) for row in frame.collect())

    return rows, collect


@pytest.mark.long
def test_by_the_logs_own_clock(spark, example, read_log, real_log, pages_of, tmp_path) -> None:
    module, (emitted, collect) = example("counter"), collector()
    frame = read_log(real_log)
    with module.start(
        frame, str(tmp_path / "pond"), "event-time", 900.0, trigger="available-now", partitions=2, sink=collect
    ) as job:
        assert job.wait_for_end(240)
    hits = Counter(host for host, _, _ in pages_of(real_log))
    gone = Counter()
    for host, requests, is_gone in emitted:
        gone[host] += requests if is_gone else 0
    with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
        rows = pond["counter"].scan()
        here = {row["host"]: row["requests"] for row in rows}
        # Every request counts once: in the row of a present host, or in the row that a host left as it went.
        assert Counter(here) + gone == hits
        assert len(here) > 10
        assert sum(is_gone for _, _, is_gone in emitted) > 100
        assert all(row["expires_at"].timestamp() * 1000 > rows.position.watermark_ms for row in rows)
        host = next(iter(here))
        assert pond["counter"].get(host=host)["requests"] == here[host]


def test_a_batch_of_late_requests_leaves_the_time_out_where_it_was(example) -> None:
    """The state is PySpark's own, made as its worker makes it."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
    from pyspark.sql.types import StructType

    module, minute = example("counter"), 60_000
    schema, clock = StructType().add("requests", "long").add("last_ms", "long"), GroupStateTimeout.EventTimeTimeout

    def batch(before: tuple[int, ...] | None, watermark: int, *minutes: int) -> tuple[tuple[int, ...], float]:
        """The stored row after a batch, and the minute of the time-out."""
        stored = None if before is None else Row(*before)
        flags = {"hasTimedOut": False, "watermarkPresent": True, "defined": stored is not None, "updated": False, "removed": False}
        state = GroupState(stored, 0, watermark * minute, clock, timeoutTimestamp=-1, keyAsUnsafe=b"", valueSchema=schema, **flags)
        chunks = iter([pd.DataFrame({"ms": [at * minute for at in minutes]})])
        list(module.count(("h",), chunks, state, clock="event-time", after_seconds=900.0))
        return state.get, json.loads(state.json())["timeoutTimestamp"] / minute

    first, ends = batch(None, 0, 30, 12)
    assert (first, ends) == ((2, 30 * minute), 45)
    late, ends = batch(first, 20, 21)
    assert (late, ends) == ((3, 30 * minute), 45)
    _, ends = batch(late, 31, 32)
    assert ends == 47
    _, ends = batch(late, 40, 35)  # and never before the watermark
    assert ends == 55


@pytest.mark.long
def test_by_the_clock(spark, example, tmp_path) -> None:
    module, (emitted, collect) = example("counter"), collector()
    folder = tmp_path / "in"
    folder.mkdir()

    def write(name, *hosts):
        lines = [json.dumps({"host": host, "time": "1995-08-01T00:00:00Z"}) for host in hosts]
        (tmp_path / name).write_text("\n".join(lines))
        (tmp_path / name).rename(folder / name)

    write("1.json", "a", "a", "b")
    frame = spark.readStream.schema("host string, time timestamp").json(str(folder))
    pond = str(tmp_path / "pond")
    kept_seconds = 3.0
    options = {"trigger": "500 milliseconds", "partitions": 2, "sink": collect}
    with module.start(frame, pond, "processing-time", kept_seconds, **options) as job:
        job.wait_for_batch(0, 120)
        planned = json.loads((tmp_path / "pond/jobs/counter/checkpoint/offsets/0").read_text().splitlines()[1])
        with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
            table = opened["counter"]
            row = table.get(host="a")
            if row or time.time() < planned["batchTimestampMs"] / 1000 + kept_seconds:  # else the machine has stopped this test
                assert row["requests"] == 2
                assert row["expires_at"] is not None
            wait_until(lambda: not table.count(), "the end of both hosts")
            write("2.json", "a")
            seen = wait_until(lambda: table.get(host="a") or emitted[5:], "the host of the second file, or already its end")
            if not isinstance(seen, list):
                assert seen["requests"] == 1  # the host was forgotten
    assert sorted(emitted[:4]) == [("a", 2, False), ("a", 2, True), ("b", 1, False), ("b", 1, True)]
    assert emitted[4] == ("a", 1, False)

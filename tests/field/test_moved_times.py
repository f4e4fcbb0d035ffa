"""An edit sets the times by which rows go to before those that Spark has looked for: Spark's next batches are the judge."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from live_jobs.broken import write_job
from live_jobs.interrupted import CELLS, OperatorJob, last_batch, ordered, read_batch, session_of
from millpond import StateRow
from millpond.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = dt.timedelta(days=1)
DAY_MS = 86_400_000
FORMAT4 = "join-inner-format4-rocksdb-changelog"


def restore(job: Path, edit: Callable[[StateRow], StateRow], target: Path) -> Path:
    """The edited state of a job, to go on from."""
    millpond.plan_edit_savepoint(job, "before", target.name, edit=edit).run()
    millpond.plan_restore(job, target.name, target).run()
    return target


def rows_of(spark: SparkSession, checkpoint: Path) -> dict[str, set[str]]:
    return {store: set(rows) for store, rows in ordered(read_batch(spark, checkpoint, last_batch(checkpoint))).items()}


def at_times(change: Callable[[dt.datetime], dt.datetime]) -> Callable[[StateRow], StateRow]:
    def edit(row: StateRow) -> StateRow:
        row.value |= {name: change(value) for name, value in row.value.items() if isinstance(value, dt.datetime)}
        return row

    return edit


@pytest.mark.long
@pytest.mark.parametrize("name", [FORMAT4, "join-inner-format4-hdfs", "join-left-rocksdb-changelog"])
def test_rows_that_wait_in_a_join_go_or_may_not_be_moved(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Format 4 on RocksDB looks between two watermarks only."""
    job = write_job(spark, tmp_path / "job", name)
    made = millpond.plan_savepoint(job.checkpoint, "before").run()
    earlier = at_times(lambda time: time - DAY)
    if name == FORMAT4:
        with pytest.raises(RequestError, match="goes back to the event time") as raised:
            restore(job.checkpoint, earlier, tmp_path / "earlier")
        assert "Return None to remove the row" in (raised.value.hint or "")
        assert made.manifest.watermark_ms is not None
        first = dt.datetime.fromtimestamp(made.manifest.watermark_ms / 1000 + 0.001, dt.UTC)
        earlier = at_times(lambda time: max(first, time - DAY))
    target = restore(job.checkpoint, earlier, tmp_path / "moved")
    moved = rows_of(job.spark, target)
    assert any(moved.values())
    job.run(target)
    end = rows_of(job.spark, target)
    assert not any(moved[store] & end[store] for store in moved if "keyToNum" not in store)


@pytest.mark.long
def test_event_timers_fire(spark: SparkSession, tmp_path: Path) -> None:
    job = write_job(spark, tmp_path / "job", "transform-event-timers-rocksdb-changelog")
    millpond.plan_savepoint(job.checkpoint, "before").run()

    def edit(row: StateRow) -> StateRow:
        if "expiryTimestampMs" in row.key:
            row.key["expiryTimestampMs"] -= DAY_MS
        return row

    target = restore(job.checkpoint, edit, tmp_path / "moved")
    moved = rows_of(job.spark, target)["0/default/$eventTimers_keyToTimestamp"]
    assert moved
    job.run(target)
    assert not moved & rows_of(job.spark, target)["0/default/$eventTimers_keyToTimestamp"]


@pytest.mark.long
def test_values_with_a_ttl_expire(spark: SparkSession, tmp_path: Path) -> None:
    own, cell = session_of(spark, "transform-ttl-rocksdb-changelog"), CELLS["transform-ttl-rocksdb-changelog"]
    until = 6  # of eight files

    class Job(OperatorJob):
        def live(self, df: Any, mode: str, batches: int) -> None:
            super().live(df, mode, until)

    class Again(Job):
        def feed(self, batches: int) -> None:
            """Nothing more."""

    cell.write(Job(own, tmp_path / "job", tmp_path / "inputs"))
    millpond.plan_savepoint(tmp_path / "job", "before").run()

    def edit(row: StateRow) -> StateRow:
        for value in row.value if isinstance(row.value, list) else [row.value]:
            if "ttlExpirationMs" in value:
                value["ttlExpirationMs"] -= 2 * DAY_MS
        return row

    target = restore(tmp_path / "job", edit, tmp_path / "moved")
    moved = rows_of(own, target)
    assert moved["0/default/value"]
    until = 7
    cell.write(Again(own, target, tmp_path / "inputs"))
    end = rows_of(own, target)
    assert not any(moved[store] & end[store] for store in moved)

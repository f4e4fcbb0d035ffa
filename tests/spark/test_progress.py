"""What samples say of Spark's own reports: rows read, late, in state; a new run counts from nothing."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pyspark.sql import functions as sf

import millpond
from inputs.event_file import write_event_file
from live_jobs.samples import sampled
from millpond.catalogue import job_of
from millpond.operate.measure import JobMeter
from millpond.spark.progress import _TRACKS_ROWS, ProgressCounts, waiting_files
from millpond.spark.start import PROVIDER, ROCKSDB
from suite.waiting import wait_until

BEGIN = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def feed(folder: Path, file: int, minutes: list[int]) -> None:
    rows = [{"at": (BEGIN + dt.timedelta(minutes=minute)).isoformat(), "k": f"k{minute % 3}"} for minute in minutes]
    write_event_file(folder, file, rows)


def test_a_job_reports_its_rows(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Of batches that come quicker than looks, too."""
    source = tmp_path / "in"
    source.mkdir()
    feed(source, 0, [0, 1, 2])
    rows = spark.readStream.schema("at timestamp, k string").option("maxFilesPerTrigger", 1).json(str(source))
    counts = rows.withWatermark("at", "10 minutes").groupBy(sf.window("at", "5 minutes"), "k").count()
    folder = job_of(tmp_path / "pond", "counts")
    for name, value in ((PROVIDER, ROCKSDB), (_TRACKS_ROWS, "true")):
        before = spark.conf.get(name, value)
        spark.conf.set(name, value)
        request.addfinalizer(lambda name=name, before=before: spark.conf.set(name, before))
    with millpond.start(counts, table="counts", pond=tmp_path / "pond", partitions=2) as job:
        every = ProgressCounts(job.query)
        job.wait_for_batch(0, 60)
        feed(source, 1, [60, 61])  # the watermark goes to minute 51
        first = sampled(folder, 5)
        for file in range(2, 6):
            feed(source, file, [1, 2, 70 + file])  # two of each are late
        sample = sampled(folder, 17)
        assert sample.late_rows == 8
        assert sample.state_rows in (4, 6)  # of minutes 60, 61, 72 to 75, of which the first two expire
        assert sample.changed_rows is not None
        assert sample.changed_rows >= 9
        # A batch that reads nothing, after the last one with rows, has no mean.
        assert all(0 <= each < 60 for each in (first.get_seconds, sample.get_seconds) if each is not None)
        assert first.get_seconds is not None or sample.get_seconds is not None
        assert sample.memory_bytes
        assert (sample.starts, sample.job_state) == (1, "running")
        # The last batch, which reads nothing and removes rows, may still come.  What was counted isn't counted again.
        wait_until(lambda: every.look() == every.look(), "two looks that agree")
        assert {"input_rows": 17, "late_rows": 8}.items() <= every.look().items()
    stopped = JobMeter(folder).look()
    assert (stopped.job_state, stopped.input_rows) == ("stopped", None)
    assert stopped.recovery_seconds is not None
    feed(source, 6, [80, 81])
    spark.conf.set(_TRACKS_ROWS, "false")
    with millpond.start(counts, table="counts", pond=tmp_path / "pond"):
        again = sampled(folder, 2)
        assert (again.starts, again.state_rows) == (2, None)


@pytest.mark.parametrize(
    ("options", "waiting"),
    [
        ({"maxFilesPerTrigger": 1}, 4),
        ({"maxBytesPerTrigger": 1}, 4),
        ({}, 0),
        ({"maxFilesPerTrigger": 1, "latestFirst": "true"}, None),
    ],
)
def test_files_that_wait(spark: Any, tmp_path: Path, options: dict[str, Any], waiting: int | None) -> None:
    """A job that reads one file and then pauses: the files after it wait, and the second one is the oldest."""
    source, pond = tmp_path / "in", tmp_path / "pond"
    source.mkdir()
    for file in range(5):
        feed(source, file, [file])
    rows = spark.readStream.schema("at timestamp, k string").options(**options).json(str(source))
    folder = job_of(pond, "counts")
    with millpond.start(rows.groupBy("k").count(), table="counts", pond=pond, partitions=2, trigger="1 hour") as job:
        job.wait_for_batch(0, 60)
        sample = sampled(folder, 5 if waiting == 0 else 1)
        assert (sample.behind_records, sample.waiting_files) == (None, waiting)
        if waiting:
            written_ms = (source / "000001.json").stat().st_mtime_ns // 1_000_000
            assert sample.oldest_file_ms == written_ms
            assert sample.file_lag_seconds == pytest.approx((sample.at_ms - written_ms) / 1000)
        else:
            assert sample.oldest_file_ms is None
            assert sample.file_lag_seconds == (None if waiting is None else 0.0)
    assert JobMeter(folder).look().waiting_files is None


def test_no_files_are_counted_before_they_are_listed(spark: Any, tmp_path: Path) -> None:
    """A batch that the run before has planned comes first, whose files are known."""
    source, pond = tmp_path / "in", tmp_path / "pond"
    source.mkdir()
    for file in range(5):
        feed(source, file, [file])
    rows = spark.readStream.schema("at timestamp, k string").option("maxFilesPerTrigger", 1).json(str(source))
    folder = job_of(pond, "counts")
    for run, waiting in enumerate([4, None]):
        with millpond.start(rows.groupBy("k").count(), table="counts", pond=pond, partitions=2, trigger="1 hour") as job:
            job.wait_for_batch(0, 60)
            assert sampled(folder, 1).waiting_files == waiting, run
        (pond / "jobs/counts/checkpoint/commits/0").unlink()


def test_files_of_several_sources_wait(spark: Any, tmp_path: Path) -> None:
    """They are added up; a list that isn't there makes all unknown."""
    for folder, files in (("a", 3), ("b", 6)):
        (tmp_path / folder).mkdir()
        for file in range(files):
            feed(tmp_path / folder, file, [file])

    def rows(folder: str) -> Any:
        return spark.readStream.schema("at timestamp, k string").option("maxFilesPerTrigger", 1).json(str(tmp_path / folder))

    both = rows("a").union(rows("b")).groupBy("k").count()
    with millpond.start(both, table="both", pond=tmp_path / "pond", partitions=2, trigger="1 hour") as job:
        job.wait_for_batch(0, 60)
        assert sampled(job_of(tmp_path / "pond", "both"), 2).waiting_files == 2 + 5
    with millpond.start(
        rows("a").groupBy("k").count(), table="now", pond=tmp_path / "pond", partitions=2, trigger="available-now"
    ) as job:
        assert job.wait_for_end(60)
        assert waiting_files(job.query) == {}, "its sources are there still"

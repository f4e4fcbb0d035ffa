"""A query that `publish` has named: readers and samples know of it what they know of a job that `start` runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

import millpond
from inputs.event_file import write_event_file
from live_jobs.quick_java import QUICK_JAVA_ENVIRONMENT
from live_jobs.samples import sampled
from millpond.catalogue import open_jobs
from millpond.operate.measure import JobMeter
from millpond.ownership.runs import Run, read_runs
from suite.waiting import wait_until

SCHEMA = "k string, n long"


def feed(folder: Path, file: int, rows: int = 3) -> None:
    folder.mkdir(exist_ok=True)
    write_event_file(folder, file, [{"k": f"k{n}", "n": file} for n in range(rows)])


def begin(spark: Any, tmp_path: Path, sink: Any = None) -> Any:
    """A query that its program starts by itself."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    counts = rows.groupBy("k").agg(sf.count("*").alias("hits"))
    writer = counts.writeStream.outputMode("update").queryName("hits").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.format("noop") if sink is None else writer.foreachBatch(sink)
    return writer.start()


def ended(pond: Path, count: int) -> Run:
    """The newest run, once so many have ended."""
    (folder,) = open_jobs(pond)

    def look() -> Run | None:
        runs = read_runs(folder.storage).runs
        return runs[-1] if len(runs) == count and runs[-1].ended_ms is not None else None

    found = wait_until(look, f"the end of run {count}")
    assert found is not None
    return found


def test_a_published_query_is_seen_as_a_job_is(spark: Any, tmp_path: Path) -> None:
    pond = tmp_path / "pond"
    feed(tmp_path / "in", 0)
    query = begin(spark, tmp_path)
    try:
        wait_until(lambda: query.recentProgress, "the first batch")
        for _ in range(2):  # the second call finds that it is reported already
            assert millpond.publish(query, table="hits", pond=pond) is not None
        (folder,) = open_jobs(pond)
        feed(tmp_path / "in", 1)
        sample = sampled(folder, 6)
        assert (sample.job_state, sample.starts, sample.state_rows) == ("running", 1, 3)
        assert sample.recovery_seconds is not None
        assert folder.read_sink() == (True, None)
        with millpond.open(pond, replica_dir=tmp_path / "home") as opened:
            assert opened["hits"].get(k="k0").job_state == "running"
    finally:
        query.stop()
    run = ended(pond, 1)
    assert folder.said_stopped()
    assert (run.batch, run.error) == (None, None)


def test_each_query_of_a_checkpoint_is_a_run(spark: Any, tmp_path: Path) -> None:
    """The last words of one come before the first ones of the next, also if it has just ended."""
    feed(tmp_path / "in", 0)
    for number in range(3):
        query = begin(spark, tmp_path, fail_at(2))
        wait_until(lambda query=query: not query.isActive or query.recentProgress, "a batch or the end")
        assert millpond.publish(query, table="hits", pond=tmp_path / "pond") is not None
        (folder,) = open_jobs(tmp_path / "pond")
        if number < 2:
            assert folder.job_state() == "running"
            feed(tmp_path / "in", number + 1)
            millpond.publish(query, table="hits", pond=tmp_path / "pond")
        if number == 0:
            wait_until(lambda query=query: query.lastProgress["batchId"] >= 1, "the second batch")
            query.stop()
        else:
            with pytest.raises(StreamingQueryException):
                query.awaitTermination(60)
    run = ended(tmp_path / "pond", 2)
    assert run.batch == 1
    assert run.error is not None
    sample = JobMeter(folder).look()
    assert (sample.starts, sample.failures) == (2, 1)
    assert millpond.publish(query, table="hits", pond=tmp_path / "pond") is not None
    assert read_runs(folder.storage).count == 2, "a query that has ended is no run"


def fail_at(batch: int) -> Any:
    def write(rows: Any, number: int) -> None:
        rows.collect()  # Spark fails if nobody reads the state
        if number == batch:
            raise ValueError("this batch fails")

    return write


def test_a_job_of_start_has_one_heartbeat(spark: Any, tmp_path: Path) -> None:
    feed(tmp_path / "in", 0)
    rows = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")).groupBy("k").count()
    with millpond.start(rows, table="hits", pond=tmp_path / "pond") as job:
        job.wait_for_batch(0, 60)
        millpond.publish(job.query, table="hits", pond=tmp_path / "pond")
        (folder,) = open_jobs(tmp_path / "pond")
        assert read_runs(folder.storage).count == 1


PROGRAM = """
import sys
import millpond
from pyspark.sql import functions as sf
spark = millpond.session("published")
rows = spark.readStream.format("rate").load().groupBy("value").count()
query = rows.writeStream.format("noop").outputMode("update").option("checkpointLocation", sys.argv[2]).start()
millpond.publish(query, table="values", pond=sys.argv[1])
while not query.recentProgress:
    query.awaitTermination(0.2)
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_program_that_ends_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "pond"), str(tmp_path / "checkpoint")]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, **QUICK_JAVA_ENVIRONMENT})
    (folder,) = open_jobs(tmp_path / "pond")
    assert folder.said_stopped()
    assert ended(tmp_path / "pond", 1).committed_ms is not None

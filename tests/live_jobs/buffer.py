"""Jobs whose rows wait in shards of the state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import millpond
from inputs.event_file import write_event_file
from live_jobs.rocksdb_state import rocksdb
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def buffer(spark: SparkSession, folder: Path, shards: int, partitions: int, seconds: float, at_least: int) -> DataFrame:
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(folder))
    return millpond.buffered(rows, at_least=at_least, after_seconds=seconds, shards=shards, partitions=partitions)


def write_waiting_rows(spark: SparkSession, folder: Path) -> Path:
    """Run such a job for a batch; returns its checkpoint, in no pond, with 41 rows that wait in two shards."""
    (folder / "in").mkdir()
    write_event_file(folder / "in", 0, [{"n": n} for n in range(41)])
    checkpoint = folder / "waiting"
    with rocksdb(spark):
        writer = buffer(spark, folder / "in", 2, 2, 1000, 1000).writeStream.outputMode("append")
        writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 second")
        running = writer.format("noop").start()
        try:
            wait_until((checkpoint / "commits/0").exists, "the first batch", seconds=120, unless=running.exception)
        finally:
            running.stop()
    return checkpoint

"""Real-time mode is refused by name: a running query, a writer that would start one, and a checkpoint of one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import open_jobs
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.errors import CheckpointError
from millpond.spark import define, publish, start
from millpond.storage import open_storage
from millpond.tables.cold.report import inspect_job
from suite.waiting import wait_until

CONF = {
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",  # Spark refuses real-time mode in format 1
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.realTimeMode.minBatchDuration": "2000ms",
    # All tasks of all stages run at once on the session's two cores: one for the source, one for the aggregation.
    "spark.sql.shuffle.partitions": "1",
}


@dataclass(frozen=True)
class RealTimeJob:
    """A query in real-time mode.  It has Spark's own test source, the only one that needs no other jars."""

    frame: Any
    query: Any
    checkpoint: Path


@pytest.fixture(scope="module")
def job(spark, tmp_path_factory) -> Iterator[RealTimeJob]:
    from pyspark.sql import DataFrame

    pytest.importorskip("pyspark", minversion="4.3")
    before = {key: spark.conf.get(key, None) for key in CONF}
    for key, value in CONF.items():
        spark.conf.set(key, value)
    jvm = spark._jvm
    sources = jvm.org.apache.spark.sql.execution.streaming.sources
    source = sources.LowLatencyMemoryStream.singlePartition(spark._jsparkSession, jvm.org.apache.spark.sql.Encoders.STRING())
    frame = DataFrame(source.toDF(), spark).groupBy("value").count()
    checkpoint = tmp_path_factory.mktemp("real-time") / "checkpoint"
    writer = frame.writeStream.outputMode("update").format("console").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(realTime="2 seconds").start()
    try:
        rows = jvm.java.util.ArrayList()
        for word in ("a", "b", "a"):
            rows.append(word)
        source.addData(jvm.scala.jdk.javaapi.CollectionConverters.asScala(rows).toList())
        wait_until((checkpoint / "commits" / "1").exists, "the second batch", seconds=120, unless=query.exception)
        yield RealTimeJob(frame, query, checkpoint)
    finally:
        query.stop()
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


def refused(raised: pytest.ExceptionInfo[CheckpointError]) -> None:
    assert raised.value.condition == "UNSUPPORTED"
    assert "real-time mode" in raised.value.message
    assert "processingTime" in raised.value.hint


def test_a_query_in_real_time_mode_cant_be_published_nor_defined(job, tmp_path):
    with pytest.raises(CheckpointError) as raised:
        publish(job.query, table="words", pond=tmp_path)
    refused(raised)
    with pytest.raises(CheckpointError) as raised:
        define(job.frame, job.checkpoint, table="words", pond=tmp_path)
    refused(raised)
    assert not list(tmp_path.iterdir())


def test_start_refuses_a_sink_function_that_asks_for_it_before_anything_runs(spark, job, tmp_path):
    running = len(spark.streams.active)
    with pytest.raises(CheckpointError) as raised:
        start(job.frame, table="words", pond=tmp_path, sink=lambda writer: writer.format("console").trigger(realTime="2 seconds"))
    refused(raised)
    assert len(spark.streams.active) == running
    assert not list(tmp_path.rglob("checkpoint/*"))
    assert not list(tmp_path.rglob("tables/*"))


def test_its_checkpoint_is_refused_by_every_reader(job, tmp_path):
    with pytest.raises(CheckpointError) as raised:
        millpond.open(job.checkpoint, replica_dir=tmp_path).catch_up(60)
    refused(raised)
    with pytest.raises(CheckpointError) as raised:
        millpond.read_arrow(job.checkpoint, "checkpoint.aggregate_0")
    refused(raised)
    (folder,) = open_jobs(job.checkpoint)
    unread = inspect_job(folder).unread
    assert [part.part for part in unread] == ["trigger", "operator 0 (StatefulStreamlineAggregate), store default"]
    assert all(part.condition == "UNSUPPORTED" and "real-time mode" in part.message for part in unread)


def test_a_copy_of_it_or_a_micro_batch_job_with_such_times_isnt_taken_for_one(spark, job, tmp_path):
    """A checkpoint is refused only if its times show real-time mode beyond doubt; one fact alone isn't enough."""
    job.query.stop()
    tracker = spark._jsc.sc().statusTracker()
    wait_until(  # they end some time after `stop`
        lambda: not any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()), "the end of the tasks"
    )
    newest = max(int(p.name) for p in (job.checkpoint / "commits").iterdir() if p.name.isdigit())

    def refuses(checkpoint: Path) -> bool:
        storage = open_storage(checkpoint)
        try:
            refuse_real_time(storage, read_batch(storage, Batch(newest)))
        except CheckpointError as error:
            return error.condition == "UNSUPPORTED"
        return False

    def copies() -> bool:  # Spark may still be writing checksums, whose temporary names vanish
        try:
            shutil.copytree(job.checkpoint, tmp_path / "kept", dirs_exist_ok=True)  # keeps the file times
        except shutil.Error:
            shutil.rmtree(tmp_path / "kept")
            return False
        return True

    wait_until(copies, "a copy of a checkpoint at rest")
    assert refuses(job.checkpoint)
    assert refuses(tmp_path / "kept")
    shutil.copytree(tmp_path / "kept", tmp_path / "copied", copy_function=shutil.copy)  # the job's own may still change
    assert not refuses(tmp_path / "copied")
    for state in (tmp_path / "kept" / "state").rglob(f"{newest + 1}_*"):  # as in a micro-batch, which writes state last
        os.utime(state, (time.time(), time.time()))
    assert not refuses(tmp_path / "kept")

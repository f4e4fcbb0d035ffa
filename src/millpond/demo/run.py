"""Runs the main job in this process, quietly: Spark's output goes to a file, and the JVM is ended.

1. Send stderr to the file while the JVM starts: the JVM and the Python workers inherit it.
2. Start the queries.
3. At any end: stop the queries, then the session, then wait for the JVM itself.  Otherwise the JVM
   would notice only later that its parent has ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from millpond.demo.pageviews import main_job
from millpond.demo.visits import visit_stream
from millpond.errors import CONDITIONS, MillpondError, SetupError
from millpond.spark.accesslog.source import log_stream
from millpond.spark.job import Job, stop_all
from millpond.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JVM_SECONDS = 20.0
# A demo's state is small, and each partition of each of its six state stores is a task in every
# batch.
DEMO_PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The main job's input: a log, or without one the generated stream.

    log:              path of a file, folder or glob
    speed:            of the log's replay: None as fast as possible, or a multiple of real time
    rows:             where the generated stream ends
    rows_per_second:  of the generated stream
    """

    log: str | None = None
    speed: float | None = None
    rows: int | None = None
    rows_per_second: float | None = None

    def open_stream(self, spark: SparkSession) -> DataFrame:
        """The stream of requests."""
        if self.log is not None:
            return log_stream(spark, self.log, speed=self.speed)
        return visit_stream(spark, rows=self.rows, rows_per_second=self.rows_per_second)


@contextlib.contextmanager
def running_main_job(source: Input, *, pond: Path, trigger: str | None, spark_log: Path) -> Iterator[list[Job]]:
    """The main job's queries, running; all of it is ended when the block is left.

    trigger:    as in `start`
    spark_log:  file that gets what Spark, the JVM and the workers write
    Raises:     what `session` and `start` raise
    """
    scratch = spark_log.parent
    conf = {
        "spark.ui.enabled": "false",  # opens no port
        # For machines whose own name doesn't resolve, as in many containers.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    with _stderr_to(spark_log):
        try:
            spark = session("millpond demo", **conf)
        except PySparkException as broken:
            raise SetupError("JOB_FAILED", f"Spark doesn't start: {broken}", hint=_look_at(spark_log)) from broken
    jobs: list[Job] = []
    try:
        jobs = main_job(source.open_stream(spark), pond=pond, trigger=trigger, partitions=DEMO_PARTITIONS)
        yield jobs
    finally:
        # A JVM that ends breaks its connections to this process, which threads of PySpark report at
        # length.
        with _stderr_to(spark_log):
            stop_all(jobs)
            end_jvm(spark)


def check_jobs(jobs: list[Job], *, spark_log: Path) -> bool:
    """Whether any query still runs.

    Raises:  JOB_FAILED, or the condition that a source named, where one has failed.
    """
    for job in jobs:
        failure = job.query.exception()
        if failure is not None:
            raise _failure(job.name, str(failure), spark_log)
    return any(job.query.isActive for job in jobs)


def _failure(name: str, text: str, spark_log: Path) -> MillpondError:
    # An error that a source raises in a worker arrives as text: "… millpond.errors.SetupError:
    # [LOG_REPLACED] … Hint: …".
    for line in text.splitlines():
        failure = line.partition("millpond.errors.")[2].partition(": [")[2]
        condition, _, message = failure.partition("] ")
        if condition in CONDITIONS:
            said, _, hint = message.partition(" Hint: ")
            return CONDITIONS[condition].kind(condition, said, hint=hint, job=name)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SetupError(
        "JOB_FAILED",
        f"The job {name!r} failed: {lines[0] if lines else 'Spark says nothing about it.'}",
        hint=_look_at(spark_log),
        job=name,
    )


def _look_at(spark_log: Path) -> str:
    return f"Look at Spark's log: {spark_log}"


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Everything that this process, or one that it starts, writes to stderr goes to the file."""
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def end_jvm(spark: SparkSession) -> None:
    """Stop the session and wait until its JVM is gone; one that doesn't end in time is killed."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        # Started by spark-submit, whose JVM is our parent and must not be ended by us.
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    # The gateway's JVM ends when its standard input does.
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_JVM_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

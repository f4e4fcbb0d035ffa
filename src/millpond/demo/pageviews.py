"""The main job: statistics of pages and visitors from a web server's log, as five queries in one pond.

Five queries are five jobs with a checkpoint each, so answers of two of them name two batches.  All
but `recent_minutes` have no watermark, so late events and duplicates count too.  Each function also
takes a batch DataFrame, and then computes the same from scratch.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from millpond.spark.start import start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millpond.spark.job import Job

# `recent_minutes` leaves out events later than this; finished minutes leave Spark's state by then.
WATERMARK = "10 minutes"
_SOURCE_SECONDS = 30.0
_TRIES = 6
_LATE = "Python worker failed to connect back"


def main_job(events: DataFrame, *, pond: str | Path, trigger: str | None = None, partitions: int | None = None) -> list[Job]:
    """Start the five queries over a stream of requests; each is a job named after its table.

    events:      columns as in `accesslog_lines.Request`
    trigger:     None as fast as possible, "1 second", or "available-now"
    partitions:  of each query's state; None for the default of `start`.  A checkpoint keeps it for
                 ever.
    """
    queries = {
        "page_views": page_views(events),
        "page_minutes": page_minutes(events),
        "hosts": hosts(events),
        "recent_minutes": recent_minutes(events),
        "bad_lines": bad_lines(events),
    }
    jobs: list[Job] = []
    try:
        for table, query in queries.items():
            for _ in range(_TRIES):
                job = start(query, table=table, pond=pond, trigger=trigger, partitions=partitions)
                if not _source_was_late(job):
                    break
                job.stop()
            jobs.append(job)
    except BaseException:
        for job in jobs:
            job.stop()
        raise
    return jobs


def _source_was_late(job: Job) -> bool:
    """Block until the query's source has started; returns whether it failed only because that took too long.

    Spark plans a Python source in a Python process of its own, which has ten seconds to start (a
    constant in PythonWorkerFactory.createSimpleWorker, 4.3).  Five that start at once on a busy
    machine take longer.  So they start one after the other, and a late one starts again.
    """
    deadline = time.monotonic() + _SOURCE_SECONDS
    while job.query.isActive and job.query.status["message"] == "Initializing sources" and time.monotonic() < deadline:
        time.sleep(0.05)
    return not job.query.isActive and _LATE in str(job.query.exception())


def page_views(events: DataFrame) -> DataFrame:
    """By page: hits, bytes, exact and approximate number of different hosts, and hits by class of status.

    A set of hosts per page would be one row that grows for ever and is rewritten with every hit.
    Instead Spark's dropDuplicates keeps one small row per (page, host), spread over all partitions,
    and passes on only the first event of each; these are counted beside the hits.  Both branches
    start from one exchange by (page, host), which dropDuplicates needs anyway, so that each batch
    reads the source once and not twice.
    """
    requests = _requests(events).select("page", "host", "status", "bytes").repartition("page", "host")
    hits = requests.withColumn("hit", F.lit(1))
    firsts = requests.dropDuplicates(["page", "host"]).withColumn("hit", F.lit(0))
    hit = F.col("hit") == 1
    return (
        hits.unionByName(firsts)
        .groupBy("page")
        .agg(
            F.count(F.when(hit, 1)).alias("hits"),
            F.sum(F.when(hit, F.col("bytes"))).alias("bytes"),
            F.count(F.when(~hit, 1)).alias("visitors"),
            F.approx_count_distinct("host").alias("approx_visitors"),
            *(F.count(F.when(hit & _status(n), 1)).alias(f"status_{n}xx") for n in (2, 3, 4, 5)),
        )
    )


def page_minutes(events: DataFrame) -> DataFrame:
    """By page and minute of event time: hits and bytes."""
    minute = F.date_trunc("minute", "time").alias("minute")
    return _requests(events).groupBy("page", minute).agg(F.count("*").alias("hits"), F.sum("bytes").alias("bytes"))


def hosts(events: DataFrame) -> DataFrame:
    """By host: hits, first and last time seen, by event time."""
    return (
        _requests(events)
        .groupBy("host")
        .agg(F.count("*").alias("hits"), F.min("time").alias("first_seen"), F.max("time").alias("last_seen"))
    )


def recent_minutes(events: DataFrame) -> DataFrame:
    """By minute of event time, as long as the watermark hasn't passed it: hits, bytes and about how many hosts."""
    return (
        _requests(events)
        .withWatermark("time", WATERMARK)
        .groupBy(F.window("time", "1 minute"))
        .agg(
            F.count("*").alias("hits"),
            F.sum("bytes").alias("bytes"),
            F.approx_count_distinct("host").alias("approx_visitors"),
        )
        .select(F.col("window.start").alias("minute"), "hits", "bytes", "approx_visitors")
    )


def bad_lines(events: DataFrame) -> DataFrame:
    """By file and line: why a line isn't a request, and its text.  A repeated line changes nothing."""
    return (
        events.where(F.col("error").isNotNull())
        .groupBy("file", "line")
        .agg(F.first("error").alias("error"), F.first("text").alias("text"))
    )


def _requests(events: DataFrame) -> DataFrame:
    return events.where(F.col("error").isNull())


def _status(first_digit: int) -> F.Column:
    return F.col("status").between(first_digit * 100, first_digit * 100 + 99)

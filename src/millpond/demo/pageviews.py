"""The main job: statistics of pages and visitors from a web server's log, as five queries in one pond.

`page_views` is declared: an `Aggregate` by page and event time.  The others are plain queries.  Five
queries are five jobs with a checkpoint each, so answers of two of them name two batches.  All but
`recent_minutes` count late events and duplicates too; in `page_views` an event counts at least in
its day, which is kept for ever.  Each function also takes a batch DataFrame, or gives an aggregate
that does, and then computes the same from scratch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from millpond.spark.aggregate.declare import Aggregate
from millpond.spark.start import start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millpond.spark.job import Job

# `recent_minutes` leaves out events later than this; finished minutes leave Spark's state by then.
WATERMARK = "10 minutes"
_SOURCE_SECONDS = 120.0
_TRIES = 6
_STARTING = "Initializing"
_LATE = "Python worker failed to connect back"


def main_job(events: DataFrame, *, pond: str | Path, trigger: str | None = None, partitions: int | None = None) -> list[Job]:
    """Start the five queries over a stream of requests; each is a job named after its table.

    events:      columns as in `accesslog_lines.Request`
    trigger:     None as fast as possible, "1 second", or "available-now"
    partitions:  of each query's state; None for the default of `start`.  A checkpoint keeps it for
                 ever.
    """
    plain = {"page_visitors": page_visitors, "hosts": hosts, "recent_minutes": recent_minutes, "bad_lines": bad_lines}
    starts: list[Callable[..., Job]] = [partial(page_views().start, _requests(events))]
    starts += [partial(start, query(events), table=table) for table, query in plain.items()]
    jobs: list[Job] = []
    try:
        for start_query in starts:
            for _ in range(_TRIES):
                job = start_query(pond=pond, trigger=trigger, partitions=partitions)
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

    A query that has just started says "Initializing StreamExecution", then "Initializing sources"
    (StreamExecution.runStream, 4.3).
    """
    deadline = time.monotonic() + _SOURCE_SECONDS
    while job.query.isActive and job.query.status["message"].startswith(_STARTING) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not job.query.isActive and _LATE in str(job.query.exception())


def page_views() -> Aggregate:
    """By page and event time: hits, bytes, about how many hosts, and hits by class of status."""
    classes = {f"status_{n}xx": F.col("status").between(n * 100, n * 100 + 99) for n in (2, 3, 4, 5)}
    return Aggregate(
        "page_views",
        key=["page"],
        event_time="time",
        values={
            "hits": F.count("*"),
            "bytes": F.sum("bytes"),
            "approx_visitors": F.approx_count_distinct("host"),
            **{name: F.count(F.when(holds, 1)) for name, holds in classes.items()},
        },
        resolutions={"1 minute": "2 days", "1 hour": "90 days", "1 day": None},
    )


def page_visitors(events: DataFrame) -> DataFrame:
    """By page: how many different hosts, exactly.

    A set of hosts per page would be one row that grows for ever and is rewritten with every hit.
    Instead Spark's dropDuplicates keeps one small row per (page, host), spread over all partitions.
    """
    firsts = _requests(events).select("page", "host").dropDuplicates(["page", "host"])
    return firsts.groupBy("page").agg(F.count("*").alias("visitors"))


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

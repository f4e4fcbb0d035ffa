"""What a visitor did lately: a value, a list and a map with a TTL, in one vocabulary.

Run, and ask from another terminal; a row whose time is over isn't there, whether Spark has removed it or not:

    python examples/recent.py LOG ./pond
    millpond get ./pond recent_last host=burger.letters.com            # host; page, ms, expires_at
    millpond scan ./pond recent_trail host=burger.letters.com          # host, index; page, expires_at
    millpond scan ./pond recent_pages host=burger.letters.com          # host, page; requests, expires_at
    millpond scan ./pond recent_pages host=burger.letters.com --closed # with rows whose time is over

A TTL goes by the clock (processing time), from when the row was last written; each element of a list and each key of a map has
its own.  The last page is the one asked for last by the log's own times (ms), whatever batch brought it; the trail has each
batch's pages by these times, batch after batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import millpond
from millpond.spark.accesslog.source import log_stream
from millpond.spark.job import Job, run_until_stopped

ORDER = ["ms", "file", "line", "page"]  # of requests: by time, and at one time as they stand in the log


class Recent(StatefulProcessor):
    """The last page, the trail of pages, and how often each was asked for, as long as they count."""

    def __init__(self, ttl_seconds: float) -> None:
        self.ttl_ms = int(ttl_seconds * 1000)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("last", "page string, ms long", self.ttl_ms)
        self.trail = handle.getListState("trail", "page string", self.ttl_ms)
        self.pages = handle.getMapState("pages", "page string", "requests long", self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        # All of the batch first: Spark hands on a key's rows in no order, and in chunks.
        requests = sorted(request for chunk in rows for request in chunk[ORDER].itertuples(index=False, name=None))
        visited = [page for *_, page in requests]
        newest_ms, before = requests[-1][0], self.last.get()
        if before is None or before[1] <= newest_ms:  # late rows come in later batches
            self.last.update((visited[-1], newest_ms))
        self.trail.appendList([(page,) for page in visited])
        for page in sorted(set(visited)):
            counted = self.pages.getValue((page,))
            self.pages.updateValue((page,), ((counted[0] if counted else 0) + visited.count(page),))
        yield pd.DataFrame({"host": [key[0]], "requests": [len(visited)]})

    def close(self) -> None:
        pass


def recent(requests: DataFrame, ttl_seconds: float) -> DataFrame:
    """Tables recent_last, recent_trail and recent_pages."""
    return (
        requests.where("page IS NOT NULL")
        .select("host", F.unix_millis("time").alias("ms"), "file", "line", "page")
        .groupBy("host")
        .transformWithStateInPandas(
            Recent(ttl_seconds), outputStructType="host string, requests long", outputMode="update", timeMode="processingTime"
        )
    )


def start(requests: DataFrame, pond: str, ttl_seconds: float = 600.0, **options: Any) -> Job:
    """Start the job."""
    return millpond.start(recent(requests, ttl_seconds), table="recent", pond=pond, **options)


def main(log: str, pond: str) -> None:
    """Until Ctrl-C."""
    spark = millpond.session("recent")
    requests = log_stream(spark, log).where("error IS NULL")
    run_until_stopped([start(requests, pond, trigger="1 second")])


if __name__ == "__main__":
    main(*sys.argv[1:])

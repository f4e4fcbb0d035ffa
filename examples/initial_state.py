"""A new job that goes on from another job's table: its state begins as what the old one knew, and not empty.

Run the first job, stop it, and go on with another kind of state over the requests that come from there on:

    python examples/initial_state.py before LOG ./pond
    python examples/initial_state.py after LATER_LOG ./pond
    millpond get ./pond page_totals_total page=/ksc.html

The table is read straight from the old job's checkpoint (`read_arrow`; `to_arrow` of an open pond will do as well), and given to
transformWithState as `initialState`: Spark takes it in with the first batch of a new checkpoint, once.  The new job reads the table
at every start all the same: keep the old job's checkpoint.  The two logs must not overlap: what the table has counted would be
counted again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import millpond
from millpond.spark.accesslog.source import log_stream
from millpond.spark.job import Job, run_until_stopped

ORDER = ["ms", "file", "line", "host"]  # of requests: by time, and at one time as they stand in the log


class Totals(StatefulProcessor):
    """Requests per page, the host that asked last, and when; the old job didn't know who."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "hits long, last_host string, last_ms long")

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.total.update((int(initialState["hits"].iloc[0]), None, None))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        # All of the batch first: Spark hands on a key's rows in no order, and in chunks.
        requests = sorted(request for chunk in rows for request in chunk[ORDER].itertuples(index=False, name=None))
        hits, last_host, last_ms = self.total.get() or (0, None, None)
        hits += len(requests)
        if last_ms is None or last_ms <= requests[-1][0]:  # late rows come in later batches
            last_ms, *_, last_host = requests[-1]
        self.total.update((hits, last_host, last_ms))
        yield pd.DataFrame({"page": [key[0]], "hits": [hits]})

    def close(self) -> None:
        pass


def page_hits(requests: DataFrame) -> DataFrame:
    """The old job: table page_hits (page; hits)."""
    return requests.groupBy("page").agg(F.count("*").alias("hits"))


def known(spark: SparkSession, pond: str) -> GroupedData:
    """What the old job's table says, by page."""
    return spark.createDataFrame(millpond.read_arrow(pond, "page_hits")).groupBy("page")


def page_totals(requests: DataFrame, initial: GroupedData) -> DataFrame:
    """The new job: table page_totals_total (page; hits, last_host, last_ms)."""
    return (
        requests.select("page", F.unix_millis("time").alias("ms"), "file", "line", "host")
        .groupBy("page")
        .transformWithStateInPandas(
            Totals(), outputStructType="page string, hits long", outputMode="update", timeMode="none", initialState=initial
        )
    )


def start_before(requests: DataFrame, pond: str, **options: Any) -> Job:
    """Start the old job."""
    return millpond.start(page_hits(requests), table="page_hits", pond=pond, **options)


def start_after(requests: DataFrame, pond: str, **options: Any) -> Job:
    """Start the new job from what the old one has left."""
    frame = page_totals(requests, known(requests.sparkSession, pond))
    return millpond.start(frame, table="page_totals", pond=pond, **options)


def main(which: str, log: str, pond: str) -> None:
    """To the end of the log, or until Ctrl-C."""
    spark = millpond.session("initial state")
    requests = log_stream(spark, log).where("error IS NULL")
    begin = start_before if which == "before" else start_after
    run_until_stopped([begin(requests, pond, trigger="available-now")])


if __name__ == "__main__":
    main(*sys.argv[1:])

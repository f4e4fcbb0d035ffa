"""Exact distinct visitors per page, in four ways that end with the same numbers; docs/keyed-state.md says which is for whom.

Run (LOG is an access log: NCSA, or the TSV of the NASA trace), and ask from another terminal while it runs:

    python examples/visitors.py LOG ./pond
    millpond get ./pond visitors_by_list_count page=/ksc.html
    millpond scan ./pond visitors_by_map_hosts page=/ksc.html
    millpond get ./pond visitors_by_drop_duplicates page=/ksc.html
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

# transformWithState keeps its variables in column families, which only RocksDB has.
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
}
OUTPUT = "page string, visitors long"
# NULL is a visitor in none of the ways: collect_set drops it, dropDuplicates would count it, and it can't be sorted.
HAS_HOST = "host IS NOT NULL"


class ByList(StatefulProcessor):
    """The hosts as a list: each batch reads all of a page's hosts, and appends the new ones."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.hosts = handle.getListState("hosts", "host string")
        self.count = handle.getValueState("count", "visitors long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        known = {host for (host,) in self.hosts.get()}
        new = distinct_hosts(rows) - known
        if new:
            self.hosts.appendList([(host,) for host in sorted(new)])
            self.count.update((len(known) + len(new),))
            yield pd.DataFrame({"page": [key[0]], "visitors": [len(known) + len(new)]})

    def close(self) -> None:
        pass


class ByMap(StatefulProcessor):
    """The hosts as the keys of a map: each batch asks for its own hosts, however many the page has."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.hosts = handle.getMapState("hosts", "host string", "seen boolean")
        self.count = handle.getValueState("count", "visitors long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        new = [host for host in sorted(distinct_hosts(rows)) if not self.hosts.containsKey((host,))]
        for host in new:
            self.hosts.updateValue((host,), (True,))
        if new:
            visitors = (self.count.get()[0] if self.count.exists() else 0) + len(new)
            self.count.update((visitors,))
            yield pd.DataFrame({"page": [key[0]], "visitors": [visitors]})

    def close(self) -> None:
        pass


def distinct_hosts(rows: Iterator[pd.DataFrame]) -> set[str]:
    """The hosts of a batch: it comes in chunks."""
    return {host for chunk in rows for host in chunk["host"]}


def by_list(requests: DataFrame) -> DataFrame:
    """Tables visitors_by_list_hosts (page, index; host) and visitors_by_list_count (page; visitors)."""
    grouped = requests.where(HAS_HOST).select("page", "host").groupBy("page")
    return grouped.transformWithStateInPandas(ByList(), outputStructType=OUTPUT, outputMode="update", timeMode="none")


def by_map(requests: DataFrame) -> DataFrame:
    """Tables visitors_by_map_hosts (page, host; seen) and visitors_by_map_count (page; visitors)."""
    grouped = requests.where(HAS_HOST).select("page", "host").groupBy("page")
    return grouped.transformWithStateInPandas(ByMap(), outputStructType=OUTPUT, outputMode="update", timeMode="none")


def by_drop_duplicates(requests: DataFrame) -> DataFrame:
    """Table visitors_by_drop_duplicates (page; visitors): Spark keeps a row per (page, host), and a number per page."""
    distinct = requests.where(HAS_HOST).select("page", "host").dropDuplicates(["page", "host"])
    return distinct.groupBy("page").agg(F.count("*").alias("visitors"))


def by_set(requests: DataFrame) -> DataFrame:
    """Table visitors_by_set (page; hosts): all hosts of a page in one row, which every request of the page writes anew."""
    return requests.where(HAS_HOST).groupBy("page").agg(F.collect_set("host").alias("hosts"))


WAYS = {way.__name__: way for way in (by_list, by_map, by_drop_duplicates, by_set)}


def start(requests: DataFrame, way: str, pond: str, **options: Any) -> Job:
    """Start one of the ways as a job named visitors_<way>."""
    return millpond.start(WAYS[way](requests), table=f"visitors_{way}", pond=pond, **options)


def main(log: str, pond: str) -> None:
    """All four ways, until Ctrl-C."""
    spark = millpond.session("visitors", **ROCKSDB)
    requests = log_stream(spark, log).where("error IS NULL")
    run_until_stopped([start(requests, way, pond, trigger="1 second") for way in WAYS])


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A SparkSession with measured settings for state.

A plain SparkSession works as well: nothing else in Millpond depends on these settings.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from millpond.errors import importing_pyspark
from millpond.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Setting(NamedTuple):
    """A Spark setting, its value here, and the reason for it."""

    value: str
    reason: str


# A checkpoint keeps its number of partitions, and fewer than this can't use more cores later.
FEWEST_PARTITIONS = 8
_STATE = "spark.sql.streaming.stateStore"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
SETTINGS: dict[str, Setting] = {
    f"{_STATE}.providerClass": Setting(
        f"{_PROVIDERS}.HDFSBackedStateStoreProvider",
        "1.7 times the throughput of RocksDB with a change log, and 1.5 times if that doesn't count its rows, where a batch "
        "touches two thirds of a million keys (benchmarks/results/provider.json). The price: all state lies on the JVM's heap, "
        "about a third of a KiB for a key with two numbers, so that Spark's default heap of 1 GiB ends at two or three million "
        "keys. For larger state set this to RocksDBStateStoreProvider before the first start: a checkpoint keeps its provider "
        "for ever.",
    ),
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": Setting(
        "true",
        "With RocksDB, a commit then writes only the changes, which a reader follows, and no new SST files.",
    ),
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": Setting(
        "false",
        "With RocksDB, counting rows costs a lookup for every write: about a sixth of the throughput in the "
        "committed run of that benchmark.",
    ),
    "spark.sql.session.timeZone": Setting(
        "UTC",
        "Days and date_trunc mean the same on every machine, and the same as in answers of readers.",
    ),
    "spark.ui.showConsoleProgress": Setting(
        "false",
        "A progress bar for every micro-batch overwrites everything else on the terminal.",
    ),
}


def session(name: str, **conf: str) -> SparkSession:
    """A SparkSession for streaming jobs; if one runs already, that one.

    name:  the application's name
    conf:  Spark settings by their full names, `**{"spark.master": "local[4]"}`; they replace those
           of SETTINGS
    Raises:  JAVA_MISSING, PYSPARK_MISSING.
    """
    with importing_pyspark():
        from pyspark.sql import SparkSession

        from millpond.spark.source.source import register
    require_java()
    # Spark starts `python3` from PATH for its workers, which may be another version than the
    # driver's.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, setting in SETTINGS.items():
        builder = builder.config(key, setting.value)
    for key, value in conf.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    register(found)
    return found


def default_partitions(spark: SparkSession) -> int:
    """The default number of partitions of a new job's state."""
    return max(FEWEST_PARTITIONS, int(spark.sparkContext.defaultParallelism), os.cpu_count() or 1)

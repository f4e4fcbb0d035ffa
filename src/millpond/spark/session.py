"""A SparkSession with state settings that were measured.

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
    """A Spark setting, its value here, and why it has it."""

    value: str
    reason: str


# Fewer partitions than this can't be spread over more cores later, and a checkpoint keeps its number.
FEWEST_PARTITIONS = 8
_STATE = "spark.sql.streaming.stateStore"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
SETTINGS: dict[str, Setting] = {
    f"{_STATE}.providerClass": Setting(
        f"{_PROVIDERS}.HDFSBackedStateStoreProvider",
        "About twice the throughput of RocksDB with a change log where a batch touches a fifth of a million keys "
        "(benchmarks/results/provider.json). The price: all state lies on the JVM's heap, about a third of a KiB for a key "
        "with two numbers, so that Spark's default heap of 1 GiB ends at two or three million keys. For larger state set this "
        "to RocksDBStateStoreProvider before the first start: a checkpoint keeps its provider for ever.",
    ),
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": Setting(
        "true",
        "Where RocksDB is chosen, a commit writes the changes alone instead of new SST files; changes are what a reader follows.",
    ),
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": Setting(
        "false",
        "Where RocksDB is chosen, counting rows costs a lookup for every write: about a tenth of the throughput in the "
        "committed run of that benchmark.",
    ),
    "spark.sql.session.timeZone": Setting(
        "UTC",
        "Days and date_trunc mean the same on every machine, and the same as in what readers show.",
    ),
    "spark.ui.showConsoleProgress": Setting(
        "false",
        "A progress bar for every micro-batch overwrites everything else on the terminal.",
    ),
}


def session(name: str, **conf: str) -> SparkSession:
    """A SparkSession for streaming jobs, the running one where there is one.

    name:  the application's name
    conf:  Spark settings by their full names, `**{"spark.master": "local[4]"}`; they win over SETTINGS
    Raises:  JAVA_MISSING, PYSPARK_MISSING.
    """
    with importing_pyspark():
        from pyspark.sql import SparkSession
    require_java()
    # Spark starts `python3` from PATH for its workers, which may be another version than the driver's.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, setting in SETTINGS.items():
        builder = builder.config(key, setting.value)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def default_partitions(spark: SparkSession) -> int:
    """How many partitions a new job's state has where nobody says."""
    return max(FEWEST_PARTITIONS, int(spark.sparkContext.defaultParallelism), os.cpu_count() or 1)

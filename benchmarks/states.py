"""States that Spark wrote itself, of many keys, for benchmarks of savepoints.

The query counts and adds by a key of type long: row `k -> n, total`, in 8 partitions.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

PARTITIONS = 8
_PACKAGE = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {"hdfs": f"{_PACKAGE}HDFSBackedStateStoreProvider", "rocksdb": f"{_PACKAGE}RocksDBStateStoreProvider"}
_STORE = "spark.sql.streaming.stateStore."


def spark_session(name: str, memory: str = "8g", **more: str) -> Any:
    """Two cores, as everything else here has; one job has run, so that the JVM is there."""
    import millpond

    conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": memory}
    spark = millpond.session(name, **conf, **{"spark.sql.shuffle.partitions": str(PARTITIONS)}, **more)
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(10).count()
    return spark


def jvm_of(spark: Any) -> int:
    """The process id of a session's JVM."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


def peak_mib(pid: int | str = "self") -> int:
    """The most memory that a process had at a time (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def totals(events: Any, *more: Any) -> Any:
    """The query; `more` are other aggregates."""
    from pyspark.sql import functions as F

    return events.groupBy("k").agg(F.count("*").alias("n"), F.sum("a").alias("total"), *more)


def stream(spark: Any, folder: Path, **options: str) -> Any:
    """The query's source."""
    return spark.readStream.schema("k long, a long").options(**options).parquet(str(folder))


def start_job(events: Any, checkpoint: Path) -> Any:
    """The query on its way through all of its input."""
    writer = totals(events).writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def write_state(spark: Any, checkpoint: Path, provider: str, keys: int, *, changed: int = 0) -> None:
    """A checkpoint whose first batch puts all keys; a second one changes some of them.  RocksDB writes no change logs."""
    spark.conf.set(_STORE + "rocksdb.changelogCheckpointing.enabled", "false")
    spark.conf.set(_STORE + "providerClass", PROVIDERS[provider])
    source = checkpoint.with_name(f"{checkpoint.name}-input")
    for count in (keys, changed):
        if count:
            rows = spark.range(0, count, 1, 2).selectExpr("id AS k", "xxhash64(id) % 1000000 AS a")
            rows.write.mode("append").parquet(str(source))
            start_job(stream(spark, source), checkpoint).awaitTermination()


def tree_bytes(folder: Path) -> int:
    """Of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def copied(checkpoint: Path, to: Path) -> Path:
    """A copy that survives a crash: its writes burden nothing that is timed later."""
    subprocess.run(["cp", "-r", str(checkpoint), str(to)], check=True)
    subprocess.run(["sync"], check=True)
    return to

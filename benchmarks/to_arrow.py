"""A whole state as an Arrow table, beside Spark's own `statestore` reader, by turns in one run.

    python benchmarks/to_arrow.py [--keys 1800000] [--rounds 3] [--write]

A Spark job (count, sum and maximum by key, two batches: all keys, then a hundredth of them again) writes the state, with the
HDFS-backed provider, and with RocksDB, its change logs and its snapshots, by a key of type long and by a text. Every reader is
a process of its own, and reads twice: the second time counts, with code that is loaded, compiled and warm on both sides; how
much longer the first took is given beside it. Spark's: `toArrow()` of key and value columns, the whole table in the Python
process, as ours; and, in the same process after it, a write to the `noop` sink, which leaves the table in the JVM. Ours:
`millpond.read_arrow` (no replica) and, from a replica that is there, `Table.to_arrow`. Timed is the read alone, without the
start of the JVM and imports; processor seconds are given beside it, since others may use the machine. Memory is the process's
peak, for Spark that of Python and of the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import write_result

PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb-changelog": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "rocksdb-snapshots": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
KEYS = ("long", "text")
# What the system counts processor time in.
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
READERS = ("spark", "read_arrow", "replica_to_arrow")


def peak_mib(pid: int | str) -> int:
    """The most memory that a process had at a time."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def spark_session() -> Any:
    """Two cores, as everything else here has."""
    import millpond

    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "6g",
        "spark.driver.maxResultSize": "4g",
    }
    spark = millpond.session("to_arrow", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write_states(scratch: str, keys: int) -> None:
    """A checkpoint for each provider and kind of key."""
    from pyspark.sql import functions as F

    spark = spark_session()
    for provider, class_name in PROVIDERS.items():
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", class_name)
        changelog = str(provider == "rocksdb-changelog").lower()
        spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", changelog)
        spark.conf.set("spark.sql.shuffle.partitions", "8")
        for kind in KEYS:
            if Path(scratch, f"{provider}-{kind}").exists():
                continue
            folder = Path(scratch, f"input-{provider}-{kind}")
            schema = "id long, amount long"
            for size in (keys, keys // 100):
                rows = spark.range(0, size, numPartitions=2).withColumn("amount", F.col("id") * 3)
                rows.write.mode("append").parquet(str(folder))
                source = spark.readStream.schema(schema).parquet(str(folder))
                key = F.col("id") if kind == "long" else F.concat(F.lit("/page/"), F.col("id").cast("string"))
                grouped = source.groupBy(key.alias("key")).agg(F.count("*").alias("n"), F.sum("amount"), F.max("amount"))
                writer = grouped.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
                writer.option("checkpointLocation", f"{scratch}/{provider}-{kind}").start().awaitTermination()
    spark.stop()


def processor_seconds(*pids: int) -> float:
    """What processes have used so far, all their threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK_SECONDS


def timed(call: Callable[[], Any], *pids: int) -> tuple[Any, dict[str, float]]:
    """What a call gives the second time, the seconds that it takes, and those that it took the first time."""
    seconds: list[float] = []
    for _ in range(2):
        found = None  # what the first gave is dropped before the second
        began, used = time.perf_counter(), processor_seconds(*pids)
        found = call()
        seconds.append(time.perf_counter() - began)
    return found, {
        "first_seconds": seconds[0],
        "seconds": seconds[1],
        "processor_seconds": processor_seconds(*pids) - used,
    }


def read(reader: str, checkpoint: str, home: str) -> dict[str, dict[str, Any]]:
    """The reads of one process: seconds, rows, peak memory."""
    own = os.getpid()
    if reader == "spark":
        spark = spark_session()
        jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        spark.range(10).toArrow()
        state = spark.read.format("statestore").load(checkpoint).select("key.*", "value.*")
        table, times = timed(state.toArrow, own, jvm)
        collected = {**times, "rows": len(table), "peak_mib": peak_mib(own), "jvm_peak_mib": peak_mib(jvm)}
        _, times = timed(state.write.format("noop").mode("overwrite").save, own, jvm)
        left = {**times, "peak_mib": peak_mib(own), "jvm_peak_mib": peak_mib(jvm)}
        spark.stop()
        return {"spark_to_arrow": collected, "spark_noop": left}
    import numpy as np  # noqa: F401  what every read needs is loaded before
    import pyarrow.compute as pc

    import millpond

    if reader == "read_arrow":
        name = f"{Path(checkpoint).name}.aggregate_0"
        table, times = timed(lambda: millpond.read_arrow(checkpoint, name), own)
        peak = peak_mib(own)
    else:
        with millpond.open(checkpoint, replica_dir=home, wait_seconds=600):
            pass  # built by now; the process that reads it is measured without that
        with millpond.open(checkpoint, replica_dir=home, wait_seconds=600) as pond:
            (name,) = pond.tables()
            table, times = timed(pond[name].to_arrow, own)
            peak = peak_mib(own)
    return {reader: {**times, "rows": len(table), "peak_mib": peak, "check": pc.sum(table.column("count")).as_py()}}


def main() -> None:
    """Write the states, then read each by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_800_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", help="keep the states here, and use those that are there")
    parser.add_argument("--only", nargs="*", help="states to read, such as hdfs-long, where they are in --scratch already")
    parser.add_argument("--readers", nargs="*", default=READERS, choices=READERS, help="who reads; all where none is named")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--write-states", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/to_arrow.json")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("a result has all states: --write goes without --only")
    if options.write_states:
        return write_states(options.write_states, options.keys)
    if options.read:
        print(json.dumps(read(*options.read)))
        return None

    def run(*words: str) -> str:
        return subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True).stdout

    with tempfile.TemporaryDirectory() as temporary:
        scratch = options.scratch or temporary
        if not options.only and not all(Path(scratch, f"{provider}-{kind}").exists() for provider in PROVIDERS for kind in KEYS):
            run("--write-states", scratch, "--keys", str(options.keys))
        variants, rounds = {}, {}
        for provider in PROVIDERS:
            for kind in KEYS:
                runs: dict[str, list[dict[str, Any]]] = {}
                if options.only and f"{provider}-{kind}" not in options.only:
                    continue
                for _ in range(options.rounds):
                    for reader in options.readers:
                        words = (reader, f"{scratch}/{provider}-{kind}", f"{scratch}/home")
                        for name, found in json.loads(run("--read", *words).splitlines()[-1]).items():
                            runs.setdefault(name, []).append(found)
                name = f"{provider}, {kind} key"
                variants[name] = {"load_average": round(os.getloadavg()[0], 1), **summary(runs, options.keys)}
                print(json.dumps({name: variants[name]}, indent=1), flush=True)
                rounds[name] = runs
    result = {
        "what": "all rows of count, sum and maximum by key, as a pyarrow.Table in this process (noop: dropped in the JVM)",
        "keys": options.keys,
        "variants": variants,
    }
    if options.write:
        write_result("to_arrow", result, rounds)
    return None


def summary(runs: dict[str, list[dict[str, Any]]], keys: int) -> dict[str, Any]:
    """Medians, and how many times Spark's rate ours is."""
    out: dict[str, Any] = {}
    for reader, found in runs.items():
        assert all(r.get("rows", keys) == keys for r in found), found
        assert all(r.get("check", keys + keys // 100) == keys + keys // 100 for r in found), found
        out[reader] = {
            "rows_per_second": round(keys / statistics.median(r["seconds"] for r in found)),
            # A read of few rows may end within one tick of the processor's clock.
            "rows_per_processor_second": round(keys / max(TICK_SECONDS, statistics.median(r["processor_seconds"] for r in found))),
            "first_read_to_second": round(statistics.median(r["first_seconds"] / r["seconds"] for r in found), 2),
            "peak_mib": max(r["peak_mib"] for r in found),
        }
        if "jvm_peak_mib" in found[0]:
            out[reader]["jvm_peak_mib"] = max(r["jvm_peak_mib"] for r in found)
    for ours in [reader for reader in ("read_arrow", "replica_to_arrow") if reader in out]:
        for spark in ("spark_to_arrow", "spark_noop"):
            for rate in ("rows_per_second", "rows_per_processor_second"):
                out[ours].setdefault(f"times_{spark}", {})[rate] = round(out[ours][rate] / out[spark][rate], 1)
    return out


if __name__ == "__main__":
    main()

"""Which state store provider is the default: count and sum over a million keys, with each of three, in one run.

    python benchmarks/provider.py [--keys 1000000] [--rows 8000000] [--rounds 2] [--write]

The result: rows a second of each, their ratio to the fastest, and the heap that their state takes.  Figures of two runs can't be
compared; ratios within one can, as far as the load average says that nothing else ran.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from results import write_result

import millpond

_STATE = "spark.sql.streaming.stateStore"
_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_ROCKSDB = {
    f"{_STATE}.providerClass": f"{_PACKAGE}.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
VARIANTS = {
    "hdfs-backed": {f"{_STATE}.providerClass": f"{_PACKAGE}.HDFSBackedStateStoreProvider"},
    "rocksdb with changelog": {**_ROCKSDB, f"{_STATE}.rocksdb.trackTotalNumberOfRows": "true"},
    "rocksdb with changelog, rows not counted": {**_ROCKSDB, f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false"},
}


def main() -> None:
    """Run each variant `--rounds` times, by turns, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/provider.json")
    options = parser.parse_args()
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "8",
    }
    spark = millpond.session("provider benchmark", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    folder = Path(tempfile.mkdtemp(prefix="millpond-provider-"))
    try:
        _input(spark, folder / "input", keys=options.keys, rows=options.rows)
        _run(spark, folder / "input", folder / "warm-up", VARIANTS["hdfs-backed"], files=1)
        for number in range(options.rounds):
            for name, settings in VARIANTS.items():
                measured[name].append(_run(spark, folder / "input", folder / f"{number}-{name}", settings))
                print(name, measured[name][-1], flush=True)
        java = spark._jvm.System.getProperty("java.version")
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    speed = {name: statistics.median(m["rows_per_second"] for m in runs) for name, runs in measured.items()}
    fastest = max(speed.values())
    result = {
        "what": "count and sum by key, update mode, noop sink, 8 batches",
        "java": java,
        "size": {"keys": options.keys, "rows": options.rows, "partitions": 8},
        "variants": {
            name: {
                "rows_per_second": round(speed[name]),
                "ratio": round(speed[name] / fastest, 3),
                "heap_of_state_mib": round(max(m["heap_mib"] for m in runs)),
            }
            for name, runs in measured.items()
        },
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("provider", result, measured)


def _input(spark, folder: Path, *, keys: int, rows: int) -> None:
    """Eight Parquet files; each has every key about as often as the others, in another order."""
    for number in range(8):
        frame = spark.range(rows // 8).selectExpr(f"pmod(hash(id, {number}), {keys}) AS key", "id % 1000 AS amount")
        frame.coalesce(1).write.mode("append").parquet(str(folder))


def _run(spark, source: Path, checkpoint: Path, settings: dict[str, str], *, files: int | None = None) -> dict[str, float]:
    for key, value in settings.items():
        spark.conf.set(key, value)
    stream = spark.readStream.schema("key int, amount long").option("maxFilesPerTrigger", 1).parquet(str(source))
    counted = stream.groupBy("key").agg({"*": "count", "amount": "sum"})
    writer = counted.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start() if files is None else writer.start()
    if files is None:
        query.awaitTermination()
    else:
        while not query.lastProgress or query.lastProgress["batchId"] < files:
            time.sleep(0.1)
        query.stop()
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    seconds = sum(p["durationMs"]["triggerExecution"] for p in progress) / 1000
    # What stays on the heap for the state: providers keep it loaded until they are stopped, as the next variant needs anyway.
    loaded = _heap_mib(spark)
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    heap = loaded - _heap_mib(spark)
    return {"rows_per_second": sum(p["numInputRows"] for p in progress) / seconds, "heap_mib": heap}


def _heap_mib(spark) -> float:
    """The heap in use after a full collection."""
    runtime = spark._jvm.Runtime.getRuntime()
    for _ in range(3):
        spark._jvm.System.gc()
        time.sleep(0.2)
    return (runtime.totalMemory() - runtime.freeMemory()) / 2**20


if __name__ == "__main__":
    main()

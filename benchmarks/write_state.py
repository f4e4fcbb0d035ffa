"""The state of a new job from a past in files, beside a batch job that aggregates these files.

    python benchmarks/write_state.py [--rows 3000000] [--keys 500000] [--rounds 3] [--write]

The past has rows of a key, a time and two numbers, in 8 Parquet files.  Both jobs group by the key, by turns: count, two sums, the
latest time.  The state has 8 partitions.

    batch      Spark's batch job, which writes its result as Parquet
    hdfs       plan_write_state with the HDFS-backed provider, from the plan to the new checkpoint
    rocksdb    the same with RocksDB and change logs

What is timed includes the copy of the past, the run of the query, the decoding of every row of the state, and the sync.
The state has as many rows as the result of the batch job; tests compare what they are.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result

PARTITIONS = 8
STORE = "spark.sql.streaming.stateStore."
PACKAGE = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {"hdfs": "HDFSBackedStateStoreProvider", "rocksdb": "RocksDBStateStoreProvider"}


def query(events: Any) -> Any:
    from pyspark.sql import functions as F

    return events.groupBy("k").agg(F.count("*").alias("n"), F.sum("a").alias("a"), F.sum("b").alias("b"), F.max("t").alias("last"))


def measure(spark: Any, folder: Path, rows: int, keys: int, rounds: int) -> list[dict[str, float]]:
    """Seconds of each job, in each round."""
    from pyspark.sql import functions as F

    import millpond

    numbers = spark.range(0, rows, 1, PARTITIONS)
    columns = (
        (F.hash("id") % keys).cast("long").alias("k"),
        F.timestamp_seconds(F.col("id")).alias("t"),
        (F.xxhash64("id") % 1000).alias("a"),
        F.col("id").alias("b"),
    )
    numbers.select(*columns).write.parquet(str(folder / "past"))
    (folder / "in").mkdir()
    past = spark.read.parquet(str(folder / "past"))
    source = spark.readStream.schema(past.schema).parquet(str(folder / "in"))
    spark.conf.set(STORE + "rocksdb.changelogCheckpointing.enabled", "true")
    spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    found = []
    for number in range(rounds + 1):
        result = folder / "batch"
        began = time.perf_counter()
        query(past).write.parquet(str(result))
        seconds = {"batch": round(time.perf_counter() - began, 3)}
        expected = spark.read.parquet(str(result)).count()
        for name, provider in PROVIDERS.items():
            spark.conf.set(STORE + "providerClass", PACKAGE + provider)
            began = time.perf_counter()
            plan = millpond.plan_write_state(folder / "new", query, past=past, source=source, partitions=PARTITIONS)
            written = plan.run()
            seconds[name] = round(time.perf_counter() - began, 3)
            assert written.rows == expected, (written, expected)
            shutil.rmtree(folder / "new")
        shutil.rmtree(result)
        print(seconds, file=sys.stderr, flush=True)
        if number:  # the first warms the JVM
            found.append(seconds)
    return found


def main() -> None:
    """Measure, and show the ratios."""
    from millpond.spark.session import session

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/write_state.json")
    options = parser.parse_args()
    spark = session("write_state", **{"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "3g"})
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        rounds = measure(spark, Path(folder), options.rows, options.keys, options.rounds)
        spark.stop()
    kinds = ("batch", *PROVIDERS)
    medians = {kind: statistics.median(r[kind] for r in rounds) for kind in kinds}
    result = {
        "what": "seconds of writing a job's state from a past, beside a batch job that aggregates it to Parquet",
        "rows": options.rows,
        "keys": options.keys,
        "median_seconds": medians,
        "rows_per_second": {kind: round(options.rows / seconds) for kind, seconds in medians.items()},
        "ratio_to_batch": {kind: round(statistics.median(r[kind] / r["batch"] for r in rounds), 2) for kind in PROVIDERS},
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("write_state", result, rounds)


if __name__ == "__main__":
    main()

"""What salts are worth: one key in half of all events, and no such key, grouped plainly and salted, in one run.

    python benchmarks/salted.py [--rows 400000] [--keys 20000] [--salts 8] [--rounds 3]

Writes benchmarks/results/salted.json: rows a second of each job and their ratio to plain groupBy, how many rows the fullest
partition would get if Spark didn't combine them before the shuffle, and what a read of one key and of all keys costs.  Figures of
two runs can't be compared; ratios within one can, as far as the load average says that nothing else ran.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from results import machine, write_result

import millpond

PARTITIONS = 8
FILES = 4
HOT = "/hot"
SCHEMA = "page string, visitor long, at timestamp"
# Spark combines the first before the shuffle; the buffers of the second are as large as what they have seen.
AGGREGATES: dict[str, list[Column]] = {}
GROUPINGS = ("plain", "salted", "only the hot key salted")


def main() -> None:
    """Run each job `--rounds` times, by turns, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--salts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "2g"}
    spark = millpond.session("salted benchmark", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    AGGREGATES["count, sum"] = [sf.count("*").alias("hits"), sf.sum("visitor").alias("sum")]
    AGGREGATES["collect_set"] = [sf.collect_set("visitor").alias("visitors")]
    before = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="millpond-salted-"))
    measured: list[dict[str, Any]] = []
    try:
        for stream in ("half in one key", "no hot key"):
            source = folder / stream
            _write(spark, source, options.rows, options.keys, skewed=stream == "half in one key")
            fullest = {name: _fullest(spark, source, name, options.salts) for name in GROUPINGS}
            for name in GROUPINGS:
                _run(spark, source, folder / f"{stream}-{name}-warm-up", name, "count, sum", options.salts)
            for aggregate in AGGREGATES:
                runs: dict[str, list[dict[str, float]]] = {name: [] for name in GROUPINGS}
                for number in range(options.rounds):
                    # Each is the first once: what runs later finds a warmer machine.
                    first = number % len(GROUPINGS)
                    for name in GROUPINGS[first:] + GROUPINGS[:first]:
                        place = folder / f"{stream}-{aggregate}-{name}-{number}"
                        runs[name].append(_run(spark, source, place, name, aggregate, options.salts))
                        print(stream, aggregate, name, runs[name][-1], flush=True)
                plain = statistics.median(r["rows_per_second"] for r in runs["plain"])
                for name, found in runs.items():
                    middle = {fact: statistics.median(r[fact] for r in found) for fact in found[0]}
                    told = {"stream": stream, "aggregate": aggregate, "grouping": name, "rows_in_fullest_partition": fullest[name]}
                    measured.append(told | middle | {"ratio_to_plain": round(middle["rows_per_second"] / plain, 3)})
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "machine": machine(),
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        "rows": options.rows,
        "keys": options.keys,
        "salts": options.salts,
        "partitions": PARTITIONS,
        "batches": FILES,
        "rounds": options.rounds,
        "measured": measured,
    }
    print(write_result("salted", result))


def _write(spark: SparkSession, folder: Path, rows: int, keys: int, *, skewed: bool) -> None:
    """Files of equal size; every row has a time of its own."""
    page = sf.concat(sf.lit("/"), sf.pmod(sf.xxhash64("id"), sf.lit(keys)).cast("string"))
    frame = spark.range(rows).select(
        (sf.when(sf.col("id") % 2 == 0, sf.lit(HOT)).otherwise(page) if skewed else page).alias("page"),
        sf.pmod(sf.hash("id"), sf.lit(rows)).cast("long").alias("visitor"),
        sf.timestamp_micros(sf.col("id") * 1000).alias("at"),
    )
    frame.repartition(FILES).write.parquet(str(folder))


def _grouped(df: DataFrame, grouping: str, salts: int) -> Any:
    if grouping == "plain":
        return df.groupBy("page")
    return millpond.salted(df, by=["page"], salts=salts, hot=None if grouping == "salted" else [HOT])


def _fullest(spark: SparkSession, source: Path, grouping: str, salts: int) -> int:
    """Rows of the fullest partition, where each row is sent for itself."""
    df = spark.read.schema(SCHEMA).parquet(str(source))
    if grouping == "plain":
        placed = df.repartition(PARTITIONS, "page")
    else:
        salt = sf.pmod(sf.xxhash64(*df.columns), sf.lit(salts)).cast("int")
        hot = salt if grouping == "salted" else sf.when(sf.col("page") == HOT, salt).otherwise(sf.lit(0))
        placed = df.withColumn("salt", hot).repartition(PARTITIONS, "salt", "page")
    return int(placed.groupBy(sf.spark_partition_id()).count().agg(sf.max("count")).first()[0])


def _run(spark: SparkSession, source: Path, place: Path, grouping: str, aggregate: str, salts: int) -> dict[str, float]:
    """One job over all files, a batch each, and reads of its table."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    df = _grouped(events, grouping, salts).agg(*AGGREGATES[aggregate])
    with millpond.start(df, table="t", pond=place, partitions=PARTITIONS, trigger="available-now") as job:
        if not job.wait_for_end(timeout_seconds=600):
            raise TimeoutError(place)
    progress = [p for p in job.query.recentProgress if p["numInputRows"]]
    rows = sum(p["numInputRows"] for p in progress)
    seconds = sum(p["durationMs"]["triggerExecution"] for p in progress) / 1000
    with millpond.open(place, replica_dir="memory://") as pond:
        table, some = pond["t"], [f"/{n}" for n in range(200)]
        began = time.perf_counter()
        for page in some:
            table.get(page=page)
        get_seconds = (time.perf_counter() - began) / len(some)
        began = time.perf_counter()
        shown = len(table.scan())
        scan_seconds = time.perf_counter() - began
    return {
        "rows_per_second": round(rows / seconds),
        "table_rows": shown,
        "get_microseconds": round(get_seconds * 1e6, 1),
        "scan_seconds": round(scan_seconds, 3),
    }


if __name__ == "__main__":
    main()

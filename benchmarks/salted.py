"""What salts are worth: one key in half of all events, and no such key, grouped plainly and salted, in one run.

    python benchmarks/salted.py [--rows 400000] [--keys 20000] [--salts 8] [--rounds 3] [--write]

The result: rows a second of each job and their ratio to the plain grouping, how many rows the fullest partition would get if Spark
didn't combine them before the shuffle, the share of the state that lies in the fullest partition, and what a read of one key and of
all keys costs.  Where hot keys are found live, the first batches aren't split.  The last kind is a
function per key (transformWithStateInPandas), which Spark can't combine and `salted` can't merge: its salt is the program's own.
Figures of two runs can't be compared; ratios within one can, as far as the load average says that nothing else ran.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from results import write_result

import millpond
from millpond.catalogue import open_jobs
from millpond.tables.cold.report import inspect_job

PARTITIONS = 8
FILES = 8
HOT = "/hot"
SCHEMA = "page string, visitor long, at timestamp"
# Spark combines the first before the shuffle; the buffers of the second are as large as what they have seen.
AGGREGATES: dict[str, list[Column]] = {}
FUNCTION = "a function per key"
PLAIN, SALTED, LISTED, LIVE = "plain", "salted", "only the hot key salted", "hot keys found live"
GROUPINGS = {"count, sum": (PLAIN, SALTED, LISTED, LIVE), "collect_set": (PLAIN, SALTED, LISTED, LIVE), FUNCTION: (PLAIN, LISTED)}
GROUPS = 500  # that the other pages fall into for the function
SHARE = 0.05  # of the rows, that makes a key hot


def main() -> None:
    """Run each job `--rounds` times, by turns, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--salts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/salted.json")
    options = parser.parse_args()
    conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "2g"}
    spark = millpond.session("salted benchmark", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    AGGREGATES["count, sum"] = [sf.count("*").alias("hits"), sf.sum("visitor").alias("sum")]
    AGGREGATES["collect_set"] = [sf.collect_set("visitor").alias("visitors")]
    folder = Path(tempfile.mkdtemp(prefix="millpond-salted-"))
    measured: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    try:
        for stream in ("half in one key", "no hot key"):
            source = folder / stream
            _write(spark, source, options.rows, options.keys, skewed=stream == "half in one key")
            fullest = {name: _fullest(spark, source, name, options.salts) for name in (PLAIN, SALTED, LISTED)}
            for kind, groupings in GROUPINGS.items():
                for name in groupings:
                    _run(spark, source, folder / f"{stream}-{kind}-{name}-warm-up", name, kind, options.salts)
                runs: dict[str, list[dict[str, float]]] = {name: [] for name in groupings}
                for number in range(options.rounds):
                    # Each is the first once: what runs later finds a warmer machine.
                    first = number % len(groupings)
                    for name in groupings[first:] + groupings[:first]:
                        place = folder / f"{stream}-{kind}-{name}-{number}"
                        runs[name].append(_run(spark, source, place, name, kind, options.salts))
                        shutil.rmtree(place)
                        print(stream, kind, name, runs[name][-1], flush=True)
                plain = statistics.median(r["rows_per_second"] for r in runs[PLAIN])
                for name, found in runs.items():
                    middle = {fact: statistics.median(r[fact] for r in found) for fact in found[0]}
                    facts = {"stream": stream, "aggregate": kind, "grouping": name, "rows_in_fullest_partition": fullest.get(name)}
                    rounds.append({**facts, "each": found})
                    measured.append(facts | middle | {"ratio_to_plain": round(middle["rows_per_second"] / plain, 3)})
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "rows": options.rows,
        "keys": options.keys,
        "salts": options.salts,
        "partitions": PARTITIONS,
        "batches": FILES,
        "groups_of_function": GROUPS + 1,
        "share_that_makes_a_key_hot": SHARE,
        "measured": measured,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("salted", result, rounds)


def _write(spark: SparkSession, folder: Path, rows: int, keys: int, *, skewed: bool) -> None:
    """Files of equal size; every row has a time of its own."""
    page = sf.concat(sf.lit("/"), sf.pmod(sf.xxhash64("id"), sf.lit(keys)).cast("string"))
    frame = spark.range(rows).select(
        (sf.when(sf.col("id") % 2 == 0, sf.lit(HOT)).otherwise(page) if skewed else page).alias("page"),
        sf.pmod(sf.hash("id"), sf.lit(rows)).cast("long").alias("visitor"),
        sf.timestamp_micros(sf.col("id") * 1000).alias("at"),
    )
    frame.repartition(FILES).write.parquet(str(folder))


def _frame(df: DataFrame, grouping: str, kind: str, salts: int, place: Path) -> DataFrame:
    if kind == FUNCTION:
        return _counted_by_function(df, salts if grouping == LISTED else 1)
    if grouping == PLAIN:
        return df.groupBy("page").agg(*AGGREGATES[kind])
    hot = {SALTED: None, LISTED: [HOT], LIVE: millpond.HotKeys(place, "t", share=SHARE)}[grouping]
    return millpond.salted(df, by=["page"], salts=salts, hot=hot).agg(*AGGREGATES[kind])


def _counted_by_function(df: DataFrame, salts: int) -> DataFrame:
    """Count and sum of each group of pages, or of each part of the hot one, by a function of one's own."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    class Counted(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._held = handle.getValueState("held", "hits long, sum long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002, N802, N803 Spark's names
            hits, total = self._held.get() if self._held.exists() else (0, 0)
            for frame in rows:
                hits, total = hits + len(frame), total + int(frame["visitor"].sum())
            self._held.update((hits, total))
            yield pd.DataFrame({"salt": [key[0]], "page": [key[1]], "hits": [hits], "sum": [total]})

        def close(self) -> None: ...

    # A call costs so much that 20,000 keys a batch would hide the rows.
    page = sf.concat(sf.lit("/"), sf.pmod(sf.xxhash64("page"), sf.lit(GROUPS)).cast("string"))
    df = df.withColumn("page", sf.when(sf.col("page") == HOT, sf.col("page")).otherwise(page))
    salt = sf.pmod(sf.xxhash64("page", "visitor", "at"), sf.lit(salts)).cast("int")
    parts = df.withColumn("salt", sf.when(sf.col("page") == HOT, salt).otherwise(sf.lit(0)))
    return parts.groupBy("salt", "page").transformWithStateInPandas(
        Counted(), "salt int, page string, hits long, sum long", outputMode="update", timeMode="none"
    )


def _fullest(spark: SparkSession, source: Path, grouping: str, salts: int) -> int:
    """Rows of the fullest partition, where each row is sent for itself."""
    df = spark.read.schema(SCHEMA).parquet(str(source))
    if grouping == PLAIN:
        placed = df.repartition(PARTITIONS, "page")
    else:
        salt = sf.pmod(sf.xxhash64(*df.columns), sf.lit(salts)).cast("int")
        hot = salt if grouping == SALTED else sf.when(sf.col("page") == HOT, salt).otherwise(sf.lit(0))
        placed = df.withColumn("salt", hot).repartition(PARTITIONS, "salt", "page")
    return int(placed.groupBy(sf.spark_partition_id()).count().agg(sf.max("count")).first()[0])


def _run(spark: SparkSession, source: Path, place: Path, grouping: str, kind: str, salts: int) -> dict[str, float]:
    """One job over all files, a batch each, and reads of its table."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    df = _frame(events, grouping, kind, salts, place)
    with millpond.start(df, table="t", pond=place, partitions=PARTITIONS, trigger="available-now") as job:
        if not job.wait_for_end(timeout_seconds=600):
            raise TimeoutError(place)
    progress = [p for p in job.query.recentProgress if p["numInputRows"]]
    rows = sum(p["numInputRows"] for p in progress)
    seconds = sum(p["durationMs"]["triggerExecution"] for p in progress) / 1000
    (report,) = [inspect_job(folder) for folder in open_jobs(place)]
    held = [p.row_bytes or 0 for p in report.stores[0].partitions]
    facts = {"rows_per_second": round(rows / seconds), "state_in_fullest_partition": round(max(held) / sum(held), 3)}
    if kind == FUNCTION:
        return facts
    with millpond.open(place, replica_dir="memory://") as pond:
        table, some = pond["t"], [f"/{n}" for n in range(200)]
        began = time.perf_counter()
        for page in some:
            table.get(page=page)
        get_seconds = (time.perf_counter() - began) / len(some)
        began = time.perf_counter()
        shown = len(table.scan())
        scan_seconds = time.perf_counter() - began
    return facts | {
        "table_rows": shown,
        "get_microseconds": round(get_seconds * 1e6, 1),
        "scan_seconds": round(scan_seconds, 3),
        "hot_keys": len(report.hot_keys),
    }


if __name__ == "__main__":
    main()

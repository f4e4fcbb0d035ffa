"""The stream of a table's changes beside Spark's own file source of the same rows, in one run.

    python benchmarks/source.py [--keys 200000] [--batches 5] [--changed 100000] [--rounds 3] [--write]

A job counts events by key in so many batches, each of which changes so many rows.  Then, by turns, streams with the trigger
available-now and a sink that drops all rows:

    changes     `millpond.read_changes`: the changes of each batch but the first, a micro-batch each
    json        Spark's file source of the same rows (key, kind, batch, old and new values) as JSON, a file for each task of a batch
    parquet     the same as Parquet
    rows        a batch read, `spark.read.format("millpond")`, of the whole table
    rows_files  Spark's batch read of the same rows as Parquet

Fairness: all sides run in one session on two cores, and read as many micro-batches.  The time is that of the whole query, from its
start to its end.  The number of rows of each side is compared.  Ratios are medians of the rounds' own.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import write_result

import millpond

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4


def write_job(spark: SparkSession, folder: Path, keys: int, batches: int, changed: int) -> None:
    """The table `counts` after so many batches; the first one has all keys."""
    from pyspark.sql import functions as F

    begun = len(list(folder.glob("in/*")))
    for number in range(begun, batches):
        first = spark.range(keys) if number == 0 else spark.range(changed).select(((F.col("id") * 7 + number) % keys).alias("id"))
        rows = first.select(F.concat(F.lit("/page/"), F.col("id")).alias("page"), (F.col("id") % 1000).alias("ms"))
        rows.coalesce(1).write.parquet(str(folder / "in" / f"{number:03d}"))
        events = spark.readStream.schema(rows.schema).parquet(str(folder / "in" / "*"))
        counted = events.groupBy("page").agg(F.count("*").alias("hits"), F.sum("ms").alias("ms"), F.max("ms").alias("most"))
        job = millpond.start(counted, table="counts", pond=folder / "pond", trigger="available-now", partitions=PARTITIONS)
        job.query.awaitTermination()
        job.stop()


def changes_of(spark: SparkSession, folder: Path) -> DataFrame:
    return millpond.read_changes(spark, folder / "pond", "counts", maxBatchesPerTrigger=1)


def run(frame: DataFrame, checkpoint: Path) -> tuple[float, int]:
    """Seconds of a stream until its end, and its rows."""
    began = time.perf_counter()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - began, sum(progress["numInputRows"] for progress in query.recentProgress)


def read(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--changed", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "3g", "spark.local.dir": name}
        spark = millpond.session("source", **conf)
        spark.sparkContext.setLogLevel("OFF")
        try:
            rounds = measure(spark, folder, options)
        finally:
            spark.stop()
    figures = {
        "keys": options.keys,
        "batches": options.batches,
        "changed_rows_per_batch": options.changed,
        "rows_per_second": {
            side: round(statistics.median(one["rows"] / one[side] for one in rounds)) for side in ("changes", "json", "parquet")
        },
        "changes_to_json": round(statistics.median(one["json"] / one["changes"] for one in rounds), 2),
        "changes_to_parquet": round(statistics.median(one["parquet"] / one["changes"] for one in rounds), 2),
        "rows_to_parquet": round(statistics.median(one["rows_files"] / one["rows_read"] for one in rounds), 2),
    }
    print(figures)
    if options.write:
        write_result("source", figures, rounds)


def measure(spark: SparkSession, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    stood = folder / "stood"
    write_job(spark, folder, options.keys, 1, options.changed)
    run(changes_of(spark, folder), stood)  # a query that has read the whole table as of the first batch
    write_job(spark, folder, options.keys, options.batches + 1, options.changed)
    stream = changes_of(spark, folder)

    def keep(frame: DataFrame, _: int) -> None:
        frame.persist()
        for kind in ("json", "parquet"):
            frame.repartition(PARTITIONS).write.format(kind).mode("append").save(str(folder / kind))
        frame.unpersist()

    shutil.copytree(stood, folder / "kept")
    kept = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "kept"))
    kept.trigger(availableNow=True).start().awaitTermination()
    table = spark.read.format("millpond").options(pond=str(folder / "pond"), table="counts")
    table.load().write.parquet(str(folder / "rows"))
    start = folder / "start"
    rounds = []
    for number in range(-1, options.rounds):  # the first round warms up
        one: dict[str, Any] = {}
        shutil.copytree(stood, start / f"changes-{number}")
        one["changes"], one["rows"] = run(changes_of(spark, folder), start / f"changes-{number}")
        for kind in ("json", "parquet"):
            files = (
                spark.readStream.schema(stream.schema)
                .format(kind)
                .option("maxFilesPerTrigger", PARTITIONS)
                .load(str(folder / kind))
            )
            one[kind], count = run(files, start / f"{kind}-{number}")
            assert count == one["rows"], (kind, count, one["rows"])
        one["rows_read"], one["rows_files"] = read(table.load()), read(spark.read.parquet(str(folder / "rows")))
        if number >= 0:
            rounds.append(one)
    assert spark.read.parquet(str(folder / "rows")).agg(F.count("*")).first()[0] == options.keys
    return rounds


if __name__ == "__main__":
    main()

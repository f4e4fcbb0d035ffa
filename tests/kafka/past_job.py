"""The jobs of test_past.py: one begins with its past, the other reads the whole topic.  They need jars, so a process of their own.

python past_job.py JARS BROKER TOPIC ENDS FOLDER

ENDS is where the past ends, as Spark's JSON of offsets.  The last line of output is what both jobs have found, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from millpond.errors import MillpondError
from millpond.spark.java import require_java

COLUMNS = ("cast(value as string) page", "timestamp as time", "partition")


def query(events: DataFrame) -> DataFrame:
    return events.groupBy("page", "partition").agg(F.count("*").alias("hits"), F.max("time").alias("last"))


def main(jars: str, broker: str, topic: str, ends: str, folder: str) -> None:
    require_java()
    builder = SparkSession.builder.appName("past of a topic").config("spark.master", "local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(str(p) for p in sorted(Path(jars).glob("*.jar"))))
    spark = builder.config("spark.driver.memory", "1g").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    source = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="40").load().selectExpr(*COLUMNS)
    past = spark.read.format("kafka").options(**options, endingOffsets=ends).load().selectExpr(*COLUMNS)
    new, undisturbed = Path(folder) / "new", Path(folder) / "undisturbed"

    def plan(offsets: str) -> Any:
        return millpond.plan_write_state(new, query, past=past, source=source, offsets=offsets, partitions=2)

    def run(checkpoint: Path) -> int:
        """Read the rest of the topic; returns how many records that were."""
        writer = query(source).writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
        running = writer.trigger(availableNow=True).start()
        running.awaitTermination()
        return sum(progress["numInputRows"] for progress in running.recentProgress)

    def state(checkpoint: Path) -> list[str]:
        return sorted(repr((row.key, row.value)) for row in spark.read.format("statestore").load(str(checkpoint)).collect())

    refused = []
    for wrong in ('{"elsewhere":{"0":1}}', "next week", '{"' + topic + '":{"0":1}}'):
        try:
            plan(wrong)
        except MillpondError as error:
            refused.append(error.condition)
    latest = json.loads(plan("latest").beginning.offset)
    written = plan(ends).run()
    counted = {(row["page"], row["partition"]): row["hits"] for row in query(past).collect()}
    rows = spark.read.format("statestore").load(str(new)).collect()
    as_batch = {(row.key[0], row.key[1]): row.value[0] for row in rows} == counted
    read = run(new)
    run(undisturbed)
    found = {
        "refused": refused,
        "latest": latest,
        "offsets": written.offsets,
        "as_batch": as_batch,
        "read": read,
        "new": state(new),
        "undisturbed": state(undisturbed),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

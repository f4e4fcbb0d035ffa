"""The jobs of test_savepoint.py, on one topic: one runs to its end, others go on from a savepoint of it, in several forms.

python savepoint_job.py JARS BROKER TOPIC FOLDER

They need jars, so a process of their own.  The last line of output is what they have found, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from millpond.spark.java import require_java

STORE = "spark.sql.streaming.stateStore."
PACKAGE = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {"hdfs": f"{PACKAGE}HDFSBackedStateStoreProvider", "rocksdb": f"{PACKAGE}RocksDBStateStoreProvider"}
FIRST_BATCH = 3


def query(events: DataFrame) -> DataFrame:
    return events.groupBy("page", "partition").agg(F.count("*").alias("hits"), F.max("offset").alias("last"))


def main(jars: str, broker: str, topic: str, folder: str) -> None:
    require_java()
    builder = SparkSession.builder.appName("savepoints of a topic").config("spark.master", "local[2]")
    builder = builder.config("spark.jars", ",".join(str(p) for p in sorted(Path(jars).glob("*.jar"))))
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    spark = builder.config("spark.sql.shuffle.partitions", "2").config(f"{STORE}minDeltasForSnapshot", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set(f"{STORE}rocksdb.changelogCheckpointing.enabled", "true")
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    columns = ("cast(value as string) page", "partition", "offset")
    source = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="40").load().selectExpr(*columns)

    def start(checkpoint: Path) -> Any:
        writer = query(source).writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
        return writer.trigger(processingTime="0 seconds").start()

    def run(checkpoint: Path) -> int:
        """To the end of the topic; returns how many records that were."""
        running = start(checkpoint)
        running.processAllAvailable()
        running.stop()
        return sum(progress["numInputRows"] for progress in running.recentProgress)

    def state(checkpoint: Path) -> list[Any]:
        rows = spark.read.format("statestore").load(str(checkpoint)).collect()
        return sorted([*row.key, *row.value] for row in rows)

    batch = spark.read.format("kafka").options(**options).load().selectExpr(*columns)
    found: dict[str, Any] = {"batch": sorted(list(row) for row in query(batch).collect())}
    for provider, provider_class in PROVIDERS.items():
        spark.conf.set(f"{STORE}providerClass", provider_class)
        base = Path(folder) / provider
        running = start(base / "job")
        while running.lastProgress is None or running.lastProgress["batchId"] < FIRST_BATCH:
            assert running.exception() is None
            time.sleep(0.01)
        saved = millpond.plan_savepoint(base / "job", "meanwhile").run()
        assert running.isActive
        running.processAllAvailable()
        running.stop()
        other = "hdfs" if provider == "rocksdb" else "rocksdb"
        forms: dict[str, dict[str, Any]] = {
            "as-it-was": {},
            "five": {"partitions": 5},
            "other": {"provider": other, "partitions": 3},
        }
        read = {}
        for name, form in forms.items():
            millpond.plan_restore(base / "job", "meanwhile", base / name, **form).run()
            read[name] = run(base / name)
        millpond.plan_savepoint(base / "five", "again").run()
        millpond.plan_restore(base / "five", "again", base / "three", partitions=3).run()
        assert run(base / "three") == 0
        found[provider] = {
            "offsets": saved.manifest.offsets["0"][topic],
            "problems": len(millpond.verify_savepoint(saved).problems),
            "read": read,
            "states": {name: state(base / name) for name in ("job", *forms, "three")},
        }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

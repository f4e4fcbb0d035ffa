"""The job of test_own_writes.py, which counts records by their value.  It runs in its own process because it needs jars.

python kafka_job.py JARS BROKER TOPIC POND
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millpond
from millpond.spark.java import require_java


def main(jars: str, broker: str, topic: str, pond: str) -> None:
    require_java()
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(str(p) for p in sorted(Path(jars).glob("*.jar"))),
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.appName("kafka job")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)  # a topic's records come in several batches
        .load()
    )
    counts = records.groupBy(F.col("value").cast("string").alias("page")).agg(F.count("*").alias("hits"))
    millpond.start(counts, table="page_views", pond=pond, partitions=2, strict=True)
    print("started", flush=True)
    time.sleep(600)  # until a test ends it


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4])

"""The job of test_s3a.py: it counts numbers by their remainder, with its checkpoint on S3.  It has its own process because of jars.

python s3a_job.py JARS ENDPOINT CHECKPOINT BATCHES
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millpond
from millpond.spark.java import require_java

ROWS_PER_BATCH = 500
REMAINDERS = 97
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main(jars: str, endpoint: str, checkpoint: str, batches: int) -> None:
    require_java()
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(str(p) for p in sorted(Path(jars).glob("*.jar"))),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Spark writes snapshots and cleans up while Millpond follows.
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "3s",
        "spark.sql.streaming.minBatchesToRetain": "4",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": "test",
        "spark.hadoop.fs.s3a.secret.key": "test",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        # Hadoop's default since 3.5 reads ahead for Parquet, and needs an asynchronous client.
        "spark.hadoop.fs.s3a.input.stream.type": "classic",
    }
    builder = SparkSession.builder.appName("s3a job")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).option("numPartitions", 2).load()
    counts = numbers.groupBy((F.col("value") % REMAINDERS).alias("k")).agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    query = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint).start()
    millpond.publish(query, table="counts", strict=True)
    print("started", flush=True)
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < batches):
        time.sleep(0.05)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

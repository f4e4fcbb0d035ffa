"""The job of test_s3a.py: it counts numbers by their remainder, with its checkpoint on S3.  It has its own process because of jars.

python s3a_job.py JARS ENDPOINT CHECKPOINT BATCHES [MASTER PARTITIONS [SETTING=VALUE...]]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millpond
from millpond.spark.java import require_java

sys.path.insert(0, str(Path(__file__).parent.parent))
from servers.s3a import s3a_conf

ROWS_PER_BATCH = 500
REMAINDERS = 97
# In the environment: a file for which it goes on, also after its last batch.
UNTIL = "MILLPOND_TEST_UNTIL"
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main(
    jars: str, endpoint: str, checkpoint: str, batches: int, master: str = "local[2]", partitions: str = "2", *settings: str
) -> None:
    require_java()
    conf = {
        "spark.master": master,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(str(p) for p in sorted(Path(jars).glob("*.jar"))),
        "spark.sql.shuffle.partitions": partitions,
        "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Spark writes snapshots and cleans up while Millpond follows.
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "3s",
        "spark.sql.streaming.minBatchesToRetain": "4",
        **s3a_conf(endpoint),
        **dict(setting.split("=", 1) for setting in settings),
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
    until = os.environ.get(UNTIL, "")
    while query.isActive and (
        query.lastProgress is None or query.lastProgress["batchId"] < batches or (until and not os.path.exists(until))
    ):
        time.sleep(0.05)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])

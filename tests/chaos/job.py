"""The job of the chaos: `millpond run job.py BROKER TOPIC POND ENDPOINT MASTER STATE JARS…`.

It reads a topic of two partitions, whose records each have some events, and counts them as the soak's job does. Its executors are
those of a cluster, its checkpoint is on S3.
"""

from __future__ import annotations

import sys
from pathlib import Path

from live_jobs.quick_java import QUICK_JAVA
from servers.s3a import s3a_conf
from soak.job import EVENT, start_views
from soak.reader import RETENTION

PARTITIONS = 6
# Records of one batch.
BATCH = 4
_STATE = "spark.sql.streaming.stateStore"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
STATES = {
    "hdfs": {f"{_STATE}.providerClass": f"{_PROVIDERS}.HDFSBackedStateStoreProvider"},
    "changelog": {
        f"{_STATE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider",
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    },
    "fenced": {f"{_STATE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider"},
}


def main(broker: str, topic: str, pond: str, endpoint: str, master: str, state: str, *jars: str) -> None:
    """Start the job."""
    from pyspark.sql import functions as F

    import millpond

    conf = {
        "spark.master": master,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA["spark.driver.extraJavaOptions"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars": ",".join(str(jar) for folder in jars for jar in sorted(Path(folder).glob("*.jar"))),
        "spark.task.maxFailures": "8",
        "spark.sql.streaming.minBatchesToRetain": "10",
        f"{_STATE}.maintenanceInterval": "3s",
        f"{_STATE}.minDeltasForSnapshot": "4",
        **STATES[state],
        **QUICK_JAVA,
        **s3a_conf(endpoint),
    }
    spark = millpond.session("chaos", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
    records = records.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH)
    parsed = records.load().select(F.from_json(F.col("value").cast("string"), f"array<struct<{_fields(EVENT)}>>").alias("events"))
    events = parsed.select(F.inline("events"))
    start_views(events, pond, partitions=PARTITIONS, trigger="1 second", retention=RETENTION, fenced=state == "fenced")


def _fields(schema: str) -> str:
    """A schema as the members of a struct."""
    return ", ".join(column.replace(" ", ": ", 1) for column in schema.split(", "))


if __name__ == "__main__":
    main(*sys.argv[1:])

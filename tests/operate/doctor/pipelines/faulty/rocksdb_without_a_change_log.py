"""snapshots-only: RocksDB as Spark's default has it."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = (
    SparkSession.builder.appName("rocksdb_without_a_change_log")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "false")
    .getOrCreate()
)
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
counts = events.groupBy("page").count()
query = counts.writeStream.outputMode("update").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

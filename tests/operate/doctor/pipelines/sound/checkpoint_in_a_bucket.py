"""A cluster, and a checkpoint that all machines reach; a disk is for trials on one machine."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("checkpoint_in_a_bucket").master("yarn").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
query = (
    events.groupBy("page")
    .count()
    .writeStream.outputMode("update")
    .format("parquet")
    .option("checkpointLocation", CHECKPOINT)
    .start("/out")
)
query.awaitTermination()

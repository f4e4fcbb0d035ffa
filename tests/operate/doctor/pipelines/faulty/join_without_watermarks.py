"""state-unbounded: a join that keeps both sides."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("join_without_watermarks").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
clicks = spark.readStream.schema("user string, link string, clicked timestamp").parquet("/data/clicks")
both = events.join(clicks, "user")
both.writeStream.format("parquet").option("checkpointLocation", CHECKPOINT).toTable("joined")
spark.streams.awaitAnyTermination()

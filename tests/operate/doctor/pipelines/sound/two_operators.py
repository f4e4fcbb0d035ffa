"""Duplicates end by the watermark; the pages that are counted after them are some."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("two_operators").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
once = events.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["user", "page"])
query = (
    once.groupBy("page")
    .count()
    .writeStream.outputMode("update")
    .format("parquet")
    .option("checkpointLocation", CHECKPOINT)
    .start("/out")
)
query.awaitTermination()

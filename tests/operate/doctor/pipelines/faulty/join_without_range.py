"""watermark-unused: watermarks on both sides, and no range of time."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("join_without_range").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
clicks = spark.readStream.schema("user string, clicked timestamp").parquet("/data/clicks").withWatermark("clicked", "5 minutes")
both = events.withWatermark("at", "5 minutes").join(clicks, "user")
query = both.writeStream.format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

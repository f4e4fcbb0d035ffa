"""A join of windows, whose watermark is in the key."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("join_by_window").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
clicks = spark.readStream.schema("user string, clicked timestamp").parquet("/data/clicks").withWatermark("clicked", "5 minutes")
left = events.withWatermark("at", "5 minutes").withColumn("w", F.window("at", "1 hour")).select("user", "w")
right = clicks.withColumn("w", F.window("clicked", "1 hour")).select("user", "w")
query = left.join(right, ["user", "w"]).writeStream.format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

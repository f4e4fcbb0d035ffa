"""watermark-unused: it comes after the only operator with state."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("watermark_after_the_state").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
latest = events.groupBy("user").agg(F.max("at").alias("last")).withWatermark("last", "1 hour")
query = latest.writeStream.outputMode("update").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

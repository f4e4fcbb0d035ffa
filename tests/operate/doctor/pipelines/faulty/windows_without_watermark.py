"""state-unbounded: windows, and no watermark."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("windows_without_watermark").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
counts = events.groupBy(F.window("at", "10 minutes"), "page").count()
query = counts.writeStream.outputMode("update").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

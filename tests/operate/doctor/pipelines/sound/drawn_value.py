"""A value is drawn, and no key."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("drawn_value").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
some = events.withColumn("lot", F.rand()).withWatermark("at", "1 hour").groupBy(F.window("at", "1 hour"), "page").agg(F.max("lot"))
query = some.writeStream.outputMode("update").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

"""drawn-key: duplicates told by an id that is made here."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("drawn_id").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
once = events.withColumn("id", F.expr("uuid()")).withWatermark("at", "1 hour").dropDuplicates(["id", "at"])
query = once.writeStream.format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

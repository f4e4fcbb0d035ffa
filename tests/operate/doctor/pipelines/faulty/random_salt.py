"""drawn-key: a salt that is another one when a task runs again."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("random_salt").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
salted = events.withColumn("salt", (F.rand() * 8).cast("int"))
parts = salted.groupBy("salt", "page").count()
query = parts.writeStream.outputMode("update").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

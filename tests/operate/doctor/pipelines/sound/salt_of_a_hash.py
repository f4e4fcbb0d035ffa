"""A salt that each run gives again."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("salt_of_a_hash").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
salted = events.withColumn("salt", F.abs(F.xxhash64("user", "at")) % 8)
query = (
    salted.groupBy("salt", "page")
    .count()
    .writeStream.outputMode("update")
    .format("parquet")
    .option("checkpointLocation", CHECKPOINT)
    .start("/out")
)
query.awaitTermination()

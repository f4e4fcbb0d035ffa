"""state-unbounded: dropDuplicates remembers every id."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("dedupe_for_ever").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
once = events.dropDuplicates(["user", "at"])
query = once.writeStream.format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

"""events-kept: a list that is only counted."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("size_of_a_list").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
visits = events.withWatermark("at", "1 hour").groupBy(F.window("at", "1 hour"), "user").agg(F.collect_list("page").alias("pages"))
counts = visits.select("window", "user", F.size("pages").alias("visits"))
query = counts.writeStream.outputMode("append").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

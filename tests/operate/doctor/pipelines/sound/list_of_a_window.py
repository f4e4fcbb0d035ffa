"""A list that a window ends, and that is read."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("list_of_a_window").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
visits = events.withWatermark("at", "1 hour").groupBy(F.window("at", "1 hour"), "user").agg(F.collect_list("page").alias("pages"))
rows = visits.select("user", "pages", F.size("pages").alias("n"))
query = rows.writeStream.outputMode("append").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

"""unread-column: a struct of three fields, of which one is read."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("fields_that_nobody_reads").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
last = events.groupBy("user").agg(F.max_by(F.struct("page", "amount", "at"), "at").alias("last"))
pages = last.select("user", "last.page")
query = pages.writeStream.outputMode("update").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

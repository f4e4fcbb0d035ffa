"""A count for each page, of which there are some."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("counts_by_page").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
counts = events.groupBy("page").agg(F.count("*").alias("hits"), F.sum("amount").alias("spent"))
query = (
    counts.writeStream.outputMode("update")
    .format("parquet")
    .option("checkpointLocation", CHECKPOINT)
    .trigger(processingTime="1 minute")
    .start("/out")
)
query.awaitTermination()

"""A struct of which each field is read somewhere."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("every_field_read").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
last = events.groupBy("user").agg(F.last(F.struct("page", "amount")).alias("last")).where("last.amount > 0")
query = (
    last.select("user", "last.page")
    .writeStream.outputMode("update")
    .format("parquet")
    .option("checkpointLocation", CHECKPOINT)
    .start("/out")
)
query.awaitTermination()

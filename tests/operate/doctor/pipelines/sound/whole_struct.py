"""A struct that is read as a whole."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("whole_struct").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
last = events.groupBy("user").agg(F.max_by(F.struct("page", "amount"), "at").alias("last"))
query = (
    last.select("user", "last", "last.page")
    .writeStream.outputMode("update")
    .format("parquet")
    .option("checkpointLocation", CHECKPOINT)
    .start("/out")
)
query.awaitTermination()

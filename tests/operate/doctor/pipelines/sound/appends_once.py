"""Rows that carry the batch's id, and a target that knows the last one."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("appends_once").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")


def write(rows, batch_id):
    if batch_id > newest():
        rows.withColumn("batch", F.lit(batch_id)).write.mode("append").saveAsTable("counts")


def newest():
    return -1


query = (
    events.groupBy("page")
    .count()
    .writeStream.outputMode("update")
    .foreachBatch(write)
    .option("checkpointLocation", CHECKPOINT)
    .start()
)
query.awaitTermination()

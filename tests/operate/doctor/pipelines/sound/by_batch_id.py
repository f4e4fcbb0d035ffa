"""A function that overwrites what an earlier try of the batch wrote."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("by_batch_id").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")


def write(rows, batch_id):
    rows.write.mode("overwrite").parquet(f"s3a://bucket/out/batch={batch_id}")


query = (
    events.groupBy("page")
    .count()
    .writeStream.outputMode("update")
    .foreachBatch(write)
    .option("checkpointLocation", CHECKPOINT)
    .start()
)
query.awaitTermination()

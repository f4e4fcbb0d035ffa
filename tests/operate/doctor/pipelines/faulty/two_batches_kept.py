"""retention-short: Spark keeps the files of two batches."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("two_batches_kept").config("spark.sql.streaming.minBatchesToRetain", 2).getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
counts = events.groupBy("page").count()
query = (
    counts.writeStream.outputMode("update")
    .format("parquet")
    .option("checkpointLocation", CHECKPOINT)
    .trigger(processingTime="2 seconds")
    .start("/out")
)
query.awaitTermination()

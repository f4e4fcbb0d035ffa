"""checkpoint-local: a folder of one machine, in a cluster."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("checkpoint_of_the_driver").master("spark://master:7077").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
query = (
    events.groupBy("page")
    .count()
    .writeStream.outputMode("update")
    .format("parquet")
    .option("checkpointLocation", "file:///var/checkpoints/job")
    .start("/out")
)
query.awaitTermination()

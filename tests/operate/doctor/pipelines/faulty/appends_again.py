"""sink-repeats: a batch that runs again is appended again."""

from pyspark.sql import SparkSession

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("appends_again").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")


def write(rows, batch_id):
    rows.write.format("jdbc").option("url", "jdbc:postgresql://db/x").option("dbtable", "counts").mode("append").save()


query = (
    events.groupBy("page")
    .count()
    .writeStream.outputMode("update")
    .foreachBatch(write)
    .option("checkpointLocation", CHECKPOINT)
    .start()
)
query.awaitTermination()

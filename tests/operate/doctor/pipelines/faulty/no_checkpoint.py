"""checkpoint-missing: a function gets batches, and nothing is kept."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("no_checkpoint").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")


def show(rows, batch_id):
    print(batch_id, rows.count())


query = events.groupBy("page").count().writeStream.outputMode("update").foreachBatch(show).start()
query.awaitTermination()

"""The console, on one machine, without a checkpoint."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("a_trial").master("local[2]").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
query = events.groupBy("page").count().writeStream.outputMode("complete").format("console").start()
query.awaitTermination()

"""watermark-unused: the output mode complete keeps all windows."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("complete_mode").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
counts = events.withWatermark("at", "10 minutes").groupBy(F.window("at", "1 hour")).count()
query = counts.writeStream.outputMode("complete").format("console").option("checkpointLocation", CHECKPOINT).start()
query.awaitTermination()

"""watermark-unused: the window is of another column than the watermark."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("watermark_lost_by_a_cast").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
marked = events.withWatermark("at", "10 minutes").withColumn("minute", F.date_trunc("minute", "at").cast("timestamp"))
counts = marked.groupBy("minute", "page").count()
query = (
    counts.writeStream.outputMode("update").format("kafka").option("topic", "t").option("checkpointLocation", CHECKPOINT).start()
)
query.awaitTermination()

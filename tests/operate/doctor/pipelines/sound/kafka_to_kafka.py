"""Kafka's columns are known without a broker."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("kafka_to_kafka").getOrCreate()
events = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "kafka:9092").option("subscribe", "events").load()
page = F.get_json_object(F.col("value").cast("string"), "$.page")
parsed = events.select(F.col("key").cast("string").alias("user"), page.alias("page"), "timestamp")
counts = parsed.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute"), "page").count()
rows = counts.select(F.to_json(F.struct("window", "page", "count")).alias("value"))
query = (
    rows.writeStream.outputMode("update").format("kafka").option("topic", "counts").option("checkpointLocation", CHECKPOINT).start()
)
query.awaitTermination()

"""Sessions that end by the watermark."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("sessions").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
sessions = events.withWatermark("at", "10 minutes").groupBy(F.session_window("at", "5 minutes"), "user").count()
query = sessions.writeStream.outputMode("append").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

"""watermark-unused: one side has no watermark."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("join_with_one_watermark").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
clicks = spark.readStream.schema("user string, clicked timestamp").parquet("/data/clicks")
both = (
    events.withWatermark("at", "5 minutes")
    .alias("e")
    .join(clicks.alias("c"), F.expr("e.user = c.user AND c.clicked BETWEEN e.at AND e.at + interval 1 hour"))
)
query = both.writeStream.format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

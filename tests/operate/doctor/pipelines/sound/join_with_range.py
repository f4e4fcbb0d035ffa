"""A join whose condition bounds both sides."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("join_with_range").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
clicks = spark.readStream.schema("user string, clicked timestamp").parquet("/data/clicks").withWatermark("clicked", "5 minutes")
both = (
    events.withWatermark("at", "5 minutes")
    .alias("e")
    .join(clicks.alias("c"), F.expr("e.user = c.user AND c.clicked >= e.at AND c.clicked <= e.at + interval 1 hour"))
)
query = both.writeStream.format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

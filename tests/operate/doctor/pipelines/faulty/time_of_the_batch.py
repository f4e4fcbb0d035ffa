"""drawn-key: a group for each batch."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

CHECKPOINT = "hdfs://name/checkpoints/job"
spark = SparkSession.builder.appName("time_of_the_batch").getOrCreate()
events = spark.readStream.schema("user string, page string, amount bigint, at timestamp").json("/data/events")
seen = events.withColumn("seen", F.current_timestamp()).groupBy("seen", "page").count()
query = seen.writeStream.outputMode("update").format("parquet").option("checkpointLocation", CHECKPOINT).start("/out")
query.awaitTermination()

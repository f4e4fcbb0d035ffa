"""Tables as a source of Spark: `spark.read.format("millpond")` and `spark.readStream.format("millpond")`."""

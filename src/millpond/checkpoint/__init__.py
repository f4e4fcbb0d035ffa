"""Spark's checkpoint files -> batches, schemas, rows.  Pure Python, no JVM; reads only."""

"""Savepoints: named, verified copies of a job at one batch, from which Spark starts it again."""

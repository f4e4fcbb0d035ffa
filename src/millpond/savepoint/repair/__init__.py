"""Checkpoints that Spark can't start from: what is wrong with one, and a copy that Spark goes on from."""

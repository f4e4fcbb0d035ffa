"""Files that Spark leaves: checkpoints and snapshots that tests write as Spark does, and the golden ones that Spark wrote."""

"""What an answer must equal: Spark's own evaluation, what a query emitted, accounts recomputed; and values in forms to compare."""

"""What tests read: a real log, expressions and rows, examples of Spark's manual, code of our manual, models."""

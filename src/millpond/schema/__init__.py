"""Spark's types, expressions over them, and the definition of a table.  Pure data, no I/O."""

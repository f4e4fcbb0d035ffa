"""Sketches of Apache DataSketches, as Spark's functions write them."""

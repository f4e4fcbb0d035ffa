"""Whole stores with all their column families, also those that only Spark needs, for copies and rewrites."""

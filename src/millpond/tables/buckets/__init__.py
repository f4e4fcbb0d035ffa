"""Reads of tables whose rows are buckets of time: which buckets a span needs, and their sum."""

"""Reprocess an aggregate: compute its buckets anew from the events, and repair the rows that differ."""

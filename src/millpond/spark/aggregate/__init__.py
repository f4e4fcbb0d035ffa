"""Declared aggregates: buckets of event time in several resolutions, compiled to plain Structured Streaming."""

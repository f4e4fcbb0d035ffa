"""Which buckets of a table are kept: their times, and those that readers see for a shorter time."""

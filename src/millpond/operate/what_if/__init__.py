"""What would be if a job had another TTL, retention, provider, codec, trigger or number of partitions."""

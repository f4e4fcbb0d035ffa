"""Several servers that each follow a shard of the same jobs: who has what, asked and combined at one batch."""

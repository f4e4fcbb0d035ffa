"""A local, indexed copy of a job's state tables, moved from batch N to N+1 in one transaction."""

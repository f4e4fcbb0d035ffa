"""Archives: every batch of a job as it commits, in another folder or bucket."""

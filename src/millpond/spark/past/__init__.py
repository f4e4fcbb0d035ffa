"""A checkpoint for a job that hasn't run yet, whose state has the rows of a batch DataFrame."""

"""Commands that look into checkpoints, keep jobs and move them."""

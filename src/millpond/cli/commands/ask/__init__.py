"""Commands that read tables."""

"""Commands for declared aggregates."""

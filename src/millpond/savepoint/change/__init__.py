"""New savepoints of old ones, with other rows."""

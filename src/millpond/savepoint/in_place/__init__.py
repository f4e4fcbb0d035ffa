"""Changes to a stopped job's own checkpoint, which readers go on with."""

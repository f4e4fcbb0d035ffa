"""The commands of `millpond savepoint`."""

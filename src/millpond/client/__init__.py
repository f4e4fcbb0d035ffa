"""The client of a server; needs `millpond[client]`."""

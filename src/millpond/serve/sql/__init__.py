"""SQL statements of a server, each in a process of its own whose memory is bounded."""

"""Arrow Flight SQL at a port of its own: messages, tickets, catalogue, streams, connections."""

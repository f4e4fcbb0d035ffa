"""What the system knows of a connection, for tests that must know that a server has taken what was sent."""

from __future__ import annotations

import socket
from pathlib import Path


def is_read(connection: socket.socket) -> bool:
    """Whether the server on this machine has taken every byte that was sent over an IPv4 connection."""
    own, other = (f"{address[1]:04X}" for address in (connection.getsockname(), connection.getpeername()))
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    queues = {(row[1].partition(":")[2], row[2].partition(":")[2]): row[4] for row in rows}
    unsent, _ = queues[own, other].split(":")
    _, unread = queues.get((other, own), "0:1").split(":")  # it isn't there before the server's side is connected
    return int(unsent, 16) == int(unread, 16) == 0

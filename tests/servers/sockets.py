"""Connections that a test holds itself: what the system knows of one, and an event stream on one."""

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


def begin_events(connection: socket.socket, path: str, token: str = "") -> bool:
    """Ask for an event stream, and read its first event; False if the server has no place for it."""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{authorization}\r\n"
    connection.sendall(head.encode())
    data = b""
    while b"event: changes" not in data:
        part = connection.recv(65_536)
        assert part, data
        data += part
        if data.startswith(b"HTTP/1.1 429"):
            return False
        assert b"\r\n" not in data or data.startswith(b"HTTP/1.1 200"), data
    return True

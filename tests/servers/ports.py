"""Ports for servers, which nothing else on the machine takes between two starts of a server."""

from __future__ import annotations

import itertools
import os
import random
import socket
from functools import cache
from pathlib import Path

_MOST = 20_000


def free_port() -> int:
    """A port that nobody listens at, and that this process hands out for the first time.

    It is below those that the system gives to whoever asks for any: a server that is down for a
    moment would lose one of these to any connection of another test.
    """
    for port in _from_anywhere():
        if _is_free(port):
            return port
    raise AssertionError("no port is left")


def ports_in_use() -> tuple[range, list[int]]:
    """The ports that `free_port` looks at, and those of them that are in use."""
    ports = _ports()
    return ports, [port for port in ports if not _is_free(port)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _ports() -> range:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return range(max(1024, lowest - _MOST), lowest)


@cache
def _from_anywhere() -> itertools.chain[int]:
    ports = _ports()
    begin = random.Random(os.urandom(8)).randrange(len(ports))  # other test processes begin elsewhere
    return itertools.chain(ports[begin:], ports[:begin])

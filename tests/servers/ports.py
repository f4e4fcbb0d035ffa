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
    for port in _ports():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is left")


@cache
def _ports() -> itertools.chain[int]:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(max(1024, lowest - _MOST), lowest)
    begin = random.Random(os.urandom(8)).randrange(len(ports))  # other test processes begin elsewhere
    return itertools.chain(ports[begin:], ports[:begin])

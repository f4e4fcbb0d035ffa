"""Clients that leave at any moment of a statement's beginning: each process goes back to the server, and is there for others."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable

import pytest

from attack.conftest import Attacked
from attack.test_sql import COUNT, OPTIONS, ask, children
from attack.victim import Victim
from servers.ports import free_port
from suite.sizes import examples
from suite.waiting import wait_until

pytestmark = pytest.mark.long

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
MOST = 3  # of OPTIONS


def by_http(victim: Victim, _port: int) -> socket.socket:
    opened, body = victim.connect(), json.dumps({"statement": COUNT}).encode()
    opened.sendall(b"POST /sql HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return opened


def by_postgres(_victim: Victim, port: int) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=30)
    startup = struct.pack(">i", 196_608) + b"user\0reader\0\0"
    query = COUNT.encode() + b"\0"
    opened.sendall(struct.pack(">i", len(startup) + 4) + startup + b"Q" + struct.pack(">i", len(query) + 4) + query)
    return opened


@pytest.mark.parametrize("begin", [by_http, by_postgres])
def test_processes_of_clients_that_leave_at_once_are_there_for_others(
    attacked: Attacked, begin: Callable[[Victim, int], socket.socket]
) -> None:
    port, draw = free_port(), random.Random(begin.__name__)
    victim = attacked(*OPTIONS, "--postgres-port", str(port))
    assert ask(victim, COUNT).status_code == 200
    for _ in range(examples(240)):
        with contextlib.closing(begin(victim, port)):
            time.sleep(draw.choice([0, 0.001, 0.003, 0.01, 0.02, 0.05]))

    wait_until(lambda: len(children(victim.pid)) <= MOST, f"at most {MOST} processes")
    assert [ask(victim, COUNT).status_code for _ in range(MOST)] == [200] * MOST

"""A million bytes of noise from a seed: requests, cut, joined, damaged and mixed.  Another seed: MILLPOND_NOISE_SEED=7."""

from __future__ import annotations

import contextlib
import os
import random
import socket

import httpx
import pytest

from attack.conftest import TABLE, Attacked
from attack.victim import Victim
from suite.waiting import PATIENCE_SECONDS

SEED = int(os.environ.get("MILLPOND_NOISE_SEED", "20261122"))
BYTES = 1_000_000
TEMPLATES = [
    b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /tables HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n",
    b"GET /tables/%b/rows?k=key-00007 HTTP/1.1\r\nHost: localhost\r\n\r\n" % TABLE.encode(),
    b"GET /tables/%b/rows?_limit=3&_start={} HTTP/1.1\r\nHost: localhost\r\n\r\n" % TABLE.encode(),
    b"HEAD /tables/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % TABLE.encode(),
    b'POST /tables/%b/rows:get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 22\r\n\r\n{"keys": [{"k": null}]}' % TABLE.encode(),
    b"POST /tables/%b/rows:scan HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    % TABLE.encode(),
    b"POST /at HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
]
PARTS = [b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"%", b"%2F", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
PARTS += [
    b"Host: evil\r\n",
    b"0\r\n\r\n",
    b"\xff" * 5,
    b"?" * 9,
    b"_wait_seconds=0.1&",
    b"HTTP/1.0",
    b"Connection: close\r\n",
    b"{" * 50,
]


def _noise(chance: random.Random) -> bytes:
    """Some requests, damaged."""
    data = bytearray(b"".join(chance.choices(TEMPLATES, k=chance.randint(1, 12))))
    for _ in range(chance.choice((0, 1, 1, 2, 5, 30))):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[place:place] = chance.choice(PARTS)
            case 1:
                del data[place : place + chance.randint(1, 40)]
            case 2:
                data[place : place + 1] = chance.randbytes(1)
            case 3:
                data[place:place] = chance.randbytes(chance.randint(1, 200))
            case _:
                data[place:place] = data[place : place + chance.randint(1, 300)]
    return bytes(data)


@pytest.mark.long
def test_a_million_bytes_of_noise_are_answered_or_refused(attacked: Attacked, capfd: pytest.CaptureFixture[str]) -> None:
    victim = attacked("--header-seconds", "1", "--body-seconds", "1", "--keep-alive-seconds", "2", "--send-seconds", "2")
    chance, sent, statuses = random.Random(SEED), 0, set()
    with victim.watched(mib=60):
        while sent < BYTES:
            noise = _noise(chance)
            sent += len(noise)
            statuses |= _ask(victim, noise, chance)
    facts = victim.metrics()
    mistakes = [name for name in facts if name.startswith("millpond_requests_total") and 'status="500"' in name]
    assert mistakes == []
    assert "Traceback" not in capfd.readouterr().err
    assert {200, 400, 404} <= statuses
    assert httpx.get(f"{victim.address}/tables/{TABLE}/rows?k=none", timeout=60).json()["rows"] == []


def _ask(victim: Victim, noise: bytes, chance: random.Random) -> set[int]:
    """Send it, whole or in pieces; returns the statuses of the answers."""
    received = b""
    with contextlib.suppress(OSError), victim.connect(0.05) as connection:
        size = chance.choice((len(noise), 1000, 100))
        for place in range(0, len(noise), size):
            connection.sendall(noise[place : place + size])
        if chance.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(PATIENCE_SECONDS)  # the server ends it
        with contextlib.suppress(OSError):
            while part := connection.recv(65_536):
                received += part
    lines = [piece[:4] for piece in received.split(b"HTTP/1.1 ")[1:]]
    return {int(line[:3]) for line in lines if line[:3].isdigit() and line[3:] == b" "}

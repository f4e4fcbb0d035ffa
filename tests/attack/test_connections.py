"""Endless connections, and answers that nobody reads: memory stays bounded, and an honest client gets answers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from attack.conftest import TABLE, Attacked
from attack.victim import Victim, exchange
from servers.sockets import is_read
from suite.programs import started
from suite.sizes import a_few
from suite.waiting import wait_until

LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = f"GET /tables/{TABLE}/rows?_limit=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
HOT = f"GET /tables/{TABLE}/rows?k=key-00007 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _push(connection: socket.socket, data: bytes, seconds: float) -> int:
    """Send without end and never read; gives the bytes that the server has taken."""
    connection.settimeout(0.5)
    sent, deadline = 0, time.monotonic() + seconds
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < deadline:
            try:
                sent += connection.send(data)
            except TimeoutError:
                if sent > 0:
                    break  # the server reads no more, which is the point
    return sent


@pytest.mark.long
@pytest.mark.parametrize(
    "request_bytes",
    a_few([HOT, LIVE, LARGE, b"GET /tables HTTP/1.1\r\nHost: localhost\r\n\r\n", HOT + LARGE], 1),
    ids=["the quick route", "small answers", "large answers", "a list", "both by turns"],
)
def test_requests_without_end_whose_answers_nobody_reads(attacked: Attacked, request_bytes: bytes) -> None:
    victim = attacked("--send-seconds", "2", "--keep-alive-seconds", "3")
    with ExitStack() as opened:
        opened.enter_context(victim.watched(mib=60))
        connections = [opened.enter_context(victim.connect()) for _ in range(4)]
        for connection in connections:
            _push(connection, request_bytes * (60_000 // len(request_bytes) + 1), 3)
        # The server drops clients that don't read.  Two connections may remain: the honest client's and this one.
        wait_until(lambda: victim.metrics()["millpond_connections"] <= 2, "the end of clients that don't read")


@pytest.mark.long
def test_pipelined_requests_are_answered_in_order_by_whatever_way(attacked: Attacked) -> None:
    victim = attacked("--header-seconds", "60")
    missing = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = b'{"keys": [{"k": "none"}]}'
    post = f"POST /tables/{TABLE}/rows:get HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    last = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    asked = [HOT, missing, HOT, HOT, LIVE, post, HOT, missing] * 60
    for size in (1 << 20, 1000, 37):  # all at once, and in pieces
        data = b"".join(asked) + last
        with victim.connect() as connection:
            statuses: list[int] = []
            received = b""
            connection.settimeout(0.01)
            while data or received.count(b"HTTP/1.1 ") <= len(asked):
                with contextlib.suppress(TimeoutError):
                    data = data[connection.send(data[:size]) :] if data else b""
                with contextlib.suppress(TimeoutError):
                    part = connection.recv(1 << 20)
                    received += part
                    if not part:
                        break
        statuses = [int(piece[:3]) for piece in received.split(b"HTTP/1.1 ")[1:]]
        expected = {HOT: 200, missing: 404, LIVE: 200, post: 200}
        assert statuses == [*(expected[request] for request in asked), 200]


@pytest.mark.long
def test_a_large_answer_that_is_read_slowly_comes_whole(attacked: Attacked) -> None:
    victim = attacked("--send-seconds", "4", "--keep-alive-seconds", "5")
    with httpx.Client(base_url=victim.address, timeout=60) as client:
        whole = client.get(f"/tables/{TABLE}/rows?_limit=20000", headers={"accept-encoding": "identity"}).json()["rows"]
    assert len(whole) == 20_000

    def read_slowly() -> tuple[bytes, float, float]:
        """What came, the longest time in which this test read nothing, and how long all took."""
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(60)
        with slow:
            slow.connect(victim._place)
            slow.sendall(LARGE.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n"))
            received, longest = b"", 0.0
            began = last = time.monotonic()
            while part := slow.recv(20_000):
                received += part
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                if now - began < 6:
                    time.sleep(0.01)
        return received, longest, last - began

    # A reader that the machine stops for seconds has no claim to a whole answer.
    received, _, took = next(read for read in (read_slowly() for _ in range(10)) if read[1] < 2)
    assert took > 4, "longer than an answer may lie unread"
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    assert len(body) == length


@pytest.mark.long
def test_unread_answers_of_all_clients_together_are_bounded(attacked: Attacked) -> None:
    victim = attacked("--send-seconds", "60", "--max-unread-bytes", "8000000")
    with ExitStack() as opened:
        opened.enter_context(victim.watched(mib=250))
        connections = [opened.enter_context(victim.connect()) for _ in range(24)]
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(LARGE)
            # Making an answer takes more memory than keeping it, and this test is about kept answers: one is made at a time.
            with contextlib.suppress(OSError):
                connection.recv(1, socket.MSG_PEEK)
        # About 2 MB of each answer stay unread, less what the system's buffers take.
        wait_until(lambda: victim.metrics()["millpond_connections"] < 12, "fewer unread answers")


def test_connections_beyond_the_limit_end_those_that_have_been_idle_for_longest(attacked: Attacked) -> None:
    victim = attacked("--max-connections", "40", "--header-seconds", "60")
    with ExitStack() as opened, victim.watched(mib=30), victim.connect() as busy:
        assert exchange(busy, LIVE).status == 200
        silent = [opened.enter_context(victim.connect()) for _ in range(100)]
        for _ in range(30):
            assert exchange(busy, LIVE).status == 200
            opened.enter_context(victim.connect())
        wait_until(lambda: victim.metrics()["millpond_connections"] <= 41, "no more connections than allowed")
        assert victim.is_closed(silent[0])


@pytest.mark.long
def test_a_client_with_all_its_connections_at_work_gets_no_more(attacked: Attacked) -> None:
    victim = attacked("--max-connections-per-client", "10", "--max-waits-per-client", "100", "--max-seconds", "120")
    wait = f"GET /tables/{TABLE}/count?_min_batch=99999&_wait_seconds=100 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with ExitStack() as opened:
        waiting = [opened.enter_context(victim.connect()) for _ in range(10)]
        for connection in waiting:
            connection.sendall(wait)
        wait_until(lambda: all(map(is_read, waiting)), "the server to read each request")
        with victim.connect() as one_more:
            answer = exchange(one_more)
        assert (answer.status, answer.condition) == (503, "TOO_MANY_CONNECTIONS")
        assert answer.headers["retry-after"] == "1"
    wait_until(lambda: httpx.get(f"{victim.address}/livez", timeout=60).status_code == 200, "room for a connection")


@pytest.mark.long
def test_a_server_with_few_descriptors_keeps_answering(attacked: Attacked, job: object, tmp_path: Path) -> None:
    import json
    import os
    import sys

    command = [sys.executable, "-m", "millpond.cli", "serve", str(job.path), "--port", "0", "--json"]  # type: ignore[attr-defined]
    limited = ["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", *command]
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path / "home")}
    with started(limited, stdout=subprocess.PIPE, env=environment) as server, ExitStack() as opened:
        try:
            assert server.stdout is not None
            victim = Victim(json.loads(server.stdout.readline())["url"], server.pid)
            with victim.watched(mib=30):
                for _ in range(400):
                    opened.enter_context(victim.connect())
                    assert victim.descriptors() < 200
                assert httpx.get(f"{victim.address}/livez", timeout=60).status_code == 200
        finally:
            server.terminate()
            server.wait(60)


@pytest.mark.long
def test_connections_that_never_speak_tls_are_bounded_and_end(attacked: Attacked, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    victim = attacked("--tls-cert", str(cert), "--tls-key", str(key), "--header-seconds", "10", "--max-connections", "60")
    place = victim._place
    with ExitStack() as opened:
        silent = [opened.enter_context(socket.create_connection(place)) for _ in range(50)]
        with contextlib.suppress(OSError):
            silent[1].sendall(LIVE)
        with victim.watched(mib=60):
            for connection in silent:
                assert victim.is_closed(connection)
        for _ in range(5):
            with victim.connect() as connection:
                assert isinstance(connection, ssl.SSLSocket)
                assert connection.version() == "TLSv1.3"
                assert exchange(connection, LIVE).status == 200
                large = exchange(connection, LARGE)
                assert large.status == 200
                assert exchange(connection, b"GET /\xff HTTP/1.1\r\n").condition == "INVALID_HTTP"

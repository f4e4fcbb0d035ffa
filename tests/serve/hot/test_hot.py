"""The short way to a row answers as the long way does, byte for byte, and leaves to it what it can't answer."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest

import millpond
from millpond.serve.access.access import Access
from millpond.serve.app import HttpDoor
from millpond.serve.forwarding import Neighbours
from millpond.serve.hot.protocol import HotRows
from millpond.serve.metrics.counts import Meter
from millpond.serve.operations import Operations
from millpond.serve.ponds import open_ponds
from millpond.settings import ServeSettings
from servers.serving import wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint

# A door that ends idle connections after a second.
IMPATIENT = """
import sys, millpond
from millpond.serve.ponds import open_ponds
from millpond.serve.process.server import address_of, open_listener, serve_http
from millpond.settings import ServeSettings
listener = open_listener("127.0.0.1", 0)
print(address_of(listener), flush=True)
keep = millpond.Retention(history_batches=5)
with open_ponds(["types"], lambda _: millpond.open(sys.argv[1], replica_dir=sys.argv[2], retention=keep)) as ponds:
    serve_http(ponds, listener, settings=ServeSettings(keep_alive_seconds=1))
"""
# Only the long way reads this header, and it changes nothing.
LONG_WAY = {"if-none-match": '"none"'}
AGE = re.compile(rb'"(age_seconds|event_lag_seconds)":[0-9.e+-]+')


@pytest.fixture(scope="module")
def client(http_door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http_door, timeout=30, headers={"accept-encoding": "identity"}) as opened:
        wait_until_ready(opened)
        yield opened


def _same(client: httpx.Client, path: str) -> int:
    short, long = client.get(path), client.get(path, headers=LONG_WAY)
    assert short.status_code == long.status_code
    assert AGE.sub(b"age", short.content) == AGE.sub(b"age", long.content), path
    kept = {"date", "content-length"}
    assert {k: v for k, v in short.headers.items() if k not in kept} == {k: v for k, v in long.headers.items() if k not in kept}
    assert int(short.headers["content-length"]) == len(short.content)
    return short.status_code


def test_both_ways_say_the_same_of_every_key_of_every_table(client: httpx.Client) -> None:
    """The keys come from the tables as CSV, whose form URLs use."""
    found = 0
    for table in client.get("/tables").json()["tables"]:
        if "error" in table or table["key"] != ["k"]:
            continue
        for row in client.get(f"/tables/{table['table']}/rows").json()["rows"]:
            k = row["k"]
            if isinstance(k, str):
                found += (
                    _same(client, f"/tables/{table['table']}/rows?k={quote(k.encode('utf-8', 'surrogateescape'), safe='')}") == 200
                )
            elif isinstance(k, (int, float)) and not isinstance(k, bool):
                found += _same(client, f"/tables/{table['table']}/rows?k={k}") == 200
    assert found > 30


@pytest.mark.parametrize(
    "path",
    [
        "/tables/long/rows?k=x",
        "/tables/long/rows?k=5",
        "/tables/long/rows?k=1&k=1",
        "/tables/long/rows?k__isnull=1",
        "/tables/long/rows?k=5&_limit=1",
        "/tables/long/rows?k=5&_limit=0",
        "/tables/long/rows?n=5",
        "/tables/lung/rows?k=5",
        "/tables/long/rows?k=%2B5",
        "/tables/string/rows?k=a+b",
        "/tables/%6Cong/rows?k=5",
    ],
)
def test_both_ways_say_the_same_of_what_is_unusual(path: str, client: httpx.Client) -> None:
    _same(client, path)


def test_requests_that_come_at_once_are_answered_in_order(client: httpx.Client, http_door: str) -> None:
    """On one connection: short ways after long ones and between them."""
    address = urlsplit(http_door)
    asked = ["/tables/long/rows?k=5", "/tables/nothing", "/tables/long/rows?k=6", "/tables", "/livez", "/tables/long/rows?k=7"]
    wanted = [client.get(path).status_code for path in asked]
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        heads = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n" for path in asked]
        heads[-1] = heads[-1].replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        connection.sendall("".join(heads).encode())
        received = b""
        while part := connection.recv(65536):
            received += part
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", received)] == wanted


def test_a_head_in_pieces_is_read_whole(http_door: str) -> None:
    address = urlsplit(http_door)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        for piece in (b"GET /tables/long/ro", b"ws?k=", b"5 HTTP/1.1\r\nHo", b"st: localhost\r\n", b"\r\n"):
            connection.sendall(piece)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_that_a_get_needs_not_have_does_no_harm(client: httpx.Client) -> None:
    for _ in range(3):
        assert client.request("GET", "/tables/long/rows?k=5", content=b"x" * 1000).status_code == 200


def test_requests_that_are_there_together_have_one_batch_and_the_next_ones_the_newest(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")

    def commit(**rows: int) -> None:
        job.plan(list(rows.items()), snapshot=False)
        job.commit()

    commit(a=1, b=1)
    later: list[Callable[[], None]] = []
    settings = ServeSettings()
    with open_ponds(["job"], lambda _: millpond.open(job.path, replica_dir=tmp_path / "home")) as ponds:
        (table,) = ponds.tables()
        operations = Operations(ponds, settings, None)
        hot = HotRows(HttpDoor(ponds, settings, Meter(), Access(settings), Neighbours(None, 1.0), operations), later.append)

        def ask(key: str) -> tuple[int, list[int]]:
            sent = hot.answer(f"/tables/{table}/rows?k={key}".encode(), [(b"host", b"localhost")], "")
            assert sent is not None
            body = json.loads(sent.partition(b"\r\n\r\n")[2])
            return body["batch"], [row["v"] for row in body["rows"]]

        assert ask("a") == (0, [1])
        commit(a=2, b=2)
        ponds[table].get(k="a", bounds=millpond.Bounds(min_batch=1, wait_seconds=30))
        assert ask("b") == (0, [1])
        assert ask("c") == (0, [])
        assert len(later) == 1
        later.pop()()
        assert ask("a") == (1, [2])
        later.pop()()
        assert not later


def test_idle_connections_end_and_busy_ones_dont(types_pond: Path, tmp_path: Path) -> None:
    short, long, events = "/tables/long/rows?k=5", "/tables/long", "/tables/long/changes"
    with contextlib.ExitStack() as opened:
        command = [sys.executable, "-c", IMPATIENT, str(types_pond), str(tmp_path)]
        server = opened.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        opened.callback(server.terminate)
        assert server.stdout is not None
        address = urlsplit(server.stdout.readline().strip())

        def ask(connection: socket.socket, path: str, *headers: str) -> None:
            connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")

        def is_open(connection: socket.socket, seconds: float) -> bool:
            connection.settimeout(seconds)
            try:
                while connection.recv(65536):
                    pass
            except TimeoutError:
                return True
            return False

        once, longer, again, stream = (
            opened.enter_context(socket.create_connection((address.hostname, address.port), timeout=60)) for _ in range(4)
        )
        ask(longer, long)
        ask(once, short)
        ask(stream, short)
        ask(stream, events, "Accept: text/event-stream")
        for _ in range(5):
            for path in (short, long):
                ask(again, path)
            assert is_open(again, 0.4)
            again.settimeout(60)
        assert not is_open(once, 60)
        assert not is_open(longer, 60)
        assert not is_open(again, 60)
        assert is_open(stream, 0.1)

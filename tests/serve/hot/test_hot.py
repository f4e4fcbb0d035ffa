"""The short way to a row answers as the long way does, byte for byte, and leaves to it what it can't answer."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

import millpond
from millpond.schema.types import Field, atomic
from millpond.serve.access.access import Access
from millpond.serve.app import HttpDoor
from millpond.serve.forwarding import Neighbours
from millpond.serve.hot import protocol
from millpond.serve.hot.protocol import HotRows
from millpond.serve.metrics.counts import Meter
from millpond.serve.operations import Operations
from millpond.serve.ponds import Ponds, open_ponds
from millpond.settings import ServeSettings
from servers.serving import wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few, examples

# A door that ends idle connections after three seconds.
IMPATIENT = """
import sys, millpond
from millpond.serve.connections.beside import Listeners
from millpond.serve.ponds import open_ponds
from millpond.serve.process.server import address_of, open_listener, serve_http
from millpond.settings import ServeSettings
listener = open_listener("127.0.0.1", 0)
print(address_of(listener), flush=True)
keep = millpond.Retention(history_batches=5)
with open_ponds(["types"], lambda _: millpond.open(sys.argv[1], replica_dir=sys.argv[2], retention=keep)) as ponds:
    serve_http(ponds, Listeners(listener), settings=ServeSettings(keep_alive_seconds=3))
"""
# Only the long way reads this header, and it changes nothing.
LONG_WAY = {"if-none-match": '"none"'}
PLAIN = {"accept-encoding": "identity"}
AGE = re.compile(rb'"(age_seconds|event_lag_seconds)":[0-9.e+-]+')


@pytest.fixture(scope="module")
def client(http_door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http_door, timeout=30, headers=PLAIN) as opened:
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


def _paths(client: httpx.Client) -> Iterator[str]:
    """Of the keys of all tables, which come as CSV, whose form URLs use."""
    for table in client.get("/tables").json()["tables"]:
        if "error" in table or table["key"] != ["k"]:
            continue
        for row in client.get(f"/tables/{table['table']}/rows").json()["rows"]:
            k = row["k"]
            if isinstance(k, str):
                yield f"/tables/{table['table']}/rows?k={quote(k.encode('utf-8', 'surrogateescape'), safe='')}"
            elif isinstance(k, (int, float)) and not isinstance(k, bool):
                yield f"/tables/{table['table']}/rows?k={k}"


def test_both_ways_say_the_same_of_every_key_of_every_table(client: httpx.Client) -> None:
    assert sum(_same(client, path) == 200 for path in _paths(client)) > 30


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("string", [*(f"k{n}" for n in range(40)), "", "a/b", "%", "\udcff", "k" * 509, "k" * 530]),
        pytest.param("long", [*range(-20, 20), 1 << 62, -(1 << 63)], marks=pytest.mark.long),
        pytest.param("double", [n / 4 for n in range(40)], marks=pytest.mark.long),
    ],
)
def test_both_ways_say_the_same_on_a_shard(kind: str, keys: list[Any], serve: Any, tmp_path: Path) -> None:
    """A row that isn't there may lie in another shard: never is it said not to exist."""
    job = WrittenCheckpoint(tmp_path / "job", key=(Field("k", atomic(kind)),), partitions=5)
    job.plan([((key,), n) for n, key in enumerate(keys) if n % 3], snapshot=False)
    job.commit()
    shown = list[int]()
    with contextlib.ExitStack() as opened:
        halves = []
        for shard in ("1/2", "2/2"):
            url, _ = opened.enter_context(serve(job.path, "--shard", shard, "--no-sql"))
            halves.append(opened.enter_context(httpx.Client(base_url=url, timeout=30, headers=PLAIN)))
            wait_until_ready(halves[-1])
        for n, key in enumerate(keys):
            path = f"/tables/job.aggregate_0/rows?k={quote(str(key).encode('utf-8', 'surrogateescape'), safe='')}"
            for _ in range(2):  # the second one is answered from the view of the first, or without one
                found = [(half.get(path), _same(half, path)) for half in halves]
                assert sorted(status for _, status in found) == [200, 421], key
                (rows,) = (answer.json()["rows"] for answer, status in found if status == 200)
                assert [row["v"] for row in rows] == ([n] if n % 3 else []), key
                shown += [row["v"] for row in rows]
    assert len(shown) > len(keys)


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


def received(connection: socket.socket) -> bytes:
    """The next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (part := connection.recv(65536))
        if not part:
            return data
    head, _, body = data.partition(b"\r\n\r\n")
    size = re.search(rb"content-length: (\d+)", head.lower())
    while len(body) < int(size[1]) if size else not body.endswith(b"0\r\n\r\n"):
        body += connection.recv(65536)
    return AGE.sub(b"age", re.sub(rb"(?i)(date|content-length): .*\r\n", b"", head + b"\r\n")) + AGE.sub(b"age", body)


@pytest.mark.long
def test_a_request_after_others_means_what_it_means_alone(http_door: str) -> None:
    """The same headers again need no parser: so requests come in any order, whole or in pieces, on one connection and alone."""
    address, draw = urlsplit(http_door), random.Random("same headers")
    heads = [
        "Host: localhost\r\n",
        "host: localhost\r\naccept: application/json\r\n",
        "Host: localhost\r\nAccept: text/csv\r\n",
        'Host: localhost\r\nIf-None-Match: "none"\r\n',
        "Host: elsewhere\r\n",
        "Host: localhost\r\nX: a HTTP/1.1\r\nY: b\r\n",
    ]
    urls = ["long/rows?k=5", "long/rows?k=6", "long/rows?k=7", "string/rows?k=a", "long/rows?k=x", "long/rows?k=%35", "long/rows"]
    urls += ["long/rows?k=5|6", "long/rows?n=5", "nothing/rows?k=5", "long/rows?k=" + "0" * 9000]
    requests = [f"GET /tables/{u} HTTP/1.1{end}{h}\r\n" for u in urls for h in heads for end in ("\r\n", "\r\n", "\n")]
    wanted: dict[str, bytes] = {}
    for _ in range(examples(120, 30)):
        with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
            again = draw.choice(requests)
            for _ in range(12):
                request = draw.choice([again, draw.choice(requests), again.replace("k=5", "k=6")])
                if request not in wanted:
                    with socket.create_connection((address.hostname, address.port), timeout=30) as alone:
                        alone.sendall(request.encode())
                        wanted[request] = received(alone)
                data = request.encode()
                pieces = sorted({0, len(data), *(draw.sample(range(len(data)), 2) if draw.random() < 0.3 else ())})
                for begin, end in itertools.pairwise(pieces):
                    connection.sendall(data[begin:end])
                found = received(connection)
                assert found == wanted[request], request
                if b"connection: close" in found.lower():
                    break


def test_a_head_in_pieces_is_read_whole(http_door: str) -> None:
    address = urlsplit(http_door)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        for piece in (b"GET /tables/long/ro", b"ws?k=", b"5 HTTP/1.1\r\nHo", b"st: localhost\r\n", b"\r\n"):
            connection.sendall(piece)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_that_a_get_needs_not_have_does_no_harm(client: httpx.Client) -> None:
    for _ in range(3):
        assert client.request("GET", "/tables/long/rows?k=5", content=b"x" * 1000).status_code == 200


@dataclass
class Asked:
    """A door whose event loop is turned by hand."""

    ponds: Ponds
    hot: HotRows
    later: list[Callable[[], None]]

    def ask(self, key: str) -> tuple[int, list[int]]:
        """The batch of an answer, and its values."""
        (table,) = self.ponds.tables()
        plain = self.hot.plain([(b"host", b"localhost")])
        assert plain is not None
        sent = self.hot.answer(f"/tables/{table}/rows?k={key}".encode(), plain, "")
        assert sent is not None
        body = json.loads(sent.partition(b"\r\n\r\n")[2])
        return body["batch"], [row["v"] for row in body["rows"]]

    def turn(self) -> None:
        """The loop looks for more."""
        assert len(self.later) == 1
        self.later.pop()()


@contextlib.contextmanager
def asked_by_hand(path: Path, home: Path, meter: Meter) -> Iterator[Asked]:
    later: list[Callable[[], None]] = []
    settings = ServeSettings()
    with open_ponds(["job"], lambda _: millpond.open(path, replica_dir=home)) as ponds:
        operations = Operations(ponds, settings, None)
        hot = HotRows(HttpDoor(ponds, settings, meter, Access(settings), Neighbours(None, 1.0), operations), later.append)
        yield Asked(ponds, hot, later)


def test_requests_that_are_there_together_have_one_batch_and_the_next_ones_the_newest(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")

    def commit(**rows: int) -> None:
        job.plan(list(rows.items()), snapshot=False)
        job.commit()

    commit(a=1, b=1)
    with asked_by_hand(job.path, tmp_path / "home", Meter()) as door:
        (table,) = door.ponds.tables()
        assert door.ask("a") == (0, [1])
        commit(a=2, b=2)
        door.ponds[table].get(k="a", bounds=millpond.Bounds(min_batch=1, wait_seconds=30))
        assert door.ask("b") == (0, [1])
        assert door.ask("c") == (0, [])
        door.turn()
        assert door.ask("a") == (1, [2])
        door.turn()
        assert not door.later


@pytest.mark.parametrize("seed", a_few(range(6), 2))
@pytest.mark.parametrize("kept_seconds", [None, 60])
def test_no_request_finds_an_older_batch_than_there_was_when_it_came(
    kept_seconds: float | None, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a view was opened for it, or compiled code goes on after the view has ended: that looks for itself, too."""
    if kept_seconds is not None:
        monkeypatch.setattr(protocol, "_KEPT_SECONDS", kept_seconds)
    draw, job, meter = random.Random(seed), WrittenCheckpoint(tmp_path / "job"), Meter()
    keys, content = [*"abcdef", "k" * 490, "k" * 530], dict[str, int]()
    by_batch: list[dict[str, int]] = []

    def commit() -> None:
        changes = {key: draw.choice([None, draw.randrange(100)]) for key in draw.sample(keys, 3)}
        job.plan(list(changes.items()), snapshot=False)
        job.commit()
        content.update({key: value for key, value in changes.items() if value is not None})
        for key in [key for key, value in changes.items() if value is None]:
            content.pop(key, None)
        by_batch.append(dict(content))

    commit()
    with asked_by_hand(job.path, tmp_path / "home", meter) as door:
        (table,) = door.ponds.tables()
        least, last, count = 0, 0, 0
        for _ in range(examples(1500, 400)):
            what = draw.random()
            if what < 0.03:
                commit()
                door.ponds[table].get(k="a", bounds=millpond.Bounds(min_batch=len(by_batch) - 1, wait_seconds=30))
            elif what < 0.05:
                time.sleep(0.0015)
            elif what < 0.1:
                door.ponds[table].get(k="a")  # the same compiled code may read the newest batch from here on
            elif what < 0.5 and door.later:
                door.turn()
                least = len(by_batch) - 1
            else:
                key = draw.choice(keys)
                if not door.later:
                    least = len(by_batch) - 1
                batch, values = door.ask(key)
                assert max(least, last) <= batch < len(by_batch)
                assert values == ([by_batch[batch][key]] if key in by_batch[batch] else [])
                last, count = batch, count + 1
        if door.later:
            door.turn()
        assert not door.later
        assert meter.counts.requests == {"rows": {200: count}}
        assert {name: took.count for name, took in meter.counts.reads.items()} == {table: count}


@pytest.mark.long
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

        def outlives_the_idle() -> tuple[bool, float]:
            """Whether a busy connection lives on when idle ones have ended, and the longest time in which it wasn't busy."""
            with contextlib.ExitStack() as held:
                once, longer, again, stream = (
                    held.enter_context(socket.create_connection((address.hostname, address.port), timeout=60)) for _ in range(4)
                )
                ask(longer, long)
                ask(once, short)
                ask(stream, short)
                ask(stream, events, "Accept: text/event-stream")
                last, longest = time.monotonic(), 0.0
                while True:
                    ended = not is_open(once, 0.05) and not is_open(longer, 0.05)
                    try:
                        for path in (short, long):
                            ask(again, path)
                    except (AssertionError, OSError):
                        return False, max(longest, time.monotonic() - last)
                    now = time.monotonic()
                    longest, last = max(longest, now - last), now
                    if ended:
                        break
                assert not is_open(again, 60)
                assert is_open(stream, 0.1)
            return True, longest

        # A client that the machine stops for seconds isn't busy.
        outlives, _ = next(seen for seen in (outlives_the_idle() for _ in range(10)) if seen[0] or seen[1] < 2)
        assert outlives

"""The door of Redis' protocol: rows as HTTP has them, for Redis' own clients; rights; limits; what isn't a command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.replica.replica import MEMORY
from millpond.serve.access.tokens import remove_token
from servers.ports import free_port
from servers.redis_clients import redis_client
from servers.serving import serving, wait_until_ready
from suite.sizes import examples
from suite.waiting import wait_until

redis = pytest.importorskip("redis")


@pytest.fixture(scope="module")
def ports(types_pond: Path, door_home: Path) -> Iterator[tuple[str, int]]:
    port = free_port()
    options = ("--redis-port", str(port), "--max-body-bytes", "100000", "--body-seconds", "2", "--send-seconds", "3")
    with serving(types_pond, *options, "--max-connections-per-client", "40", home=door_home) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield url, port


@pytest.fixture(params=[2, 3])
def client(ports: tuple[str, int], request: pytest.FixtureRequest) -> Iterator[Any]:
    with redis_client(ports[1], protocol=request.param) as opened:
        yield opened


def gets(client: Any, keys: list[bytes]) -> list[str]:
    """The replies to GETs that are sent together, errors as well."""
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.get(key)
        return [repr(reply) for reply in pipe.execute(raise_on_error=False)]


def test_every_row_of_every_table_is_found_by_its_key(
    client: Any, ports: tuple[str, int], types_pond: Path, door_home: Path
) -> None:
    with millpond.open(types_pond, replica_dir=door_home) as pond:
        counts = {name: int(pond[name].count()) for name in pond.tables()}
    assert client.dbsize() == sum(counts.values())
    for name in random.Random(5).sample(sorted(counts), examples(len(counts), 6)):
        count = counts[name]
        keys = list(client.scan_iter(match=f"{name}:*", count=3))
        assert len(set(keys)) == count
        rows = httpx.get(f"{ports[0]}/tables/{name}/rows?_limit=5000", timeout=60).content
        expected = sorted(json.dumps(row, sort_keys=True) for row in json.loads(rows)["rows"])
        found = [client.get(key) for key in keys]
        assert sorted(json.dumps(json.loads(value), sort_keys=True) for value in found) == expected
        assert client.mget(keys) == found  # GET takes the quick way where it can, MGET never does
        asked = [key for key in keys for key in (key, key[:-1] + b"%%%02x" % key[-1], key + b"0", b"long:5")]
        assert gets(client, asked) == [reply for key in asked for reply in gets(client, [key])]
        assert client.exists(*keys) == count
        for key, value in zip(keys, found, strict=True):
            row, texts = json.loads(value), client.hgetall(key)
            assert {column.decode() for column in texts} == {column for column, value in row.items() if value is not None}
            assert client.hget(key, "n") == str(row["n"]).encode()
            assert client.hmget(key, ["n", "nothing"]) == [str(row["n"]).encode(), None]
            assert client.hlen(key) == len(texts)
            assert client.type(key) == b"hash"
            assert client.ttl(key) == -1


def test_a_key_without_a_row_is_nothing(client: Any) -> None:
    assert client.get("long:12345") is None
    assert client.hgetall("long:12345") == {}
    assert client.hget("long:12345", "n") is None
    assert client.exists("long:12345", "long:54321") == 0
    assert client.type("long:12345") == b"none"
    assert client.ttl("long:12345") == -2


@pytest.mark.parametrize("pattern", ["string:*", "string:a*", "l*:1*", "*ng:*", "long:[^0]*", "nothing:*", "string:\\*", "long:?"])
def test_scan_finds_what_matches(client: Any, pattern: str) -> None:
    every = set(client.scan_iter(count=100))
    inner = random.Random(pattern)
    found = list(client.scan_iter(match=pattern, count=inner.randrange(1, 9)))
    assert len(found) == len(set(found))
    assert set(found) == {key for key in every if glob(pattern.encode(), key)}


def glob(pattern: bytes, text: bytes) -> bool:
    """As Redis' stringmatchlen for these patterns, by trying all ways."""
    if not pattern:
        return not text
    head, rest = pattern[:1], pattern[1:]
    if head == b"*":
        return any(glob(rest, text[n:]) for n in range(len(text) + 1))
    if head == b"[":
        inside, _, rest = rest.partition(b"]")
        is_not = inside.startswith(b"^")
        return bool(text) and (text[:1] in inside.removeprefix(b"^")) is not is_not and glob(rest, text[1:])
    if head == b"\\":
        head, rest = rest[:1], rest[1:]
        return text[:1] == head and glob(rest, text[1:])
    return bool(text) and (head in (b"?", text[:1])) and glob(rest, text[1:])


def test_pipelines_and_clients_that_dont_wait(ports: tuple[str, int], client: Any) -> None:
    keys = [*client.scan_iter(match="long:*"), b"long:77"]
    expected = [client.get(key) for key in keys]
    with client.pipeline(transaction=False) as pipe:
        for key in keys * 50:
            pipe.get(key)
        assert pipe.execute() == expected * 50

    async def ask() -> list[Any]:
        async with redis.asyncio.Redis(port=ports[1]) as other:
            return list(await asyncio.gather(*(other.get(key) for key in keys)))

    assert asyncio.run(ask()) == expected


def test_what_a_client_says_of_itself(client: Any) -> None:
    assert client.ping() is True
    assert client.echo("x") == b"x"
    assert client.client_id() > 0
    assert client.client_setname("me")
    assert client.client_getname() in ("me", b"me")
    assert client.execute_command("ACL", "WHOAMI") in ("default", b"default")
    assert client.command_count() > 20
    assert client.execute_command("SELECT", 0)
    info = client.info()
    assert info["redis_mode"] == "standalone"
    assert info["db0"]["keys"] == client.dbsize()
    assert "batch" in client.info("replication")["table_long"]
    assert client.execute_command("COMMAND", "INFO", "get")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("SET", "a", "b"), "READONLY|You can't write against a read only replica"),
        (("DEL", "long:1"), "READONLY|You can't write against a read only replica"),
        (("FLUSHALL",), "READONLY|You can't write against a read only replica"),
        (("NOTHING", "a", "b"), "unknown command 'NOTHING', with args beginning with: 'a' 'b'"),
        (("GET",), "wrong number of arguments for 'get' command"),
        (("GET", "a", "b"), "wrong number of arguments for 'get' command"),
        (("SELECT", "1"), "DB index is out of range"),
        (("SELECT", "x"), "value is not an integer or out of range"),
        (("SCAN", "x"), "invalid cursor"),
        (("SCAN", "0", "COUNT", "0"), "value is not an integer or out of range"),
        (("SCAN", "0", "NOTHING", "0"), "syntax error"),
        (("SCAN", "12345"), "invalid cursor"),
        (("HELLO", "4"), "unsupported protocol version"),
        (("GET", "nothing:1"), "UNKNOWN_TABLE"),
        (("GET", "long:x"), "WRONG_TYPE"),
        (("AUTH", "x"), "AUTH <password> called without any password configured"),
    ],
)
def test_errors_have_redis_words(client: Any, words: tuple[str, ...], error: str) -> None:
    with pytest.raises(redis.exceptions.RedisError, match=error) as refused:
        client.execute_command(*words)
    assert client.ping(), refused


def test_tokens_open_their_tables(types_pond: Path, door_home: Path, tmp_path: Path) -> None:
    file, port = tmp_path / "readers.json", free_port()
    made = []
    for name, tables in (("all", "*"), ("some", "long")):
        words = [sys.executable, "-m", "millpond.cli", "token", str(file), name, "--tables", tables]
        made.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])
    with serving(types_pond, "--redis-port", str(port), "--tokens", str(file), home=door_home):
        with redis_client(port) as stranger:
            for words in (("GET", "long:1"), ("PING",), ("SET", "a", "b"), ("DBSIZE",), ("INFO",), ("SCAN", "0")):
                with pytest.raises(redis.exceptions.RedisError, match=r"Authentication required|already authenticated"):
                    stranger.execute_command(*words)
        with redis_client(port, password="no") as wrong, pytest.raises(redis.exceptions.AuthenticationError):
            wrong.ping()
        with (
            redis_client(port, username="other", password=made[0]) as wrong,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            wrong.ping()
        for protocol in (2, 3):
            with redis_client(port, username="some", password=made[1], protocol=protocol) as some:
                keys = list(some.scan_iter())
                assert keys
                assert all(key.startswith(b"long:") for key in keys)
                assert some.dbsize() == len(keys)
                assert some.get(keys[0])
                assert some.execute_command("ACL", "WHOAMI") in ("some", b"some")
                with pytest.raises(redis.exceptions.NoPermissionError):
                    some.get("string:a")
        with redis_client(port, password=made[0]) as every, redis_client(port, password=made[1]) as some:
            assert every.exists("string:a", "long:1") >= 0
            assert some.ping()
            remove_token(file, "some")
            with pytest.raises(redis.exceptions.RedisError, match=r"Authentication required|invalid username-password pair"):
                ask_on(some)
            assert every.ping()


def ask_on(client: Any) -> None:
    """Ask until there is an error."""
    wait_until(lambda: client.execute_command("GET", "long:1") and None, "an error")


# ---------------------------------------------------------------- what a client shouldn't do


def read_all(connection: socket.socket) -> bytes:
    out = b""
    while data := connection.recv(65536):
        out += data
    return out


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"*1\r\n$-5\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
        (b"*9999999\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
        (b"PING\r\n*1\r\nx\r\nPING\r\n", b"+PONG\r\n-ERR Protocol error: expected '$', got 'x'\r\n"),
        (b"*2\r\n$3\r\nGET\r\n$100001\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
        (b"PING\r\nQUIT\r\nPING\r\n", b"+PONG\r\n+OK\r\n"),
    ],
)
def test_the_connection_ends_and_not_the_server(ports: tuple[str, int], data: bytes, reply: bytes) -> None:
    with socket.create_connection(("127.0.0.1", ports[1]), timeout=20) as connection:
        connection.sendall(data)
        try:
            assert read_all(connection) == reply
        except ConnectionResetError:
            assert reply == b""


@pytest.mark.long
def test_half_a_command_ends_after_a_while(ports: tuple[str, int]) -> None:
    with socket.create_connection(("127.0.0.1", ports[1]), timeout=20) as connection:
        connection.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nab")
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            assert read_all(connection) == b""
        assert time.monotonic() - began > 1


@pytest.mark.long
def test_replies_that_nobody_reads_end_the_connection(ports: tuple[str, int]) -> None:
    with socket.create_connection(("127.0.0.1", ports[1]), timeout=30) as connection, redis_client(ports[1]) as other:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        piece = b"*2\r\n$4\r\nECHO\r\n$90000\r\n" + b"x" * 90_000 + b"\r\n"

        def send_on() -> None:
            for _ in range(10_000):
                connection.sendall(piece)
                assert other.ping()

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_on()


@pytest.mark.long
def test_more_connections_than_a_client_may_have_end_idle_ones(ports: tuple[str, int]) -> None:
    opened = [socket.create_connection(("127.0.0.1", ports[1]), timeout=20) for _ in range(60)]
    try:
        for connection in opened[-30:]:
            connection.sendall(b"PING\r\n")
            assert connection.recv(100) == b"+PONG\r\n"
    finally:
        for connection in opened:
            connection.close()


@pytest.mark.long
def test_noise_doesnt_end_the_server(ports: tuple[str, int]) -> None:
    draw = random.Random(11)
    whole = [
        b"*2\r\n$3\r\nGET\r\n$6\r\nlong:1\r\n",
        b"PING\r\n",
        b"*3\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$0\r\n\r\n",
        b"*1\r\n$4\r\nINFO\r\n",
    ]
    for _ in range(examples(300, 75)):
        data = bytearray(b"".join(draw.choices(whole, k=draw.randrange(1, 6))))
        for _ in range(draw.randrange(6)):
            place = draw.randrange(len(data))
            data[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        with socket.create_connection(("127.0.0.1", ports[1]), timeout=20) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                read_all(connection)
            except OSError:
                pass
    with redis_client(ports[1]) as client:
        assert client.ping()
    assert "INTERNAL_ERROR" not in httpx.get(f"{ports[0]}/metrics", timeout=60).text


@pytest.mark.long
def test_on_a_shard_no_row_of_another_one_is_said_not_to_exist(golden: Callable[[str], Any], tmp_path: Path) -> None:
    """Compiled code answers plain GETs in a pipeline, but can't tell of a row that isn't there whether it lies elsewhere."""
    checkpoint, draw, port = golden("spark-4.3/transform-variables-rocksdb-changelog").checkpoint, random.Random(8), free_port()
    name = f"{checkpoint.name}.transform_0_more"  # its rows don't expire: one that isn't there never was
    with millpond.open(checkpoint, replica_dir=MEMORY, wait_seconds=30) as pond:
        (column,) = pond[name].key_order
        rows = {row[column] for row in pond[name].scan() if row[column]}
    options = ("--redis-port", str(port), "--shard", "1/2", "--no-sql")
    with serving(checkpoint, *options, home=tmp_path / "home") as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        wait_until_ready(client)
        seen = Counter[str]()
        with redis.Redis(port=port) as commands:
            for _ in range(40):
                keys = [draw.choice([*rows, *(f"nobody{n}" for n in range(len(rows)))]) for _ in range(draw.randrange(1, 9))]
                with commands.pipeline(transaction=False) as pipe:
                    for key in keys:
                        pipe.get(f"{name}:{key}")
                    answers = [str(reply) for reply in pipe.execute(raise_on_error=False)]
                for key, answer in zip(keys, answers, strict=True):
                    there = client.get(f"/tables/{name}/rows", params={column: key})
                    elsewhere = there.status_code == 421
                    assert elsewhere == ("OTHER_SHARD" in answer), (key, answer)
                    assert elsewhere or (answer == "None") == (key not in rows), (key, answer)
                    seen["elsewhere" if elsewhere else "row" if key in rows else "nobody"] += 1
        assert min(seen.values()) > 10, seen
        assert len(seen) == 3

"""Keyspace notifications: one for each changed key of a batch, as `Table.changes` has them; rights; limits."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.serve.access.tokens import remove_token
from servers.ports import free_port
from servers.redis_clients import redis_client
from servers.serving import serving, wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import examples
from suite.waiting import PATIENCE_SECONDS, wait_until

redis = pytest.importorskip("redis")
TABLE = "job.aggregate_0"
EVENTS = {"insert": "set", "update": "set", "delete": "del", "expire": "expired", "remove": "del"}
KEYS = [f"{a}{b}" for a in "abc:%" for b in "01[*"]


class Job:
    """A job that is served at a port of Redis' protocol."""

    def __init__(self, written: WrittenCheckpoint, url: str, port: int) -> None:
        self.written, self.url, self.port = written, url, port
        self._draw, self._batch = random.Random(7), 0
        self._there: set[str] = set()

    def commit(self, changes: list[tuple[Any, int | None]]) -> int:
        """One more batch; returns its number."""
        self.written.plan(changes, snapshot=False)
        self.written.commit()
        self._batch += 1
        return self._batch

    def commit_random(self) -> int:
        """A batch of random changes."""
        changes: dict[str, int | None] = {}
        for key in self._draw.sample(KEYS, self._draw.randrange(1, 6)):
            changes[key] = None if key in self._there and self._draw.random() < 0.4 else self._draw.randrange(1000)
        for key, value in changes.items():
            (self._there.discard if value is None else self._there.add)(key)
        return self.commit(list(changes.items()))

    def place(self) -> str:
        """Where the changes are now."""
        with millpond.connect(self.url) as server:
            return str(server[TABLE].changes().token)

    def events(self, since: str, batch: int) -> list[tuple[str, str]]:
        """The changes from a place up to a batch: event and Redis key."""
        with millpond.connect(self.url) as server:
            changes = server[TABLE].changes(since, bounds=millpond.Bounds(min_batch=batch, wait_seconds=20))
            return [(EVENTS[change.kind], f"{TABLE}:{change.row['k'].replace('%', '%25')}") for change in changes]


@contextlib.contextmanager
def serving_job(folder: Path, *options: str, history: bool = True) -> Iterator[Job]:
    written, port = WrittenCheckpoint(folder / "job"), free_port()
    written.plan([("a0", 1)], snapshot=False)
    written.commit()
    kept = ("--history", f"{TABLE}=1000") if history else ()
    with serving(written.path, "--redis-port", str(port), *kept, *options, home=folder / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield Job(written, url, port)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with serving_job(tmp_path_factory.mktemp("job"), "--max-streams-per-client", "8", "--send-seconds", "5") as served:
        yield served


def messages(subscription: Any, count: int) -> list[tuple[str, str]]:
    """So many messages: channel and text; and no more come."""
    found: list[tuple[str, str]] = []

    def are_there() -> bool:
        while len(found) < count and (message := subscription.get_message(ignore_subscribe_messages=True, timeout=1)):
            found.append((message["channel"].decode(), message["data"].decode()))
        return len(found) == count

    wait_until(are_there, f"{count} messages")
    assert subscription.get_message(ignore_subscribe_messages=True, timeout=0.2) is None
    return found


def published(events: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [m for event, key in events for m in ((f"__keyspace@0__:{key}", event), (f"__keyevent@0__:{event}", key))]


@pytest.mark.parametrize("protocol", [2, 3])
def test_messages_are_the_changes_of_the_table(job: Job, protocol: int) -> None:
    with redis_client(job.port, protocol=protocol) as client, redis_client(job.port) as other:
        assert client.config_get("notify*") in ({"notify-keyspace-events": "AKE"}, {b"notify-keyspace-events": b"AKE"})
        patterns = ["__key*__:*", f"__keyspace@0__:{TABLE}:[ab]*", "__keyevent@?__:[sd]e?", "__keyspace@0__:other:*", "nothing"]
        channels = [f"__keyspace@0__:{TABLE}:{key}" for key in ("a0", "b1", "nothing")] + ["__keyevent@0__:del", "news"]
        everything, chosen, plain = client.pubsub(), client.pubsub(), client.pubsub()
        everything.psubscribe(patterns[0])
        chosen.psubscribe(*patterns[1:])
        plain.subscribe(*channels)
        for subscription, count in ((everything, 1), (chosen, 4), (plain, 5)):
            for number in range(1, count + 1):
                assert subscription.get_message(timeout=20)["data"] == number
        assert other.pubsub_numpat() == 5
        assert sorted(other.pubsub_channels()) == sorted(c.encode() for c in channels)
        assert other.pubsub_numsub("news", "none") == [(b"news", 1), (b"none", 0)]
        place = job.place()
        for _ in range(examples(12, 4)):
            batch = job.commit_random()
        events = job.events(place, batch)
        every = published(events)
        assert messages(everything, len(every)) == every
        expected = [m for m in every for p in patterns[1:] if fnmatch.fnmatchcase(m[0], p)]
        assert messages(chosen, len(expected)) == expected
        expected = [m for m in every if m[0] in channels]
        assert messages(plain, len(expected)) == expected
        chosen.punsubscribe(patterns[1])
        plain.unsubscribe()
        place, batch = job.place(), job.commit([("a0", 5), ("b0", 6)])
        every = published(job.events(place, batch))
        expected = [m for m in every for p in patterns[2:] if fnmatch.fnmatchcase(m[0], p)]
        assert messages(chosen, len(expected)) == expected
        assert messages(everything, len(every)) == every
        assert messages(plain, 0) == []
        for subscription in (everything, chosen, plain):
            subscription.close()


def test_a_get_upon_a_message_sees_at_least_that_batch(job: Job) -> None:
    with redis_client(job.port) as client, redis_client(job.port) as other:
        subscription = client.pubsub()
        subscription.subscribe(f"__keyspace@0__:{TABLE}:c1")
        subscription.get_message(timeout=20)
        for number in range(examples(40, 10)):
            job.commit([("c1", number)])
            assert messages_one(subscription) == b"set"
            assert int(other.hget(f"{TABLE}:c1", "v")) >= number
        subscription.close()


def messages_one(subscription: Any) -> bytes:
    message = wait_until(lambda: subscription.get_message(ignore_subscribe_messages=True, timeout=1), "a message")
    return bytes(message["data"])


def test_on_an_event_loop(job: Job) -> None:
    async def read() -> list[str]:
        async with redis.asyncio.Redis(port=job.port, protocol=3) as client, client.pubsub() as subscription:
            await subscription.psubscribe("__keyevent@0__:*")
            await subscription.get_message(timeout=20)
            # Values that no other test writes: what is as it was is no change.
            await asyncio.to_thread(job.commit, [("a0", 1001), ("b0", 1002), ("c0", 1003)])
            found: list[str] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(found) < 3:
                    message = await subscription.get_message(ignore_subscribe_messages=True, timeout=20)
                    found += [] if message is None else [message["data"].decode()]
            return found

    assert sorted(asyncio.run(read())) == [f"{TABLE}:{key}" for key in ("a0", "b0", "c0")]


def ask(port: int, *lines: bytes) -> Iterator[bytes]:
    """What a connection gets after each line."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for line in lines:
            connection.sendall(line + b"\r\n")
            yield connection.recv(65536)


def test_what_is_allowed_meanwhile(job: Job) -> None:
    refused = (
        b"-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n"
    )
    words = [b"SUBSCRIBE a b", b"GET a", b"PING", b"PING x", b"DBSIZE", b"UNSUBSCRIBE a", b"UNSUBSCRIBE", b"UNSUBSCRIBE", b"PING"]
    assert list(ask(job.port, *words)) == [
        b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n",
        refused,
        b"*2\r\n$4\r\npong\r\n$0\r\n\r\n",
        b"*2\r\n$4\r\npong\r\n$1\r\nx\r\n",
        refused.replace(b"get", b"dbsize"),
        b"*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n",
        b"*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n",
        b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n",
        b"+PONG\r\n",
    ]
    answers = list(ask(job.port, b"HELLO 3", b"PSUBSCRIBE a*", b"PING", b"DBSIZE", b"RESET", b"PING", b"QUIT"))
    assert answers[1:3] == [b">3\r\n$10\r\npsubscribe\r\n$2\r\na*\r\n:1\r\n", b"+PONG\r\n"]
    assert answers[3].startswith(b":")
    assert answers[4:] == [b"+RESET\r\n", b"+PONG\r\n", b"+OK\r\n"]
    for line, error in (
        (b"SUBSCRIBE", b"-ERR wrong number"),
        (b"PUBSUB", b"-ERR wrong number"),
        (b"PUBSUB x", b"-ERR unknown sub"),
    ):
        assert next(ask(job.port, line)).startswith(error)


def test_subscriptions_of_a_connection_and_of_a_client_are_bounded(job: Job) -> None:
    with redis_client(job.port) as client:
        subscription = client.pubsub()
        subscription.psubscribe(*[f"p{n}" for n in range(100)])
        for _ in range(100):
            subscription.get_message(timeout=20)
        subscription.psubscribe("p100")
        with pytest.raises(redis.exceptions.RedisError, match="may have 100 subscriptions"):
            subscription.get_message(timeout=20)
        subscription.close()
        wide = client.pubsub()
        wide.subscribe(*[f"c{n}" for n in range(10_001)])
        with pytest.raises(redis.exceptions.RedisError, match="may have 10000 subscriptions"):
            wide.get_message(timeout=20)
        wide.close()
    opened = []
    with contextlib.ExitStack() as ending:
        while True:
            assert len(opened) <= 8
            subscription = ending.enter_context(ending.enter_context(redis_client(job.port)).pubsub())
            subscription.subscribe("news")
            try:
                subscription.get_message(timeout=20)
            except redis.exceptions.RedisError as refused:
                assert "TOO_MANY_STREAMS" in str(refused)
                break
            opened.append(subscription)


@pytest.mark.long
def test_who_doesnt_read_loses_the_connection_and_others_dont_wait(job: Job) -> None:
    with socket.create_connection(("127.0.0.1", job.port), timeout=30) as silent, redis_client(job.port) as client:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        patterns = b" ".join(b"*" * n + b"a" + b"*" * n for n in range(1, 100))
        silent.sendall(b"PSUBSCRIBE " + patterns + b"\r\n")
        reader = client.pubsub()
        reader.subscribe("__keyevent@0__:set")
        reader.get_message(timeout=20)
        for round_ in range(100):
            keys = [f"{round_}-{n}-{'x' * 200}" for n in range(50)]
            job.commit([(key, 1) for key in keys])
            found = {messages_one(reader).decode().removeprefix(f"{TABLE}:") for _ in keys}
            assert found == set(keys)
            if round_ > 10 and client.pubsub_numpat() == 0:
                break
        else:
            wait_until(lambda: not client.pubsub_numpat(), "the end of the connection that nobody reads")
        reader.close()


@pytest.mark.long
def test_tokens_open_their_tables(tmp_path: Path) -> None:
    file = tmp_path / "readers.json"
    tokens = []
    for name, tables in (("all", "*"), ("some", TABLE), ("none", "nothing")):
        words = [sys.executable, "-m", "millpond.cli", "token", str(file), name, "--tables", tables]
        tokens.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])
    written, port = WrittenCheckpoint(tmp_path / "job"), free_port()
    written.plan([("a0", 1)], snapshot=False)
    written.commit()
    options = ("--redis-port", str(port), "--tokens", str(file), "--history", f"{TABLE}=1000")
    with serving(written.path, *options, home=tmp_path / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until_ready(http)
        every, some, none = (redis_client(port, password=token) for token in tokens)
        assert next(ask(port, b"SUBSCRIBE a")).startswith(b"-NOAUTH")
        refused = none.pubsub()
        refused.subscribe(f"__keyspace@0__:{TABLE}:a0")
        with pytest.raises(redis.exceptions.RedisError, match="NOT_ALLOWED"):
            refused.get_message(timeout=20)
        subscriptions = [client.pubsub() for client in (every, some, none)]
        for subscription in subscriptions:
            subscription.psubscribe("*")
            subscription.get_message(timeout=20)
        written.plan([("a0", 2)], snapshot=False)
        written.commit()
        expected = published([("set", f"{TABLE}:a0")])
        assert [messages(each, len(expected)) for each in subscriptions[:2]] == [expected] * 2
        assert messages(subscriptions[2], 0) == []
        remove_token(file, "some")

        def is_over() -> bool:
            try:
                subscriptions[1].get_message(timeout=1)
            except redis.exceptions.RedisError:
                return True
            return False

        wait_until(is_over, "the end of the subscription with the token that was removed")
        assert every.ping()
        for client in (every, some, none):
            client.close()
        for each in (*subscriptions, refused):
            each.close()


@pytest.mark.long
def test_a_table_without_history_says_so(tmp_path: Path) -> None:
    with serving_job(tmp_path, history=False) as job, redis_client(job.port) as client:
        with client.pubsub() as subscription:
            subscription.psubscribe(f"__keyspace@0__:{TABLE}:*")
            with pytest.raises(redis.exceptions.RedisError, match="HISTORY_GONE"):
                subscription.get_message(timeout=20)
        with client.pubsub() as subscription:
            subscription.psubscribe("*")
            assert subscription.get_message(timeout=20)["data"] == 1
            job.commit([("a0", 5)])
            assert messages(subscription, 0) == []

"""Transactions of Redis' protocol: all commands between MULTI and EXEC read one batch; errors and bounds as Redis has them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from servers.ports import free_port
from servers.redis_clients import redis_client
from servers.serving import serving, wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import a_few, examples
from suite.waiting import wait_until

redis = pytest.importorskip("redis")
KEYS = [f"key-{n}" for n in range(20)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> WrittenCheckpoint:
    """A job whose every batch sets all rows to its number."""
    made = WrittenCheckpoint(tmp_path_factory.mktemp("transactions") / "numbers")
    go_on(made)
    return made


def go_on(job: WrittenCheckpoint) -> None:
    job.plan([(key, job.next_batch) for key in KEYS], snapshot=job.next_batch % 10 == 0)
    job.commit()


@pytest.fixture(scope="module")
def port(job: WrittenCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    options = ("--redis-port", str(port), "--max-body-bytes", "200000")
    with serving(job.path, *options, home=tmp_path_factory.mktemp("home")) as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        yield port


@pytest.fixture(params=a_few([2, 3], 1))
def client(port: int, request: pytest.FixtureRequest) -> Iterator[Any]:
    with redis_client(port, protocol=request.param) as opened:
        yield opened


@pytest.fixture
def table(client: Any) -> str:
    return next(iter(client.scan_iter())).decode().partition(":")[0]


def number(reply: bytes) -> int:
    return next(v for v in json.loads(reply).values() if isinstance(v, int))


def test_the_default_pipeline_of_redis_py_reads_one_batch(client: Any, table: str, job: WrittenCheckpoint) -> None:
    """While batches come."""
    ended, seen = threading.Event(), set()

    def write() -> None:
        while not ended.is_set():
            go_on(job)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(examples(400, 60)):
            with client.pipeline() as pipe:
                for key in KEYS:
                    pipe.get(f"{table}:{key}")
                pipe.hgetall(f"{table}:{KEYS[0]}")
                pipe.mget([f"{table}:{key}" for key in KEYS])
                *rows, hashed, many = pipe.execute()
            found = {number(row) for row in (*rows, *many)}
            assert len(found) == 1, f"in turn {turn}"
            assert str(next(iter(found))).encode() in hashed.values()
            seen |= found
            found = {number(row) for row in client.mget([f"{table}:{key}" for key in KEYS])}
            assert len(found) == 1, f"MGET in turn {turn}"
    finally:
        ended.set()
        writer.join(60)
    assert len(seen) > 3, "batches came meanwhile"


def test_an_asynchronous_pipeline(port: int, table: str) -> None:
    async def ask() -> Any:
        async with redis.asyncio.Redis(port=port) as client, client.pipeline() as pipe:
            return await pipe.get(f"{table}:{KEYS[0]}").hgetall(f"{table}:{KEYS[1]}").get(f"{table}:nothing").execute()

    row, hashed, nothing = asyncio.run(ask())
    assert isinstance(number(row), int)
    assert hashed
    assert nothing is None


def test_a_watched_row_that_changes_stops_the_transaction(client: Any, table: str, job: WrittenCheckpoint) -> None:
    key = f"{table}:{KEYS[3]}"
    with client.pipeline() as pipe:
        pipe.watch(key)
        before = number(pipe.get(key))
        pipe.multi()
        pipe.get(key)
        assert [number(row) for row in pipe.execute()] == [before]
        pipe.watch(key, f"{table}:nothing")
        go_on(job)
        wait_until(lambda: number(client.get(key)) > before, "the next batch")
        pipe.multi()
        pipe.get(key)
        with pytest.raises(redis.exceptions.WatchError):
            pipe.execute()
        pipe.watch(key)
        pipe.unwatch()


def test_replies_and_errors_are_those_of_redis(client: Any, table: str) -> None:
    def ask(*words: Any) -> Any:
        connection.send_command(*words)
        try:
            return connection.read_response(disable_decoding=True)
        except redis.exceptions.RedisError as error:
            return f"{type(error).__name__}: {error}"

    connection = client.connection_pool.get_connection()
    try:
        assert "EXEC without MULTI" in ask("EXEC")
        assert "DISCARD without MULTI" in ask("DISCARD")
        assert ask("MULTI") == b"OK"
        assert "can not be nested" in ask("MULTI")
        assert "WATCH inside MULTI" in ask("WATCH", "a")
        assert ask("GET", f"{table}:{KEYS[0]}") == b"QUEUED"
        assert ask("GET", "no-table:a") == b"QUEUED"
        assert ask("PING") == b"QUEUED"
        first, second, third = ask("EXEC")
        assert (number(first), third) == (number(first), b"PONG")
        assert "UNKNOWN_TABLE" in str(second), "one that fails when it runs stops no other"
        for wrong in (("NOTHING",), ("GET",), ("SET", "a", "b"), ("SUBSCRIBE", "a"), ("HELLO", "2")):
            assert ask("MULTI") == b"OK"
            assert ask("PING") == b"QUEUED"
            assert "Error" in ask(*wrong)
            assert "Transaction discarded" in ask("EXEC"), wrong
        assert ask("MULTI") == b"OK"
        assert ask("PING") == b"QUEUED"
        assert ask("DISCARD") == b"OK"
        assert ask("PING") == b"PONG"
        assert ask("MULTI") == b"OK"
        assert ask("EXEC") == []
    finally:
        client.connection_pool.release(connection)


def test_a_transaction_has_bounds(client: Any, table: str) -> None:
    def run(*commands: tuple[Any, ...]) -> Any:
        with client.pipeline() as pipe:
            for words in commands:
                pipe.execute_command(*words)
            return pipe.execute(raise_on_error=False)

    assert len(run(*[("GET", f"{table}:{KEYS[0]}")] * 500)) == 500, "in a thread"
    with pytest.raises(redis.exceptions.ResponseError, match="may have 10000 commands"):
        run(*[("PING",)] * 10_001)
    with pytest.raises(redis.exceptions.ResponseError, match="and 200000 bytes"):
        run(*[("ECHO", "x" * 150_000)] * 2)
    with pytest.raises(redis.exceptions.ResponseError, match="may watch 10000 keys"), client.pipeline() as pipe:
        pipe.watch(*[f"{n}" for n in range(10_001)])
    with client.pipeline() as pipe:
        for _ in range(2):
            pipe.watch("a" * 150_000)
        with pytest.raises(redis.exceptions.ResponseError, match="and 200000 bytes"):
            pipe.watch("b" * 150_000)
        pipe.unwatch()
        pipe.watch("b" * 150_000)
    assert client.ping()

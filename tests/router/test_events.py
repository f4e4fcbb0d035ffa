"""Where an event is, asked of shards, is what one server of all partitions says: of random events, keys and times."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.replica.replica import MEMORY
from millpond.schema.types import Field, atomic, struct_of
from millpond.settings import ClientSettings, Retention, RouterSettings
from servers.shards import ShardServer, routing, shard_servers
from spark_files.checkpoint import WrittenCheckpoint

SETTINGS = RouterSettings(client=ClientSettings(tries=3), common_batch_seconds=60)
STEP, MINUTE = 7, 60_000_000
TIME = atomic("timestamp")
WINDOW = struct_of((Field("start", TIME), Field("end", TIME)))


class Windows:
    """A job whose windows end with time; by `plain`, its keys have a time in place of a window."""

    def __init__(self, path: Path, *, plain: bool) -> None:
        self._plain, self._draw = plain, random.Random(6)
        self.written = WrittenCheckpoint(
            path,
            key=(Field("k", atomic("string")), Field("w", TIME if plain else WINDOW)),
            sources=lambda batch: [{"views": {"0": STEP * (batch + 1), "1": 3 * batch}}],
            watermarked=True,
            watermarked_column=1,
            partitions=5,
        )
        self.table = f"{path.name}.aggregate_0"
        self.commit()

    def _key(self, number: int, minute: int) -> tuple[Any, ...]:
        at = minute * MINUTE
        return f"k{number}", at if self._plain else (at, at + 5 * MINUTE)

    def commit(self) -> None:
        batch = self.written.next_batch
        keys = [self._key(self._draw.randrange(30), self._draw.randrange(20)) for _ in range(3)]
        if batch < 4:  # the first shards are empty
            keys = [next(key for number in range(99) if self.written._partition(key := self._key(number, 0)) == 4)]
        rows: list[Any] = [(key, batch) for key in dict.fromkeys(keys)]
        self.written.watermark_ms = batch * 180_000
        self.written.plan(rows, snapshot=False)
        self.written.commit()


@pytest.fixture(scope="module", params=["windows", pytest.param("plain", marks=pytest.mark.long)])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Windows:
    return Windows(tmp_path_factory.mktemp("events") / request.param, plain=request.param == "plain")


@pytest.fixture(scope="module")
def whole(job: Windows) -> Iterator[millpond.Table]:
    kept = Retention(history_batches=None, closed_seconds=None)
    with millpond.open(job.written.path, replica_dir=MEMORY, retention=kept) as pond:
        yield pond[job.table]


@pytest.fixture(scope="module")
def servers(job: Windows, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ShardServer]]:
    kept = ("--history", f"{job.table}=forever", "--keep-closed", f"{job.table}=forever")
    with shard_servers(job.written.path, ["0-1", "2", "3-4"], tmp_path_factory.mktemp("homes"), *kept) as started:
        yield started


def said(table: Any, event: dict[str, Any]) -> Any:
    """What a table says of an event, or why it doesn't."""
    try:
        found = table.find_event(**event)
    except MillpondError as error:
        return error.condition
    return found.batch_read, found.applied, found.late, found.reason, found.batch


def events(draw: random.Random, newest: int, *, plain: bool) -> Iterator[dict[str, Any]]:
    """Random questions, bad ones among them."""
    for _ in range(60):
        number = draw.randrange(STEP * (newest + 3))
        event: dict[str, Any] = {"offset": f"views:{draw.choice((0, 0, 0, 1, 2))}:{number}"}
        at = draw.randrange(20) * 60
        if draw.random() < 0.4:
            time = f"1970-01-01T00:{at // 60:02}:00Z"
            end = f"1970-01-01T00:{at // 60 + 5:02}:00Z"
            event["key"] = {"k": f"k{draw.randrange(30)}", "w": time if plain else {"start": time, "end": end}}
        elif draw.random() < 0.8:
            event["event_time"] = f"1970-01-01T00:{draw.choice((0, 1, 4, 9, 15, 24)):02}:{draw.randrange(60):02}Z"
        yield event
    for batch in range(newest + 1):  # near the watermark of each
        for minute in (0, 3, 6):
            yield {"offset": f"views:0:{STEP * batch + 1}", "event_time": f"1970-01-01T00:{minute:02}:30Z"}
    yield from ({}, {"offset": "nonsense"}, {"offset": "views:0:1", "key": {"nothing": 1}}, {"file": "x"})
    yield from ({"offset": "views:0:1", "line": 3}, {"offset": "views:0:1", "bounds": millpond.Bounds(min_batch=10**6)})


@pytest.mark.long
def test_an_event_is_where_one_server_says(job: Windows, whole: millpond.Table, servers: list[ShardServer], tmp_path: Path) -> None:
    draw, found, urls = random.Random(2), Counter[Any](), [server.url for server in servers]
    with (
        millpond.connect_shards(urls, settings=SETTINGS) as sharded,
        routing(*urls) as url,
        millpond.connect(url) as routed,
    ):
        for _ in range(12):
            job.commit()
            whole.job_reads.replica.catch_up(30)
            newest = int(whole.count().batch)
            sharded[job.table].count(bounds=millpond.Bounds(min_batch=newest, wait_seconds=20))
            if newest not in (3, 7, 12):
                continue
            for number, event in enumerate(events(draw, newest, plain=job.written.key[1].type is TIME)):
                expected = said(whole, event)
                found[expected if isinstance(expected, str) else expected[2]] += 1
                assert said(sharded[job.table], event) == expected, event
                if number % 5 == 0:
                    assert said(routed[job.table], event) == expected, event
                if number % 5 == 1:
                    batch = draw.randrange(1, newest + 1)
                    assert said(sharded[job.table].at(batch=batch), event) == said(whole.at(batch=batch), event), (event, batch)
        # A server that was built again has no positions of the past; the others say what was.
        servers[0].stop()
        servers[0].home = tmp_path / "new"
        servers[0].start()
        sharded[job.table].count(bounds=millpond.Bounds(min_batch=newest, wait_seconds=20))
        for event in events(draw, newest, plain=job.written.key[1].type is TIME):
            assert said(sharded[job.table], event) == said(whole, event), event
    assert found.keys() >= {"yes", "no", "unknown", "INVALID_REQUEST", "NOT_UP_TO_BOUND"}

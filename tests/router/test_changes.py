"""The changes of all shards as one list: those of one replica of all partitions, in its order, from any place on."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.replica.replica import MEMORY
from millpond.router.pond import ShardedPond
from millpond.schema.definition.table import parse_definition
from millpond.settings import ClientSettings, Retention, RouterSettings
from servers.shard_jobs import SHARDS, Job, catch_up
from servers.shards import ShardServer, routing, shard_servers
from spark_files.golden import CELLS
from suite.sizes import a_few
from suite.waiting import wait_until

pytestmark = pytest.mark.long

SETTINGS = RouterSettings(client=ClientSettings(page_rows=7, tries=3), common_batch_seconds=60)
KEPT = Retention(history_batches=None)
SEED = 1
CELLS_OF_NOW = [cell for cell in CELLS if "/" not in cell or cell.startswith("spark-4.3")]


@pytest.fixture(scope="module")
def whole(whole: millpond.Pond, job: Job) -> millpond.Table:
    return whole[job.table]


@pytest.fixture(scope="module")
def sharded(servers: list[ShardServer], whole: millpond.Table, job: Job) -> Iterator[millpond.Table]:
    with millpond.connect_shards([server.url for server in servers], settings=SETTINGS) as pond:
        for _ in range(5):
            job.commit()
            catch_up(pond[job.table], whole)
        yield pond[job.table]


def in_pages(table: Any, since: str | int, draw: random.Random) -> list[Any]:
    """All changes after a place, in pages of different lengths."""
    page = table.changes(since, limit=draw.randrange(1, 9))
    found = list(page)
    while page.more:
        assert page
        page = table.changes(page.token, limit=draw.randrange(1, 9))
        found += page
    assert not table.changes(page.token)
    return found


def condition_of(read: Callable[[], Any]) -> str:
    """The condition of the error that a read raises."""
    with pytest.raises(MillpondError) as refused:
        read()
    return refused.value.condition


def test_changes_are_those_of_the_whole_in_its_order(sharded: Any, whole: Any, job: Job) -> None:
    draw = random.Random(2)
    for _ in range(6):
        job.commit()
    newest = catch_up(sharded, whole)
    for since in (newest - 6, newest - 3, newest - 1):
        expected = list(whole.changes(since))
        assert list(sharded.changes(since)) == expected
        assert in_pages(sharded, since, draw) == expected
    assert expected
    assert not sharded.changes(newest)
    # Reads go on from tokens of any place, while batches come.
    token, seen = sharded.changes(limit=draw.randrange(1, 5)).token, []
    for _ in range(5):
        job.commit()
        catch_up(sharded, whole)
        page = sharded.changes(token, limit=draw.randrange(1, 12))
        seen += page
        token = page.token
    assert [*seen, *sharded.changes(token)] == list(whole.changes(newest))


def test_a_reader_waits_for_the_next_change(sharded: Any, whole: Any, job: Job) -> None:
    newest = catch_up(sharded, whole)
    token = sharded.changes().token
    assert not sharded.changes(token, wait_seconds=0.3)
    threading.Timer(0.3, job.commit).start()
    found = sharded.changes(token, wait_seconds=20)
    assert {change.batch for change in found} == {newest + 1}


def test_what_is_no_place_is_refused(sharded: Any, whole: Any, servers: list[ShardServer], job: Job) -> None:
    newest = catch_up(sharded, whole)
    token = sharded.changes().token
    for since in ("x", whole.changes().token):
        assert condition_of(lambda since=since: sharded.changes(since)) == "INVALID_TOKEN"
    assert condition_of(lambda: sharded.changes(newest + 9)) == condition_of(lambda: whole.changes(newest + 9)) == "NOT_UP_TO_BOUND"
    assert condition_of(lambda: sharded.changes(limit=0)) == "INVALID_LIMIT"
    # A router of other servers doesn't know the places of these.
    with (
        shard_servers(job.checkpoint.path, [""], servers[0].home.parent / "other") as others,
        millpond.connect_shards([others[0].url], settings=SETTINGS) as pond,
    ):
        wait_until(lambda: job.table in pond.tables(), "the replica that it builds")
        assert condition_of(lambda: pond[job.table].changes(0)) == "HISTORY_GONE"
        assert condition_of(lambda: pond[job.table].changes(token)) in ("INVALID_TOKEN", "HISTORY_GONE")


def test_a_shard_that_was_built_again_elsewhere_isnt_taken_for_the_same(
    sharded: Any, whole: Any, servers: list[ShardServer], job: Job, tmp_path: Path
) -> None:
    token, from_start = sharded.changes().token, sharded.changes(0, limit=3).token
    server = servers[1]
    server.stop()
    before, server.home = server.home, tmp_path / "new"
    try:
        server.start()
        job.commit()
        catch_up(sharded, whole)
        for since in (token, from_start, 0):
            assert condition_of(lambda since=since: sharded.changes(since)) == "HISTORY_GONE"
    finally:
        server.stop()
        server.home = before
        server.start()
    catch_up(sharded, whole)
    assert list(sharded.changes(token)) == list(whole.changes(sharded.count().batch - 1))


def test_a_router_streams_changes(sharded: Any, whole: Any, servers: list[ShardServer], job: Job) -> None:
    for _ in range(4):
        job.commit()
    newest = catch_up(sharded, whole)
    with routing(*(server.url for server in servers)) as url, millpond.connect(url) as pond:
        asked = pond[job.table]
        assert list(asked.changes(newest - 3, limit=5)) == list(whole.changes(newest - 3))[:5]
        begun = asked.changes()
        threading.Timer(0.3, job.commit).start()
        assert asked.changes(begun.token, wait_seconds=20)
        since = catch_up(sharded, whole) - 2
        expected = [change.batch for change in whole.changes(since)]
        path = f"{url}/tables/{job.table}/changes"
        with httpx.stream("GET", path, params={"_since": since}, headers={"accept": "text/event-stream"}, timeout=60) as stream:
            lines, found, is_committed = stream.iter_lines(), [], False
            while len(found) < len(expected) or not is_committed:
                line = next(lines)
                if line.startswith("data: "):
                    found += [change["batch"] for change in json.loads(line[6:])["changes"]]
                if found and not is_committed:
                    assert found == expected
                    job.commit()
                    catch_up(sharded, whole)
                    expected, is_committed = [change.batch for change in whole.changes(since)], True
            assert found == expected
        page = httpx.get(path, params={"_since": since, "_limit": 1}, timeout=60).json()
        assert (page["more"], len(page["changes"])) == (True, 1)
        assert httpx.get(path, params={"_since": "x"}, timeout=60).json()["error"]["condition"] == "INVALID_TOKEN"
        assert httpx.get(path, params={"_batch": 1}, timeout=60).json()["error"]["condition"] == "INVALID_REQUEST"


@pytest.mark.parametrize("cell", a_few(CELLS_OF_NOW, 0, 12))
def test_changes_of_every_batch_of_a_golden_checkpoint(golden: Callable[[str], Any], tmp_path: Path, cell: str) -> None:
    copy, draw = golden(cell), random.Random(cell)
    if (copy.source / "definition.json").exists():
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    copy.uncommit()
    copy.commit(0)
    with ExitStack() as opened:
        whole = opened.enter_context(millpond.open(copy.checkpoint, replica_dir=MEMORY, retention=KEPT))
        kept = [word for name in whole.tables() for word in ("--history", f"{name}=forever")]
        servers = opened.enter_context(shard_servers(copy.checkpoint, SHARDS, tmp_path / "homes", *kept))
        sharded: ShardedPond = opened.enter_context(millpond.connect_shards([server.url for server in servers], settings=SETTINGS))
        tokens = {name: sharded[name].changes().token for name in whole.tables()}
        seen: dict[str, list[Any]] = {name: [] for name in tokens}
        try:
            for batch in range(1, copy.last + 1):
                copy.commit(batch)
                whole.catch_up(30)
                for name in tokens:
                    sharded[name].count(bounds=millpond.Bounds(min_batch=batch, wait_seconds=20))
                    page = sharded[name].changes(tokens[name], limit=draw.randrange(1, 30))
                    tokens[name], seen[name] = page.token, [*seen[name], *page]
            for name, token in tokens.items():
                expected = list(map(repr, whole[name].changes(0)))
                assert [*map(repr, seen[name]), *map(repr, sharded[name].changes(token))] == expected
                assert list(map(repr, sharded[name].changes(0))) == expected
        except MillpondError as error:  # built again: other variables, or other partitions
            assert error.condition in ("HISTORY_GONE", "UNKNOWN_TABLE")
            assert any(word in cell for word in ("evolution", "variables", "repartitioned"))

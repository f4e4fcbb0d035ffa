"""Copies of a shard that aren't alike: one lost its history, one is late.  Answers are those of one replica of everything."""

from __future__ import annotations

import datetime as dt
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.replica.replica import MEMORY
from millpond.settings import ClientSettings, Retention, RouterSettings
from millpond.tables.history.versions import Versions
from servers.shard_jobs import KEYS, Job, answer_or_condition, catch_up
from servers.shards import ShardServer, routing, shard_servers
from suite.sizes import examples
from suite.waiting import wait_until

SHARDS = ["0-2", "3-4"]
SETTINGS = RouterSettings(client=ClientSettings(page_rows=7, tries=3), common_batch_seconds=60)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "now" / "job", seed=9)


@pytest.fixture
def whole(job: Job) -> Iterator[millpond.Pond]:
    with millpond.open(job.checkpoint.path, replica_dir=MEMORY, retention=Retention(history_batches=None)) as pond:
        yield pond


def said(read: Callable[[], Any]) -> Any:
    """What a read says: its rows and its batch; or why it is refused."""
    found = answer_or_condition(read)
    if isinstance(found, str):
        return found
    # Whether a row that isn't there has expired, a new replica doesn't know.
    return (found if isinstance(found, int) else [repr(each) for each in found if each]), found.cut.position.batch


def later(found: Versions, since: int) -> Versions:
    """The versions that came later: of those before, a new replica doesn't know when they were written."""
    found[:] = [version for version in found if version.batch is not None and version.batch > since]
    return found


def until_there(server: ShardServer, job: Job) -> None:
    """Return when a server has the newest batch."""
    newest = millpond.Bounds(shard=server.shard, min_batch=job.checkpoint.next_batch - 1, wait_seconds=20)
    with millpond.connect(server.url) as one:
        one[job.table].get_all((), bounds=newest)


@pytest.mark.long
def test_a_copy_that_lost_its_history_doesnt_hide_that_of_the_other(job: Job, whole: millpond.Pond, tmp_path: Path) -> None:
    name, draw = job.table, random.Random(12)
    with (
        shard_servers(job.checkpoint.path, SHARDS, tmp_path / "homes", "--history", f"{name}=forever", copies=2) as servers,
        millpond.connect_shards([server.url for server in servers], settings=SETTINGS) as pond,
    ):
        for _ in range(8):
            job.commit()
            for server in servers:  # each has each batch by itself
                until_there(server, job)
        for server in draw.choice([(servers[0], servers[3]), (servers[1], servers[2])]):
            server.stop()
            server.home = server.home.with_name(f"{server.home.name}-new")
            server.start()
            until_there(server, job)
        newest = catch_up(pond[name], whole[name])
        committed = {version.batch: version.committed_ms for version in whole[name].history(k="each")}
        counted = 0
        for _ in range(examples(200, 50)):
            batch, key = draw.randrange(1, newest + 1), draw.choice(KEYS)
            moment = dt.datetime.fromtimestamp((committed[batch] + draw.choice([0, 1])) / 1000, dt.UTC)
            read: Callable[[Any], Any] = draw.choice(
                [
                    lambda table, batch=batch: table.at(batch=batch).scan(),
                    lambda table, moment=moment: table.at(time=moment).scan(),
                    lambda table, moment=moment, key=key: table.at(time=moment).get_all([{"k": key}]),
                    lambda table, batch=batch, key=key: later(table.history(k=key, since=batch), batch),
                    lambda table, batch=batch: later(table.history(since=batch), batch),
                    lambda table, batch=batch: table.changes(batch),
                ]
            )
            there = said(lambda read=read: read(whole[name]))
            assert said(lambda read=read: read(pond[name])) == there
            counted += there != "HISTORY_GONE"
        assert counted > 40


@pytest.mark.long
def test_a_late_copy_makes_no_answer_wrong_and_hides_no_change(job: Job, whole: millpond.Pond, tmp_path: Path) -> None:
    name, draw, late = job.table, random.Random(5), tmp_path / "late" / "job"
    keeps = ("--history", f"{name}=forever")

    def bring() -> None:
        """The late copy's folder gets what is there, as a slow copy of a bucket does."""
        shutil.copytree(job.checkpoint.path, late, ignore=shutil.ignore_patterns("commits"), dirs_exist_ok=True)
        shutil.copytree(job.checkpoint.path / "commits", late / "commits", dirs_exist_ok=True)

    bring()
    with ExitStack() as opened:
        places = [(SHARDS[0], late), (SHARDS[0], job.checkpoint.path), (SHARDS[1], job.checkpoint.path)]
        servers = [ShardServer(folder, shard, tmp_path / f"home-{n}", keeps) for n, (shard, folder) in enumerate(places)]
        for server in servers:
            server.start()
            opened.callback(server.stop)
        url = opened.enter_context(routing(*(server.url for server in servers)))
        pond = opened.enter_context(millpond.connect(url))
        begun = catch_up(pond[name], whole[name])
        seen: list[str] = []
        ends, last = threading.Event(), 0

        def follow() -> None:
            nonlocal last
            with millpond.connect(url) as mine:
                token: Any = begun
                while not ends.is_set():
                    page = mine[name].changes(token, wait_seconds=1)
                    seen.extend(map(repr, page))
                    token, last = page.token, page.batch

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            for _ in range(12):
                job.commit()
                newest = job.checkpoint.next_batch - 1
                whole[name].job_reads.replica.catch_up(30)
                wanted = millpond.Bounds(min_batch=newest, wait_seconds=20)
                assert said(lambda wanted=wanted: pond[name].scan(bounds=wanted)) == said(whole[name].scan)
                for _ in range(5):
                    rows, batch = said(pond[name].scan)
                    assert (rows, batch) == said(lambda batch=batch: whole[name].at(batch=batch).scan())
                    key = draw.choice(KEYS)
                    found, batch = said(lambda key=key: pond[name].get_all([{"k": key}]))
                    assert (found, batch) == said(lambda key=key, batch=batch: whole[name].at(batch=batch).get_all([{"k": key}]))
                if draw.random() < 0.4:
                    bring()
            bring()
            wait_until(lambda: last == newest, "the newest rows")
        finally:
            ends.set()
            follower.join(60)
        assert not follower.is_alive()
        assert seen == list(map(repr, whole[name].changes(begun)))

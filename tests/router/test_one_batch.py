"""While batches commit, servers are killed and the network is bad, each answer is that of its batch.

None is refused while a copy can be reached.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.errors import MillpondError
from millpond.router.reads.table import ShardedTable
from millpond.settings import ClientSettings, RouterSettings
from servers.network import Weather, network
from servers.serving import wait_until_ready
from servers.shards import shard_servers
from spark_files.batches import Batches
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import IS_EVERY, IS_LONG
from suite.waiting import wait_until

pytestmark = pytest.mark.long

PARTITIONS, KEYS, ROWS = 7, 60, 25
SECONDS = 180 if IS_EVERY else 40 if IS_LONG else 6
# While servers are killed or out of reach, answers are few.
FAULTS_SECONDS = max(SECONDS, 25)


class Committing(Batches):
    """Commits random batches, and knows the content after each.

    contents:  batch -> key -> value
    """

    def __init__(self, folder: Path, seed: int, pause_seconds: float) -> None:
        super().__init__(pause_seconds)
        self.checkpoint = WrittenCheckpoint(folder, partitions=PARTITIONS)
        self.contents: list[dict[str, int]] = []
        self._draw = random.Random(seed)
        for _ in range(3):
            self.batch()

    def batch(self) -> None:
        """Commit one."""
        changes = [
            ((f"k{key}",), None if self._draw.random() < 0.3 else self._draw.randrange(10**6))
            for key in self._draw.sample(range(KEYS), self._draw.randrange(ROWS))
        ]
        self.checkpoint.plan(changes, snapshot=self.checkpoint.next_batch % 10 == 0)
        self.contents.append({key[0]: value for key, value in self.checkpoint.content().items()})
        self.checkpoint.commit()


def check(table: ShardedTable, contents: list[dict[str, int]], draw: random.Random) -> int:
    """Ask something, and compare the answer with the content at its batch; returns how many rows were compared."""
    keys = [f"k{draw.randrange(KEYS + 5)}" for _ in range(draw.randrange(1, 8))]
    kind = draw.choice(["get", "get", "get_all", "scan", "count", "pages", "range"])
    rows: Any
    match kind:
        case "get":
            rows = [table.get(k=keys[0])]
            expected = [contents[rows[0].batch].get(keys[0])]
            assert [row.get("v") for row in rows] == expected, (kind, keys[0], rows[0].batch)
            return 1
        case "get_all":
            rows = table.get_all([{"k": key} for key in keys])
            assert [row.get("v") for row in rows] == [contents[rows.batch].get(key) for key in keys], (kind, keys, rows.batch)
            return len(keys)
        case "count":
            count = table.count()
            assert count == len(contents[count.batch])
            return int(count)
        case "range":
            rows = table.range(start={"k": keys[0]}, limit=10)
            expected_rows = sorted(item for item in contents[rows.batch].items() if item[0] >= keys[0])[:10]
        case "scan":
            rows = table.scan(reverse=True)
            expected_rows = sorted(contents[rows.batch].items(), reverse=True)
        case _:
            rows = table.scan(limit=draw.randrange(5, 30))
            batch, token = rows.batch, rows.token
            while token is not None:
                page = table.scan(limit=draw.randrange(5, 30), token=token)
                assert page.batch == batch
                rows += page
                token = page.token
            expected_rows = sorted(contents[batch].items())
    assert [(row["k"], row["v"]) for row in rows] == expected_rows, (kind, rows.batch)
    return len(rows)


class Asking(threading.Thread):
    """Asks until `ended`, each second question with a bound.

    refused:  conditions of errors
    """

    def __init__(
        self, table: ShardedTable, contents: list[dict[str, int]], seed: int, ended: threading.Event, passes: Callable[[str], bool]
    ) -> None:
        super().__init__(daemon=True)
        self._table, self._contents, self._draw, self._ended, self._passes = table, contents, random.Random(seed), ended, passes
        self.rows = self.answers = 0
        self.refused: list[str] = []
        self.raised: BaseException | None = None

    def run(self) -> None:
        """Question after question."""
        try:
            while not self._ended.is_set():
                try:
                    self.rows += check(self._table, self._contents, self._draw)
                    self.answers += 1
                except MillpondError as error:
                    if not self._passes(error.condition):
                        raise
                    self.refused.append(error.condition)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.raised = error


def ask_while(
    urls: list[str],
    job: Committing,
    threads: int,
    seconds: float,
    meanwhile: Callable[[float], None],
    passes: Callable[[str], bool],
    least: int,
) -> list[Asking]:
    """Ask in several threads for so long, and until there have been `least` answers; raises what they raised."""
    # A scan's next page is only where its first one was: if that server is out of reach, it takes so long to find out.
    settings = RouterSettings(client=ClientSettings(timeout_seconds=2), common_batch_seconds=40)
    with millpond.connect_shards(urls, settings=settings) as pond:
        table = pond[f"{job.checkpoint.path.name}.aggregate_0"]
        until, ended = time.monotonic() + seconds, threading.Event()
        asking = [Asking(table, job.contents, seed, ended, passes) for seed in range(threads)]
        for each in asking:
            each.start()
        try:
            meanwhile(until)
            time.sleep(max(0.0, until - time.monotonic()))
            wait_until(
                lambda: any(each.raised for each in asking) or sum(each.answers for each in asking) > least,
                f"more than {least} answers",
            )
        finally:
            ended.set()
        for each in asking:
            each.join(120)
        for each in asking:
            if each.raised is not None:
                raise each.raised
        return asking


def of_pages(condition: str) -> bool:
    """Whether a scan must begin again: the batch of its first page is gone, or the server that kept it."""
    return condition == "TOKEN_EXPIRED"


def test_each_answer_is_of_one_batch_while_batches_commit(tmp_path: Path) -> None:
    job = Committing(tmp_path / "job", 3, 0.05)
    with shard_servers(job.checkpoint.path, ["1/3", "2/3", "3/3"], tmp_path / "homes") as servers:
        job.start()
        asked = ask_while([server.url for server in servers], job, 3, SECONDS, lambda _until: None, of_pages, 10)
        wait_until(lambda: len(job.contents) > 10, "more than ten batches")
        job.end()
    answers, refused = sum(each.answers for each in asked), sum(len(each.refused) for each in asked)
    assert answers > 10
    assert refused < answers / 4
    assert len(job.contents) > 10


@pytest.mark.faults
def test_a_killed_copy_is_replaced_by_the_other_one_without_a_refusal(tmp_path: Path) -> None:
    job, draw = Committing(tmp_path / "job", 4, 0.05), random.Random(5)
    kills: list[str] = []
    with shard_servers(job.checkpoint.path, ["1/3", "2/3", "3/3"], tmp_path / "homes", copies=2) as servers:

        def kill_one_after_the_other(until: float) -> None:
            while time.monotonic() < until or len(kills) < 3:
                server = draw.choice(servers)
                server.kill()
                kills.append(server.shard)
                time.sleep(draw.random())
                server.start()
                with httpx.Client(base_url=server.url, timeout=60) as client:
                    wait_until_ready(client)
                time.sleep(1 + draw.random())  # it catches up: two copies of one shard are never down together

        job.start()
        asked = ask_while([server.url for server in servers], job, 3, FAULTS_SECONDS, kill_one_after_the_other, of_pages, 30)
        job.end()
    answers, refused = sum(each.answers for each in asked), sum(len(each.refused) for each in asked)
    assert len(kills) >= 3
    assert answers > 30
    assert refused < answers / 4


@pytest.mark.faults
def test_delays_and_cut_connections_change_no_answer(tmp_path: Path) -> None:
    """The links of a shard's copies are never down together; each of them loses, cuts and delays."""
    # Six servers share this machine's cores: they must keep up with the batches.
    job, draw = Committing(tmp_path / "job", 6, 0.15), random.Random(7)
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(shard_servers(job.checkpoint.path, ["1/3", "2/3", "3/3"], tmp_path / "homes", copies=2))
        links = [Weather() for _ in servers]
        urls = [
            stack.enter_context(network(server.port, link, seed))
            for seed, (server, link) in enumerate(zip(servers, links, strict=True))
        ]

        def change_the_weather(until: float) -> None:
            while time.monotonic() < until:
                down = draw.randrange(len(links))
                for number, link in enumerate(links):
                    link.is_down = number == down
                    link.delay_seconds = draw.choice([0.0, 0.002, 0.1])
                    link.cut, link.stall = draw.choice([0.0, 0.01, 0.05]), draw.choice([0.0, 0.002])
                time.sleep(draw.random() * 2)
            for link in links:
                link.is_down, link.delay_seconds, link.cut, link.stall = False, 0.1, 0.05, 0.002
            kinds = ("cut", "stalled", "delayed")
            wait_until(lambda: all(sum(link.done[kind] for link in links) for kind in kinds), "each kind of fault")
            for link in links:
                link.delay_seconds, link.cut, link.stall = 0.0, 0.0, 0.0

        job.start()
        asked = ask_while(urls, job, 3, FAULTS_SECONDS, change_the_weather, of_pages, 10)
        job.end()
    answers, refused = sum(each.answers for each in asked), sum(len(each.refused) for each in asked)
    done = sum((link.done for link in links), Counter[str]())
    assert min(done[kind] for kind in ("cut", "stalled", "delayed")) > 0
    assert answers > 10
    assert refused < answers / 4

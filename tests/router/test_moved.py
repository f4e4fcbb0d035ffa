"""Servers move on: another job at the same place, other names of columns, one that hangs, one that is gone."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.router.pond import ShardedPond
from millpond.schema.definition.table import parse_definition
from millpond.settings import ClientSettings, RouterSettings
from router.test_route import routing
from servers.serving import wait_until_ready
from servers.shards import ShardServer, shard_servers
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

KEYS = 200
NAME = "job.aggregate_0"
QUICK = RouterSettings(client=ClientSettings(tries=3), common_batch_seconds=3)


def written(folder: Path, partitions: int, job_id: str = "job-1") -> WrittenCheckpoint:
    job = WrittenCheckpoint(folder, job_id, partitions=partitions)
    for snapshot in (True, False):
        job.plan([((f"k{n}",), n) for n in range(KEYS)], snapshot=snapshot)
        job.commit()
    return job


def replace(job: WrittenCheckpoint, other: WrittenCheckpoint) -> None:
    """Another job takes the place of one."""
    shutil.move(job.path, job.path.with_name("gone"))
    shutil.move(other.path, job.path)


def connected(servers: list[Any], settings: RouterSettings = QUICK) -> ShardedPond:
    return millpond.connect_shards([server.url for server in servers], settings=settings)


def condition_of(read: Callable[[], Any]) -> str:
    with pytest.raises(MillpondError) as refused:
        read()
    return refused.value.condition


@pytest.mark.long
def test_no_rows_are_left_out_when_a_job_has_more_partitions_than_the_servers_name(tmp_path: Path) -> None:
    job, other = written(tmp_path / "job", 4), written(tmp_path / "other" / "job", 8, "job-2")
    with shard_servers(job.path, ["0-1", "2-3"], tmp_path / "homes") as servers, connected(servers) as pond:
        table = pond[NAME]
        assert (table.count(), len(table.scan())) == (KEYS, KEYS)
        replace(job, other)
        conditions = set()

        def is_incomplete() -> bool:
            for read in (table.count, lambda: len(table.scan()), lambda: len(table.to_arrow())):
                try:
                    assert read() == KEYS
                except MillpondError as error:
                    conditions.add(error.condition)
            return "SHARDS_INCOMPLETE" in conditions

        wait_until(is_incomplete, "the condition SHARDS_INCOMPLETE")


@pytest.mark.long
def test_a_replaced_job_is_read_though_a_dead_server_had_a_later_batch_of_the_old_one(tmp_path: Path) -> None:
    job, other = written(tmp_path / "job", 4), written(tmp_path / "other" / "job", 4, "job-2")
    for _ in range(3):
        job.plan([(("k0",), 7)], snapshot=False)
        job.commit()
    with shard_servers(job.path, ["1/2", "2/2", "1/2"], tmp_path / "homes") as servers, connected(servers) as pond:
        table = pond[NAME]
        assert table.get(k="k0")["v"] == 7
        servers[2].kill()
        replace(job, other)

        def is_new() -> bool:
            try:
                return bool(table.get(k="k0")["v"] == 0 and table.count() == KEYS and table.scan().batch == 1)
            except MillpondError:
                return False

        wait_until(is_new, "the new job")


@pytest.mark.long
def test_a_server_of_everything_takes_over_from_a_shard_that_is_gone(tmp_path: Path) -> None:
    job = written(tmp_path / "job", 4)
    with shard_servers(job.path, ["1/2", "2/2", ""], tmp_path / "homes") as servers, connected(servers) as pond:
        table = pond[NAME]
        assert table.count() == KEYS
        servers[1].kill()
        assert table.count() == KEYS
        assert all(table.get(k=f"k{n}")["v"] == n for n in range(0, KEYS, 20))


@pytest.mark.long
def test_other_names_of_columns_are_learnt_from_servers_that_answer(tmp_path: Path) -> None:
    job = written(tmp_path / "job", 4)
    with shard_servers(job.path, ["1/2", "1/2", "2/2"], tmp_path / "homes") as servers, connected(servers) as pond:
        table = pond[NAME]
        assert table.get(k="k1")["v"] == 1
        servers[0].kill()
        text = json.dumps(table.definition.to_json()).replace('"name": "k"', '"name": "kk"')
        create_beside(str(job.path)).write_definition(parse_definition(json.loads(text)))

        def is_new() -> bool:
            try:
                return bool(table.get(kk="k1"))
            except MillpondError as error:
                assert error.condition in ("UNKNOWN_COLUMN", "NO_COMMON_BATCH", "KEY_MISSING")
                return False

        wait_until(is_new, "the new job")
        assert table.columns == ("kk", "v")
        assert condition_of(lambda: table.get(k="k1")) == "UNKNOWN_COLUMN"
        rows = table.scan()
        assert [row["kk"] for row in rows] == sorted(f"k{n}" for n in range(KEYS))
        assert table.scan(limit=3).token is not None


def test_the_bound_of_one_shard_is_refused(tmp_path: Path) -> None:
    job = written(tmp_path / "job", 4)
    patient = RouterSettings(common_batch_seconds=600)
    with (
        shard_servers(job.path, ["1/2", "2/2"], tmp_path / "homes") as servers,
        connected(servers, patient) as pond,
        ThreadPoolExecutor(1) as asking,
    ):
        table, one = pond[NAME], millpond.Bounds(shard="1/2")
        for read in (lambda: table.get(k="k1", bounds=one), lambda: table.count(bounds=one), lambda: table.scan(bounds=one)):
            assert asking.submit(condition_of, read).result(60) == "INVALID_REQUEST"  # it isn't waited for
        with millpond.connect(servers[0].url) as server:
            other = millpond.Bounds(shard="2/2")
            assert all(condition_of(lambda n=n: server[NAME].get(k=f"k{n}", bounds=other)) == "OTHER_SHARD" for n in range(5))


@pytest.fixture
def hung() -> Iterator[str]:
    """The address of a server that accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.long
def test_a_copy_that_hangs_is_left_alone_while_the_other_answers(tmp_path: Path) -> None:
    job = written(tmp_path / "job", 4)
    settings = RouterSettings(client=ClientSettings(timeout_seconds=60, tries=2), hedge_seconds=0.2)
    with contextlib.ExitStack() as opened:
        servers = opened.enter_context(shard_servers(job.path, ["1/1", "1/1"], tmp_path / "homes"))
        for server in servers:  # so that the map has both
            with httpx.Client(base_url=server.url, timeout=60) as client:
                wait_until_ready(client)
        table = opened.enter_context(connected(servers, settings))[NAME]
        assert table.count() == KEYS
        port = servers[0].port
        servers[0].kill()
        with socket.create_server(("127.0.0.1", port)):  # accepts, and never answers
            took: list[float] = []

            def ask() -> None:
                for n in range(15):
                    began = time.monotonic()
                    assert table.get(k=f"k{n}")["v"] == n
                    took.append(time.monotonic() - began)

            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(took) == 8 * 15
            # Those that were asked at first waited for the hedge; nobody for the client's timeout.
            assert max(took) < 60


@pytest.mark.long
def test_a_copy_that_came_after_the_first_look_is_asked_when_the_other_one_hangs(tmp_path: Path) -> None:
    job = written(tmp_path / "job", 4)
    settings = RouterSettings(client=ClientSettings(timeout_seconds=5, tries=2), common_batch_seconds=60)
    first, late = (ShardServer(job.path, "1/1", tmp_path / name) for name in ("first", "late"))
    with contextlib.ExitStack() as opened:
        late.start()
        late.stop()  # it has a port, and doesn't answer yet
        first.start()
        opened.callback(first.stop)
        with httpx.Client(base_url=first.url, timeout=60) as client:
            wait_until_ready(client)
        table = opened.enter_context(connected([first, late], settings))[NAME]
        assert table.count() == KEYS
        late.start()
        opened.callback(late.stop)
        with httpx.Client(base_url=late.url, timeout=60) as client:
            wait_until_ready(client)
        first.kill()
        with socket.create_server(("127.0.0.1", first.port)):  # accepts, and never answers
            assert table.get(k="k3")["v"] == 3


@pytest.mark.long
def test_a_router_names_only_what_its_reader_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millpond.serve.access.tokens import add_token

    job = written(tmp_path / "job", 4)
    tokens = tmp_path / "readers.json"
    reader = add_token(tokens, "guest", tables=("visits*",))
    monkeypatch.delenv("MILLPOND_TOKEN", raising=False)
    with contextlib.ExitStack() as opened:
        servers = opened.enter_context(shard_servers(job.path, ["1/2", "2/2"], tmp_path / "homes"))
        url = opened.enter_context(routing(*(server.url for server in servers), "--tokens", str(tokens)))
        headers = {"authorization": f"Bearer {reader}"}
        answer = httpx.get(f"{url}/tables/visits_x/count", headers=headers, timeout=60)
        assert (answer.status_code, NAME in answer.text) == (404, False)
        assert httpx.get(f"{url}/tables/{NAME}/count", headers=headers, timeout=60).status_code == 403
        assert httpx.get(f"{url}/shards", headers=headers, timeout=60).status_code == 403
        assert httpx.get(f"{url}/tables", headers=headers, timeout=60).json() == {"tables": []}

"""A request with `_wait_seconds` waits for a table or a first batch that isn't there yet, as Python's `wait_for_table` does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import millpond
from millpond.catalogue import create_job
from millpond.errors import MillpondError
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import stays, wait_until

pytestmark = pytest.mark.long

TABLE = "late.aggregate_0"
KEY = {"key": {"k": "a"}}


def job(pond: Path, name: str) -> WrittenCheckpoint:
    """A job of a pond, without a batch."""
    create_job(pond, name)
    return WrittenCheckpoint(pond / "jobs" / name / "checkpoint")


def commit(job: WrittenCheckpoint, value: int) -> None:
    job.plan([("a", value)], snapshot=False)
    job.commit()


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    """A pond with one job, which isn't the job that requests wait for."""
    commit(job(tmp_path / "pond", "early"), 1)
    return tmp_path / "pond"


def wait_for_early(client: httpx.Client) -> None:
    """Wait until the server follows; with a job that has no batch it never gets ready."""
    wait_until(lambda: client.get("/tables/early.aggregate_0/count").status_code == 200, "the table that is there early")


@contextmanager
def later(do: Callable[[], None], seconds: float = 1.0) -> Iterator[None]:
    timer = threading.Timer(seconds, do)
    timer.start()
    yield
    timer.join()


ASKED: dict[str, Callable[[httpx.Client, float], httpx.Response]] = {
    "rows": lambda c, s: c.get(f"/tables/{TABLE}/rows?k=a&_wait_seconds={s}"),
    "scan": lambda c, s: c.get(f"/tables/{TABLE}/rows?_wait_seconds={s}"),
    "count": lambda c, s: c.get(f"/tables/{TABLE}/count?_wait_seconds={s}"),
    "cut": lambda c, s: c.get(f"/tables/{TABLE}/cut?_wait_seconds={s}"),
    "definition": lambda c, s: c.get(f"/tables/{TABLE}/definition?_wait_seconds={s}"),
    "changes": lambda c, s: c.get(f"/tables/{TABLE}/changes?_since=-1&_wait_seconds={s}"),
    "rows:get": lambda c, s: c.post(f"/tables/{TABLE}/rows:get", json={"keys": [{"k": "a"}], "bounds": {"wait_seconds": s}}),
    "rows:scan": lambda c, s: c.post(f"/tables/{TABLE}/rows:scan", json={"bounds": {"wait_seconds": s}}),
    "rows:count": lambda c, s: c.post(f"/tables/{TABLE}/rows:count", json={"bounds": {"wait_seconds": s}}),
    "with the pond's name": lambda c, s: c.get(f"/tables/pond%2F{TABLE}/rows?k=a&_wait_seconds={s}"),
}


@pytest.mark.parametrize("before", ["nothing", "a job without a batch"])
def test_what_isnt_there_yet_is_waited_for(serve: Any, pond: Path, before: str) -> None:
    asked = {name: ask for name, ask in ASKED.items() if name != "changes"}
    made = job(pond, "late") if before != "nothing" else None
    with serve(pond) as (address, _), httpx.Client(base_url=address, timeout=120) as client:
        wait_for_early(client)
        answers: dict[str, httpx.Response] = {}
        threads = [threading.Thread(target=lambda n=n: answers.update({n: asked[n](client, 30)})) for n in asked]
        for thread in threads:
            thread.start()
        stays(lambda: answers == {}, "no answer before there is a batch")
        commit(made or job(pond, "late"), 7)
        for thread in threads:
            thread.join()
        assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(asked, 200)
        assert answers["rows"].json()["rows"] == answers["rows:get"].json()["rows"] == [{"k": "a", "v": 7}]


@pytest.mark.parametrize("name", ASKED)
def test_a_wait_for_nothing_ends_in_its_time(serve: Any, pond: Path, name: str) -> None:
    with serve(pond) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        wait_for_early(client)
        for seconds in (0, 0.5):
            began = time.monotonic()
            answer = ASKED[name](client, seconds)
            assert (answer.status_code, answer.json()["error"]["condition"]) == (404, "UNKNOWN_TABLE")
            assert time.monotonic() - began >= seconds


def test_the_client_waits_for_a_table(serve: Any, pond: Path) -> None:
    with serve(pond) as (address, _), millpond.connect(address) as server:
        with pytest.raises(MillpondError) as refused:
            server.wait_for_table(TABLE, 0.3)
        assert refused.value.condition == "UNKNOWN_TABLE"
        with later(lambda: commit(job(pond, "late"), 7)):
            assert server.wait_for_table(TABLE, 60).get(k="a")["v"] == 7

        async def wait() -> Any:
            async with millpond.connect_async(address) as asynchronous:
                return await (await asynchronous.wait_for_table("later.aggregate_0", 60)).get(k="a")

        with later(lambda: commit(job(pond, "later"), 8)):
            assert asyncio.run(wait())["v"] == 8

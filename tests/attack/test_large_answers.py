"""Many large answers at once: the server makes a few at a time, small ones go on, and memory stays bounded."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

import millpond
from attack.conftest import TABLE, Attacked
from millpond.errors import MillpondError
from millpond.serve.waiting.waits import Turns
from suite.waiting import wait_until

pytestmark = pytest.mark.long

LARGE = f"/tables/{TABLE}/rows?_limit=100000"
ROWS = 20_000
# 2 at a time take some 30 MiB.  40 at once, as threads would make them, take twice this limit.
MIB = 150


def test_many_large_answers_at_once_are_made_a_few_at_a_time(attacked: Attacked) -> None:
    victim = attacked("--max-large-answers", "2", "--max-seconds", "120")
    statuses: list[Any] = []
    enough = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=victim.address, timeout=200) as client:
            while True:  # so that each lookup goes on beside large answers
                answer = client.get(LARGE)
                statuses.append((answer.status_code, len(answer.json()["rows"])))
                if enough.is_set():
                    break

    asking = [threading.Thread(target=ask) for _ in range(60)]
    with victim.watched(mib=MIB), httpx.Client(base_url=victim.address, timeout=60) as honest:
        for thread in asking:
            thread.start()
        for looked in range(10):
            key = f"key-{looked:05}-{'x' * 80}"
            assert honest.get(f"/tables/{TABLE}/rows", params={"k": key}).json()["rows"] == [{"k": key, "v": looked}]
            assert len(honest.get(f"/tables/{TABLE}/rows?_limit=50").json()["rows"]) == 50
        enough.set()
        for thread in asking:
            thread.join()
    assert len(statuses) >= 60
    assert set(statuses) == {(200, ROWS)}


def test_a_turn_that_doesnt_come_is_told(attacked: Attacked) -> None:
    victim = attacked("--max-large-answers", "1", "--max-seconds", "0.4")

    def refused_of_30() -> list[httpx.Response]:
        with ThreadPoolExecutor(30) as asking:
            answers = [*asking.map(lambda _: httpx.get(victim.address + LARGE, timeout=100), range(30))]
        return [a for a in answers if a.status_code == 503 and a.json()["error"]["condition"] == "TOO_MANY_ANSWERS"]

    refused = wait_until(refused_of_30, "a refusal")
    assert all(a.headers["retry-after"] == "1" for a in refused)
    small = f"{victim.address}/tables/{TABLE}/rows?_limit=100"
    wait_until(lambda: httpx.get(small, timeout=60).status_code == 200, "a small answer within 0.4 seconds")


def test_downloads_that_nobody_reads_are_bounded(attacked: Attacked) -> None:
    victim = attacked("--max-downloads", "3", "--max-downloads-per-client", "2", "--send-seconds", "60")
    with ExitStack() as opened:
        for form in ("application/x-ndjson", "text/csv"):
            stuck = opened.enter_context(victim.connect())
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.sendall(f"GET /tables/{TABLE}/rows HTTP/1.1\r\nHost: localhost\r\nAccept: {form}\r\n\r\n".encode())
        csv = {"accept": "text/csv"}
        rows = f"{victim.address}/tables/{TABLE}/rows"
        wait_until(lambda: httpx.get(rows, headers=csv, timeout=60).status_code == 429, "the refusal of a third download")
        refused = httpx.get(
            f"{victim.address}/tables/{TABLE}/rows", headers={"accept": "application/vnd.apache.arrow.stream"}, timeout=60
        )
        assert (refused.status_code, refused.json()["error"]["condition"]) == (429, "TOO_MANY_DOWNLOADS")
        assert httpx.get(f"{victim.address}/tables/{TABLE}/rows?_limit=100", headers=csv, timeout=60).status_code == 200
        assert httpx.get(victim.address + LARGE, timeout=60).status_code == 200
    wait_until(lambda: httpx.get(rows, headers=csv, timeout=60).status_code == 200, "a download when the others have ended")


def test_turns_are_fair_and_never_lost() -> None:
    async def run() -> None:
        turns, order = Turns(2), []

        async def work(asker: str, seconds: float = 0.01, patience: float = 30.0) -> None:
            async with turns.turn(asker, patience):
                order.append(asker)
                await asyncio.sleep(seconds)

        many = [asyncio.create_task(work("many", 0.05)) for _ in range(10)]
        await asyncio.sleep(0)
        late = asyncio.create_task(work("one"))
        await asyncio.gather(*many, late)
        assert "one" in order[:4]
        # A client that gives up, or is cancelled while its turn comes, leaves the turn to the others.
        holders = [asyncio.create_task(work("many", 600)) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(MillpondError) as refused:
            await work("one", patience=0.01)
        assert refused.value.condition == "TOO_MANY_ANSWERS"
        gone = [asyncio.create_task(work(f"gone {n}")) for n in range(20)]
        await asyncio.sleep(0.01)
        for holder in holders:
            holder.cancel()
        await asyncio.sleep(0)
        for task in gone[::2]:
            task.cancel()
        await asyncio.gather(*gone, *holders, return_exceptions=True)
        await asyncio.wait_for(asyncio.gather(*(work("after") for _ in range(10))), 60)
        assert not turns._taken
        assert not turns._line

    asyncio.run(run())


def test_our_client_asks_again_for_its_turn(attacked: Attacked) -> None:
    victim = attacked("--max-large-answers", "2", "--max-seconds", "120")
    with millpond.connect(victim.address) as server:
        assert len(server[TABLE].scan()) == ROWS

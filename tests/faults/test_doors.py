"""Kills processes of one server under load: the others answer, and the killed ones come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from soak.processes import children, listens
from suite.programs import started
from suite.waiting import wait_until

pytestmark = pytest.mark.faults
READERS = 8
KEY, ROWS = 2**53 - 1, [{"k": 2**53 - 1, "n": 2, "again": 2**53 - 1}]


class Load:
    """Clients that ask all the time, each over one connection; a client opens a new one when it breaks."""

    def __init__(self, address: str) -> None:
        self._url = f"{address}/tables/long/rows?k={KEY}"
        self._stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._ask) for _ in range(READERS)]

    def _ask(self) -> None:
        client = httpx.Client(timeout=60)
        while not self._stop.is_set():
            try:
                answer = client.get(self._url)
                right = answer.status_code == 200 and answer.json()["rows"] == ROWS
                self.answers["right" if right else answer.text] += 1
            except httpx.TransportError as broken:
                self.answers[type(broken).__name__] += 1
                client.close()
                client = httpx.Client(timeout=60)
        client.close()

    def wait_for_more(self) -> None:
        """Wait for twenty right answers more."""
        before = self.answers["right"]
        wait_until(lambda: self.answers["right"] > before + 20, "twenty right answers more")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server(types_pond: Path, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "millpond.cli", "serve", str(types_pond), "--port", "0", "--json", "--workers", "2"]
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path / "home")}
    with started(command, stdout=subprocess.PIPE, env=environment) as running:
        try:
            assert running.stdout is not None
            address = json.loads(running.stdout.readline())["url"]
            wait_until(lambda: ready(address), "the server's yes at /readyz", unless=lambda: running.poll() is not None)
            yield address, running
        finally:
            running.terminate()
            running.wait(60)


def ready(address: str) -> bool:
    return httpx.get(f"{address}/readyz", timeout=60).status_code == 200


def doors(running: subprocess.Popen[bytes], address: str) -> list[int]:
    """Once all three workers run: those that listen, which are two."""
    port = int(address.rpartition(":")[2])

    def found() -> list[int]:
        workers = children(running.pid)
        listening = [pid for pid in workers if listens(pid, port)]
        return listening if (len(workers), len(listening)) == (3, 2) else []

    return wait_until(found, "three workers of which two listen", unless=lambda: running.poll() is not None)


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of a killed worker")


def test_a_door_that_is_killed_takes_only_its_own_connections_with_it(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, running = server
    with Load(address) as load:
        for _ in range(3):
            victim = doors(running, address)[0]
            load.wait_for_more()
            os.kill(victim, signal.SIGKILL)
            load.wait_for_more()
            wait_until_gone(victim)
        doors(running, address)
    answers = dict(load.answers)
    assert answers.pop("right") > 100
    # A killed door breaks each of its connections once, and no connection is refused: new ones wait for the next door.
    # None waits for ever either, which would be a ReadTimeout.
    assert set(answers) <= {"ReadError", "RemoteProtocolError", "WriteError"}
    assert sum(answers.values()) <= 3 * READERS


def test_without_its_follower_a_server_goes_on_answering(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, running = server
    with Load(address) as load:
        for _ in range(2):
            listening = doors(running, address)
            (follower,) = (pid for pid in children(running.pid) if pid not in listening)
            os.kill(follower, signal.SIGKILL)
            wait_until_gone(follower)
            load.wait_for_more()
            doors(running, address)
            load.wait_for_more()
    assert set(load.answers) == {"right"}


def test_the_end_of_the_server_is_the_end_of_all_its_processes(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, running = server
    doors(running, address)
    workers = children(running.pid)
    running.kill()
    running.wait(60)
    for pid in workers:
        wait_until_gone(pid)


def test_sigterm_ends_all_processes_well(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, running = server
    doors(running, address)
    workers = children(running.pid)
    with Load(address) as load:
        load.wait_for_more()
        running.terminate()
        assert running.wait(60) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert load.answers["right"] > 0
    # Every request that the server began got its answer: only connections that came too late were refused.
    assert set(load.answers) <= {"right", "ConnectError", "RemoteProtocolError", "ReadError"}

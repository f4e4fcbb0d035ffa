"""Kills processes of one server under load: the others answer, and the killed ones come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from soak.processes import children, listens

pytestmark = pytest.mark.faults
READERS = 8
KEY, ROWS = 2**53 - 1, [{"k": 2**53 - 1, "n": 2, "again": 2**53 - 1}]


class Load:
    """Clients that ask all the time, each over one connection; a client opens a new one when it breaks."""

    def __init__(self, address: str) -> None:
        self._url = f"{address}/tables/long/rows?k={KEY}"
        self._stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self.longest_seconds = 0.0
        self._threads = [threading.Thread(target=self._ask) for _ in range(READERS)]

    def _ask(self) -> None:
        client = httpx.Client(timeout=30)
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                answer = client.get(self._url)
                right = answer.status_code == 200 and answer.json()["rows"] == ROWS
                self.answers["right" if right else answer.text] += 1
            except httpx.TransportError as broken:
                self.answers[type(broken).__name__] += 1
                client.close()
                client = httpx.Client(timeout=30)
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        client.close()

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
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as running:
        try:
            assert running.stdout is not None
            address = json.loads(running.stdout.readline())["url"]
            _wait_until(lambda: httpx.get(f"{address}/readyz").status_code == 200)
            yield address, running
        finally:
            running.terminate()
            running.wait(60)


def _wait_until(holds: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():  # type: ignore[operator]
            return
        time.sleep(0.05)
    raise AssertionError("it never came to that")


def test_a_door_that_is_killed_takes_only_its_own_connections_with_it(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, running = server
    port = int(address.rpartition(":")[2])
    _wait_until(lambda: len(children(running.pid)) == 3)
    with Load(address) as load:
        for _ in range(3):
            time.sleep(1)
            doors = [pid for pid in children(running.pid) if listens(pid, port)]
            assert len(doors) == 2
            before = load.answers["right"]
            os.kill(doors[0], signal.SIGKILL)
            _wait_until(lambda before=before: load.answers["right"] > before + 20)
            _wait_until(lambda gone=doors[0]: len(children(running.pid)) == 3 and gone not in children(running.pid))
            _wait_until(lambda: len([p for p in children(running.pid) if listens(p, port)]) == 2)
    answers = dict(load.answers)
    assert answers.pop("right") > 100
    # A killed door breaks each of its connections once, and no connection is refused: new ones wait for the next door.
    assert set(answers) <= {"ReadError", "RemoteProtocolError", "WriteError"}
    assert sum(answers.values()) <= 3 * READERS
    assert load.longest_seconds < 15


def test_without_its_follower_a_server_goes_on_answering(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, running = server
    port = int(address.rpartition(":")[2])
    _wait_until(lambda: len(children(running.pid)) == 3)
    with Load(address) as load:
        for _ in range(2):
            (follower,) = [pid for pid in children(running.pid) if not listens(pid, port)]
            os.kill(follower, signal.SIGKILL)
            _wait_until(lambda gone=follower: len(children(running.pid)) == 3 and gone not in children(running.pid))
            time.sleep(1)
    assert set(load.answers) == {"right"}


def test_the_end_of_the_server_is_the_end_of_all_its_processes(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    _, running = server
    _wait_until(lambda: len(children(running.pid)) == 3)
    workers = children(running.pid)
    running.kill()
    running.wait(10)
    _wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), seconds=30)


def test_sigterm_ends_all_processes_well(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, running = server
    _wait_until(lambda: len(children(running.pid)) == 3)
    workers = children(running.pid)
    with Load(address) as load:
        time.sleep(0.5)
        running.terminate()
        assert running.wait(30) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert load.answers["right"] > 0
    # Every request that the server began got its answer: only connections that came too late were refused.
    assert set(load.answers) <= {"right", "ConnectError", "RemoteProtocolError", "ReadError"}

"""`millpond versions cutover` is killed at random moments, while readers ask for the name through two doors."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import millpond
from millpond.storage import open_storage
from millpond.versions import begin_name, read_name
from savepoint.killed import run_killed
from servers.serving import wait_until_ready
from suite.sizes import IS_EVERY
from suite.waiting import wait_until
from tables.versions.jobs import WrittenVersion, version_of

pytestmark = [pytest.mark.faults, pytest.mark.long]
KILLS = int(os.environ.get("MILLPOND_KILLS", "100" if IS_EVERY else "8"))
SEED = os.environ.get("MILLPOND_SEED", "20261125")


class Reader(threading.Thread):
    """Asks all the time.

    read:    returns the versions of the rows of an answer, and which it says that they are
    counts:  how many answers each version gave
    """

    def __init__(self, read: Callable[[], tuple[int, str]]) -> None:
        super().__init__(daemon=True)
        self._read, self._ended = read, threading.Event()
        self.counts, self.failed = {1: 0, 2: 0}, list[str]()

    def run(self) -> None:
        """Until `end`."""
        while not self._ended.is_set():
            try:
                found, said = self._read()
                self.counts[found] += 1
                if said != f"views.v{found}":
                    self.failed.append(f"rows of version {found} are said to be of {said}")
            except BaseException as error:  # noqa: BLE001 - each failure counts
                self.failed.append(repr(error))
            time.sleep(0.01)

    def end(self) -> None:
        """Stop."""
        self._ended.set()
        self.join()


def cut_over(pond: Path, home: Path, to: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "millpond.cli", "versions", "cutover", str(pond), "views", "--to", str(to), "--yes"]
    environment = {**os.environ, "MILLPOND_HOME": str(home)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def test_a_cut_over_that_is_killed_at_any_time_is_done_or_not_and_its_repetition_ends_it(tmp_path: Path, serve) -> None:
    chance, pond, home = random.Random(SEED), tmp_path / "pond", tmp_path / "home"
    for version in (1, 2):
        WrittenVersion(pond, version)
        begin_name(pond, "views", version)
    whole_seconds, outcomes = 0.0, {True: 0, False: 0}
    steps = run_killed(0, pond, "cutover", "views", "1")
    with serve(pond) as (url, _), millpond.open(pond, replica_dir=tmp_path / "own", wait_seconds=60) as opened:
        client, table = httpx.Client(base_url=url, timeout=60), opened["views"]
        wait_until_ready(client)

        def over_http() -> tuple[int, str]:
            answer = client.get("/tables/views/rows").raise_for_status().json()
            return version_of(answer["rows"]), answer["job"]

        def in_python() -> tuple[int, str]:
            rows = table.scan()
            return version_of(rows), rows.cut.job

        readers = [Reader(over_http), Reader(in_python)]
        for reader in readers:
            reader.start()
        for number in range(KILLS):
            before = read_name(open_storage(pond), "views").current
            to = 3 - before
            if number % 4 == 3:  # at one of its steps with files, which take the least of its time
                steps = max(steps, run_killed(chance.randrange(1, steps + 2), pond, "cutover", "views", str(to)))
            else:
                killed = cut_over(pond, home, to)
                # It spends most of its time on its imports.
                time.sleep(max(whole_seconds, 0.3) * chance.choice((chance.random(), chance.uniform(0.7, 1.1))))
                killed.send_signal(signal.SIGKILL)
                killed.communicate()
            found = read_name(open_storage(pond), "views").current
            assert found in (before, to)
            assert in_python()[0] == found
            outcomes[found == to] += 1
            began = time.monotonic()
            repeated = cut_over(pond, home, to)
            _, words = repeated.communicate(timeout=60)
            whole_seconds = time.monotonic() - began
            assert repeated.returncode == 0, words
            assert read_name(open_storage(pond), "views").current == to
            assert in_python()[0] == to
            for reader in readers:
                wait_until(lambda reader=reader, to=to: reader.counts[to] or reader.failed, f"an answer of version {to}")
            assert [path.name for path in (pond / "versions").glob("[!.]*")] == ["views.json"]
        for reader in readers:
            reader.end()
    for reader in readers:
        assert reader.failed == []
        assert min(reader.counts.values()) > 0
    print(f"{KILLS} kills, {outcomes[True]} of them too late")

"""A version that is fed from the past is killed at random moments, while readers are served by the one before it."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import millpond
from faults.backfill import ZONE, keeps_of, weight_of
from faults.fed import Files, newest
from faults.kinds.buckets import Buckets, Drawn
from faults.looks import Looks, in_state
from faults.storm import KEEP, WAIT_SECONDS
from faults.undisturbed import Undisturbed
from soak.processes import Process, python
from suite.sizes import IS_EVERY, a_few
from suite.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long]
KILLS = int(os.environ.get("MILLPOND_KILLS", "8" if IS_EVERY else "2"))
SEED = os.environ.get("MILLPOND_SEED", "20261125")
FILES_BEFORE = 6
VERSIONS = (1, 2, 3)


class Served(threading.Thread):
    """Reads the name all the time.

    reads:  how many answers came
    """

    def __init__(self, pond: millpond.Pond, expected: int) -> None:
        super().__init__(daemon=True)
        self._table, self._expected, self._ended = pond["views"], expected, threading.Event()
        self.reads, self.failed = 0, list[str]()

    def run(self) -> None:
        """Until `end`."""
        while not self._ended.is_set():
            try:
                rows = self._table.scan()
                weights = {row["weight"] / row["hits"] for row in rows}
                if (rows.cut.job, weights) != (f"views.v{self._expected}", {weight_of(self._expected)}):
                    self.failed.append(f"batch {rows.batch} of {rows.cut.job}: {weights}")
            except BaseException as error:  # noqa: BLE001 - each failure counts
                self.failed.append(repr(error))
            self.reads += 1
            time.sleep(0.02)

    def wait_for(self, reads: int) -> None:
        """Wait for so many answers."""
        wait_until(lambda: self.reads >= reads, f"{reads} answers", unless=lambda: self.failed)

    def end(self) -> None:
        """Stop; fails if a read has failed."""
        self._ended.set()
        self.join()
        assert not self.failed, self.failed[:3]


class Backfill:
    """Versions 1 and 3 run undisturbed; version 2 is killed."""

    def __init__(self, folder: Path, provider: str) -> None:
        self.folder, self.pond = folder, folder / "pond"
        self.chance = random.Random(f"{SEED}/{provider}")
        self._events, self._drawn = Files(folder / "in"), Drawn(self.chance)
        jobs = {version: self.pond / "jobs" / f"views.v{version}" / "checkpoint" for version in VERSIONS}
        models = {n: Buckets(f"views.v{n}", ZONE, keeps=keeps_of(n), weight=weight_of(n)) for n in VERSIONS}
        self.runs = {version: Undisturbed(jobs[version], [self._events], models[version]) for version in VERSIONS}
        self.looks = {version: Looks(f"views.v{version}", self.runs[version], folder / "none") for version in VERSIONS}
        arguments = [str(folder), provider]
        self.whole = Process("1 and 3", lambda: python("faults.backfill", *arguments, "1", "3"), folder / "whole.log")
        self.killed = Process("2", lambda: python("faults.backfill", *arguments, "2"), folder / "killed.log")

    def feed(self, files: int = 1) -> None:
        """Add input."""
        for _ in range(files):
            self._events.add(self._drawn.next())

    def wait_for(self, *versions: int) -> None:
        """Wait until these versions have read all input."""
        running = [process for process in (self.whole, self.killed) if process.running is not None]
        wait_until(
            lambda: all(self._read(version) == len(self._events.rows) for version in versions),
            "versions that have read all input",
            seconds=WAIT_SECONDS,
            unless=lambda: "".join(process.ended() for process in running),
        )

    def _read(self, version: int) -> int:
        run, committed = self.runs[version], self.runs[version].committed
        run.go_on()
        return run.read[committed] if committed >= 0 else 0

    def kill(self) -> None:
        """Kill version 2 while it starts, or at any time after a batch."""
        checkpoint = self.runs[2].checkpoint
        before = newest(checkpoint / "commits")
        self.killed.start()
        if self.chance.random() < 0.2:
            time.sleep(self.chance.uniform(0, 8))
        else:
            wait_until(
                lambda: newest(checkpoint / "commits") != before,
                "a batch of version 2",
                seconds=WAIT_SECONDS,
                unless=self.killed.ended,
            )
            time.sleep(self.chance.choice((0, 0.05, 1)) * self.chance.random())
        self.killed.kill()

    def look(self, pond: millpond.Pond) -> list[str]:
        """Each batch since the last look, of each version that has any, against the recomputation."""
        began = [n for n, run in self.runs.items() if run.committed >= 0]
        pond.catch_up(60)
        return [f"version {n}: {text}" for n in began for text in self.looks[n].look(pond)]

    def rows(self, pond: millpond.Pond, *versions: int) -> list[list[str]]:
        """The buckets of versions that have expired in none of them: one may have had a batch without events more.

        Dead letters expire by the clock, so they aren't among them.
        """
        scans = [pond[f"views.v{version}"].scan() for version in versions]
        watermark_ms = max(rows.position.watermark_ms or 0 for rows in scans)
        return [
            sorted(
                str(row)
                for row in in_state(rows)
                if not row["dead_letter"] and (row["expires_at"] is None or row["expires_at"] > watermark_ms)
            )
            for rows in scans
        ]


@contextmanager
def backfill(folder: Path, provider: str) -> Iterator[Backfill]:
    made = Backfill(folder, provider)
    try:
        yield made
    finally:
        made.killed.kill()
        made.whole.kill()


@pytest.mark.parametrize("provider", a_few(["changelog", "hdfs"], 0, long=1))
def test_a_backfill_that_is_killed_goes_on_and_readers_notice_nothing(tmp_path: Path, provider: str) -> None:
    with backfill(tmp_path, provider) as versions:
        versions.feed(FILES_BEFORE)
        versions.whole.start()
        versions.wait_for(1, 3)
        with millpond.open(versions.pond, replica_dir=tmp_path / "home", wait_seconds=60, retention=KEEP) as pond:
            served = Served(pond, 1)
            served.start()
            differences = versions.look(pond)
            for _ in range(KILLS):
                versions.kill()
                versions.feed()
                differences += versions.look(pond)
            versions.killed.start()
            versions.wait_for(*VERSIONS)
            differences += versions.look(pond)
            assert not differences, "\n".join([f"seed {SEED}", *differences])
            assert sum((looks.compared for looks in versions.looks.values()), start=versions.looks[1].compared)["rows"] > 0
            killed, undisturbed = versions.rows(pond, 2, 3)
            assert killed
            assert killed == undisturbed
            served.wait_for(101)
            served.end()
            print(f"{provider}: {KILLS} kills, {served.reads} reads, {versions.runs[2].committed + 1} batches")
            assert millpond.plan_cut_over(versions.pond, "views", to=2).run().current == 2
            served = Served(pond, 2)
            served.start()
            served.wait_for(10)
            served.end()
    assert versions.killed.unwanted == versions.whole.unwanted == []

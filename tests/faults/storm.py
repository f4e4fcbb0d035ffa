"""Feeds jobs, kills them, starts them again, and compares all their state and output with an undisturbed run.

A seeded Random chooses when and how to kill:

    commit  kills the whole process group after a batch has written state, and before its commit
    worker  kills only Python workers, within a batch, until a task has lost its worker; Spark tries that task again
    job     kills the whole process group at any time
    broker  kills the broker of the source while a producer goes on, and starts it again; the job goes on by itself
    both    kills the process group while there is no broker

The first kills come in this order, and the very first one in the first batch.  After that, each three come in a random order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import millpond
from faults.fed import newest
from faults.kind import Kind
from faults.looks import Looks
from faults.undisturbed import Undisturbed
from soak.processes import Process, signal_if_there
from suite.waiting import wait_until

WAIT_SECONDS = 240
KEEP = millpond.Retention(history_batches=None, closed_seconds=None)
_LOST_WORKER = "Python worker exited unexpectedly"


class Storm:
    """Kills one kind of job.

    killed:       the number of kills, by way of killing
    differences:  the differences from the undisturbed run
    """

    def __init__(self, kind: Kind) -> None:
        self.kind, self._chance = kind, kind.chance
        self.runs = {job: Undisturbed(kind.pond / "jobs" / job / "checkpoint", kind.inputs, m) for job, m in kind.jobs.items()}
        self.looks = {job: Looks(job, run, kind.folder / "out" / job) for job, run in self.runs.items()}
        self.killed: Counter[str] = Counter()
        self.differences: list[str] = []
        self._log = kind.folder / "log"
        self._job = Process("job", kind.command, self._log)

    def run(self, kills: int) -> None:
        """Kill it so many times, then let it read all of its input.  Stops at the first difference."""
        try:
            for _, how in zip(range(kills), self._ways(), strict=False):
                self._start()
                getattr(self, f"_kill_{how}")()
                self.killed[how] += 1
                self._look()
                if self.differences:
                    return
            self._start()
            self._come_on(2)
            while not self.kind.tried():
                self._come_on(1)
            self._wait_until(lambda: self._read() == self._fed(), "batches with all input")
        finally:
            self._job.kill()
        self._look()
        self.differences += [f"it ended by itself with {code}" for code in self._job.unwanted]

    @property
    def compared(self) -> Counter[str]:
        """How many tables and rows were compared."""
        return sum((looks.compared for looks in self.looks.values()), Counter())

    def facts(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "kills": self.killed.total(),
            "killed": dict(self.killed),
            "records": sum(len(rows) for source in self.kind.inputs for rows in source.rows.values()),
            "batches": {job: run.committed + 1 for job, run in self.runs.items()},
            "compared": {**self.compared, "rows_of_sinks": sum(looks.sink_rows for looks in self.looks.values())},
            "differences": self.differences,
        }

    def _ways(self) -> Iterator[str]:
        ways = list(self.kind.kills)
        while True:
            yield from ways
            self._chance.shuffle(ways)

    def _start(self) -> None:
        if not self._job.alive():
            self.kind.feed()
            self._job.start()

    def _look(self) -> None:
        """Compare the tables of each batch since the last look, and all that came to the sinks."""
        if min(run.committed for run in self.runs.values()) < 0:
            return
        home = self.kind.folder / "home"
        with millpond.open(self.kind.pond, replica_dir=home, wait_seconds=60, retention=KEEP) as opened:
            opened.catch_up(60)
            for job, looks in self.looks.items():
                self.differences += [f"{job}, {difference}" for difference in looks.look(opened)]

    # ------------------------------------------------------------ feeding

    def _fed(self) -> int:
        return sum(len(source.rows) for source in self.kind.inputs)

    def _read(self) -> int:
        """The number of pieces of input that every job has read in committed batches."""
        read = []
        for run in self.runs.values():
            committed = run.committed
            run.go_on()
            read.append(run.read[committed] if committed >= 0 else 0)
        return min(read)

    def _feed(self) -> int:
        """Feed the jobs if they would run out of input soon; returns `_read`."""
        read = self._read()
        while self._fed() <= read + 1:
            self.kind.feed()
        return read

    def _come_on(self, times: int) -> None:
        """So many times: add input, and wait until every job has read it."""
        for _ in range(times):
            self.kind.feed()
            wanted = self._fed()
            self._wait_until(lambda wanted=wanted: self._feed() >= wanted, "batches with all input")  # type: ignore[misc]

    def _wait_until(self, done: Callable[[], bool], what: str) -> None:
        wait_until(done, what, seconds=WAIT_SECONDS, unless=self._job.ended)

    # ------------------------------------------------------------ killing

    def _kill_commit(self) -> None:
        first = not self.killed
        self._come_on(0 if first else self._chance.randrange(3))
        checkpoints = [run.checkpoint for run in self.runs.values()]
        checkpoint = checkpoints[0] if first else self._chance.choice(checkpoints)
        later_seconds = 0 if first else self._chance.choice((0, 0.02, 0.1))

        def is_stopped() -> bool:
            batch = newest(checkpoint / "offsets")
            if batch == newest(checkpoint / "commits") or not any(checkpoint.glob(f"state/*/*/{batch + 1}.*")):
                return False
            time.sleep(later_seconds)
            os.killpg(self._job.pid, signal.SIGSTOP)
            if newest(checkpoint / "commits") < batch:
                return True
            os.killpg(self._job.pid, signal.SIGCONT)
            return False

        def stopped() -> bool:
            for _ in range(50):  # the state of a batch is there for a few milliseconds before its commit
                self._feed()
                if is_stopped():
                    return True
                time.sleep(0.002)
            return False

        self._wait_until(stopped, "state that isn't committed yet")
        self._job.kill()

    def _kill_worker(self) -> None:
        self._come_on(1)
        before, pause_seconds = self._lost_workers(), self._chance.uniform(0.2, 0.6)

        def met() -> bool:
            self._feed()
            if any(newest(run.checkpoint / "offsets") > run.committed for run in self.runs.values()):
                for worker in python_workers(self._job):
                    signal_if_there(worker, signal.SIGKILL)
            time.sleep(pause_seconds)
            return self._lost_workers() > before

        self._wait_until(met, "a task that has lost its worker")
        self._come_on(1)

    def _lost_workers(self) -> int:
        return self._log.read_text(errors="replace").count(_LOST_WORKER)

    def _kill_job(self) -> None:
        self._come_on(1)
        time.sleep(self._chance.uniform(0.1, 1.5))
        self._feed()
        self._job.kill()

    def _kill_broker(self) -> None:
        self._come_on(1)
        self.kind.without_broker()
        self._come_on(1)

    def _kill_both(self) -> None:
        self._come_on(1)
        self.kind.without_broker(self._job.kill)


def python_workers(job: Process) -> list[int]:
    """The Python workers that run tasks: children of the daemon that Spark's JVM starts, which leads its own process group."""
    parents, words = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            parents[int(place.name)] = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words[int(place.name)] = (place / "cmdline").read_bytes()

    def of_job(pid: int) -> bool:
        return pid == job.pid or (pid in parents and of_job(parents[pid]))

    daemons = {pid for pid, command in words.items() if command.endswith(b"pyspark.daemon\0pyspark.worker\0") and of_job(pid)}
    return sorted(pid for pid, parent in parents.items() if parent in daemons)

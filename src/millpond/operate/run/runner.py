"""Keep a program running.

1. The program runs in a process of its own (`child.py`), in a process group of its own.
2. When it ends with an error, the next run begins after a pause, which is twice as long after each
   run in which the job that failed committed no batch, and short again after one in which it did.
   If it isn't known which job failed, all jobs that the program started must have committed one.
3. An error that the same program meets again in any case ends it; so do too many runs in a row
   without a commit.
4. What it started is known by the files that `start` writes for us, which are read while it runs:
   so commits count, also of a process that was killed.
5. What the program has left in its process group, as a JVM that hangs, is killed before the next run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from millpond.checkpoint.log import committed_batches
from millpond.errors import MillpondError
from millpond.operate.run.ended import Ended, Failure
from millpond.schema.prepared import ready
from millpond.settings import RunSettings
from millpond.spark.supervised import ORDERS, WATCHED, Orders, read_starts
from millpond.storage import open_storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a runner does now.

    runs:         how many have begun
    state:        running, pausing or ended
    pause_seconds: how long the pause is, if it pauses
    last:         how the last run ended; None if none has
    why_final:    why no other run begins; empty if one may
    """

    runs: int
    state: str
    pause_seconds: float = 0.0
    last: Ended | None = None
    why_final: str = ""


class Runner:
    """Runs a program again and again; for one thread, but for `stop`."""

    def __init__(
        self,
        program: str | Path,
        arguments: Sequence[str] = (),
        *,
        orders: Orders | None = None,
        settings: RunSettings | None = None,
        environment: Mapping[str, str] | None = None,
        say: Callable[[Status], None] = lambda _: None,
    ) -> None:
        """
        program:      a Python file
        arguments:    of the program
        orders:       what `start` does otherwise in it; its folder is made here
        environment:  of the program; None: as here
        say:          called at each change
        """
        self._program, self._arguments = Path(program), list(arguments)
        self._orders, self._settings = orders or Orders(), settings or RunSettings()
        self._environment = dict(os.environ if environment is None else environment)
        self._say = say
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Ask the program to end, and begin no other run.  `run` returns when it has ended."""
        self._stopped.set()

    def run(self) -> Status:
        """Run it until it ends well, `stop` is called, or another run can't help; returns how it ended."""
        runs, idle, pause = 0, 0, self._settings.first_pause_seconds
        self._commits = _Commits()
        random_part = random.Random()  # noqa: S311 - no secret
        while True:
            runs += 1
            self._say(Status(runs=runs, state="running"))
            began = time.monotonic()
            self._commits.begin()
            with tempfile.TemporaryDirectory(prefix="millpond-run-", ignore_cleanup_errors=True) as folder:
                ended = self._once(Path(folder))
            has_committed = self._commits.has_progress(None if ended.failure is None else ended.failure.job)
            # A standby waits, and commits nothing.
            has_waited = self._orders.is_standby and time.monotonic() - began > self._settings.standby_seconds
            if has_committed or has_waited:
                idle, pause = 0, self._settings.first_pause_seconds
            else:
                idle += 1
            why = self._why_final(ended, idle)
            if ended.is_good or why or self._stopped.is_set():
                status = Status(runs=runs, state="ended", last=ended, why_final=why)
                self._say(status)
                return status
            # Programs that were ended by the same cause don't all start at the same moment.
            seconds = pause * random_part.uniform(1 - self._settings.jitter, 1)
            self._say(Status(runs=runs, state="pausing", pause_seconds=seconds, last=ended))
            self._stopped.wait(seconds)
            if self._stopped.is_set():
                return Status(runs=runs, state="ended", last=ended)
            pause = min(pause * 2, self._settings.most_pause_seconds)

    def _why_final(self, ended: Ended, idle: int) -> str:  # 3
        if ended.is_good:
            return ""
        if ended.advice.is_final:
            return "it would fail again in the same way"
        if not self._settings.most_idle_runs:
            return "it runs once"
        if idle >= self._settings.most_idle_runs:
            return f"{idle} runs in a row have committed nothing"
        return ""

    def _once(self, folder: Path) -> Ended:
        report, jobs = folder / "failure.json", folder / "jobs"
        jobs.mkdir()
        orders = Orders(folder=jobs, is_standby=self._orders.is_standby, pond=self._orders.pond)
        reading, writing = os.pipe()
        words = [sys.executable, "-m", "millpond.operate.run.child", str(self._program), str(report), *self._arguments]
        own = {name: value for name, value in self._environment.items() if name not in ORDERS}
        environment = {**own, **orders.to_environment(), WATCHED: str(reading)}
        try:
            self._process = subprocess.Popen(words, env=environment, pass_fds=[reading], start_new_session=True)  # noqa: S603
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        try:
            code = self._wait(self._process, jobs)
            self._commits.look(read_starts(jobs))
        finally:
            os.close(writing)
            _end_group(self._process.pid, self._settings.group_seconds)  # 5
        if self._stopped.is_set() and code in (128 + signal.SIGTERM, -signal.SIGTERM):
            code = 0  # as it was asked
        return Ended(exit_code=code, failure=_read(report) if code > 0 else None)

    def _wait(self, process: subprocess.Popen[bytes], jobs: Path) -> int:
        look_at = time.monotonic() + self._settings.commits_seconds
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(self._settings.look_seconds)
            if self._stopped.is_set():
                break
            if time.monotonic() > look_at:
                self._commits.look(read_starts(jobs))
                look_at = time.monotonic() + self._settings.commits_seconds
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(self._settings.end_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its JVM, too
            return process.wait()


class _Commits:
    """The newest committed batches of the jobs of a program, and which jobs have committed in this run."""

    def __init__(self) -> None:
        self._newest: dict[str, int | None] = {}
        self._since = time.time()
        self._started: set[str] = set()
        self._committed: set[str] = set()

    def begin(self) -> None:
        """A run begins."""
        self._started, self._committed = set(), set()

    def look(self, jobs: Sequence[Mapping[str, str]]) -> None:  # 4
        """See which jobs have committed a batch since the look before, or since the beginning."""
        for job in jobs:
            place, name = job["checkpoint"], job["job"]
            self._started.add(name)
            with suppress(MillpondError):
                storage = open_storage(place)
                newest = max(committed_batches(storage), default=None)
                if newest is not None and newest != self._newest.get(place):
                    stamp = storage.stamp(f"commits/{newest}")
                    if place in self._newest or (stamp is not None and stamp.modified_ns / 1e9 >= self._since):
                        self._committed.add(name)
                self._newest[place] = newest

    def has_progress(self, failed: str | None) -> bool:
        """Whether the job that failed has committed in this run; all that were started, if that isn't known."""
        return failed in self._committed if failed is not None else bool(self._started) and self._started <= self._committed


def _end_group(group: int, seconds: float) -> None:
    """Wait for the end of all processes of a group, and end those that don't."""
    deadline = time.monotonic() + seconds
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def _read(report: Path) -> Failure | None:
    try:
        return msgspec.json.decode(report.read_bytes(), type=ready(Failure))
    except (OSError, msgspec.MsgspecError):
        return None

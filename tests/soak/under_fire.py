"""What storms share: processes that are killed, paused and started again, a disk that is filled, and logs that are judged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from soak.checks import Counts, ReaderLog
from soak.processes import Process, signal_if_there
from suite.waiting import wait_until

_JUDGE_SECONDS = 5.0
_FULL_SECONDS = (1.0, 4.0)


@dataclass(slots=True)
class Storm:
    """The events of a storm."""

    kills: Counter[str] = field(default_factory=Counter)
    pauses: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    full: int = 0
    outages: int = 0


class UnderFire:
    """Processes under fire, and what was wrong.

    processes:  those that are started again whenever they end
    logs:       reader -> its log
    home:       for replicas; if it is a small file system, the storm may fill it
    restart_seconds: the least time between two starts of one process
    """

    restart_seconds = 0.0

    def __init__(self, home: Path, seed: int) -> None:
        self.counts, self.storm = Counts(), Storm()
        self.wrong: list[str] = []
        self.processes: list[Process] = []
        self.logs: dict[str, ReaderLog] = {}
        self.home = home
        self.chance = random.Random(seed)
        self.has_begun = False
        self._paused: list[tuple[float, list[int]]] = []
        self._emptied_at: float | None = None
        self._judged_at = 0.0

    def pause(self, victim: str, pids: list[int], seconds: float) -> None:
        """Stop processes for so long."""
        for pid in pids:
            signal_if_there(pid, signal.SIGSTOP)
        self._paused.append((time.monotonic() + seconds, pids))
        self.storm.pauses[victim] += 1

    def go_on(self, pids: list[int]) -> None:
        """Let paused processes go on."""
        for pid in pids:
            signal_if_there(pid, signal.SIGCONT)
        self._paused = [paused for paused in self._paused if paused[1] is not pids]

    def fill(self) -> None:
        """Fill the disk of the replicas for a while."""
        if self._emptied_at is not None:
            return
        ballast = self.home / "ballast"
        with ballast.open("wb") as file:
            for size in (1 << 20, 1 << 12):
                while (free := shutil.disk_usage(self.home).free) >= size:
                    try:
                        os.posix_fallocate(file.fileno(), file.tell(), free // size * size)
                    except OSError:
                        break  # somebody else has taken some of it
                    file.seek(0, os.SEEK_END)
        self._emptied_at = time.monotonic() + self.chance.uniform(*_FULL_SECONDS)
        self.storm.full += 1

    def rest(self, seconds: float) -> None:
        """Let time pass: continue paused processes, start ended ones again, judge new answers."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for _, pids in [p for p in self._paused if p[0] <= now]:
                self.go_on(pids)
            if self._emptied_at is not None and now >= self._emptied_at:
                self._empty()
            for process in self.processes:
                if not process.alive() and now >= process.started + self.restart_seconds:
                    process.start()
            if now - self._judged_at > _JUDGE_SECONDS:
                self.judge()
            if now >= until:
                return
            time.sleep(0.05)

    def wait_until(self, what: str, holds: Callable[[], object], seconds: float) -> None:
        """Let time pass until that is so; AssertionError if it takes longer."""

        def has_come() -> object:
            if not (has := holds()) and self.has_begun:
                self.rest(0.2)
            return has

        wait_until(has_come, what, seconds=seconds)

    def calm(self) -> None:
        """No process is paused any more, and the disk isn't full."""
        for _, pids in list(self._paused):
            self.go_on(pids)
        if self._emptied_at is not None:
            self._empty()

    def stop_all(self) -> None:
        """Kill all processes."""
        self.calm()
        for process in self.processes:
            process.kill()

    def judge(self) -> None:
        """Judge new answers; AssertionError if something is wrong."""
        self._judged_at = time.monotonic()
        for log in self.logs.values():
            log.judge()
            self.wrong += log.wrong
            log.wrong = []
        self.check_ends()
        if self.wrong:
            raise AssertionError("\n".join(self.wrong))

    def check_ends(self) -> None:
        """No process has ended by itself."""
        for process in self.processes:
            self.wrong += [f"{process.name} ended by itself with {code}" for code in process.unwanted]
            process.unwanted = []

    def _empty(self) -> None:
        (self.home / "ballast").unlink()
        self._emptied_at = None

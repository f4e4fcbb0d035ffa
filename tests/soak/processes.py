"""The processes under fire.  Only this module starts, kills and pauses them, and only by the ids that it got at their start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO

from suite.waiting import TimedOut, wait_until

_TESTS = Path(__file__).parent.parent
_SPAWNED = b"spawn_main"  # a worker of `serve`, not Python's own resource tracker


class Process:
    """A program that is started again whenever it ends.

    environment:  variables that it has besides those of this process
    unwanted:     the exit codes with which it ended by itself
    """

    def __init__(
        self, name: str, command: Callable[[], list[str]], log: Path, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.name, self._command, self._log = name, command, log
        self.environment = dict(environment)
        self.started = 0.0
        self.unwanted: list[int] = []
        self._killed = False
        self.running: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process, which leads its own group."""
        assert self.running is not None
        return self.running.pid

    def start(self) -> None:
        """Start it."""
        environment = {
            **os.environ,
            **self.environment,
            "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")]),
        }
        with self._log.open("a") as log:
            self.running = subprocess.Popen(
                self._command(), stdout=self._output(log), stderr=log, env=environment, start_new_session=True, text=True
            )
        self.started, self._killed = time.monotonic(), False

    def _output(self, log: IO[str]) -> IO[str] | int:
        return log

    def alive(self) -> bool:
        """Whether it runs.  If it ended and nobody killed it, notes its exit code."""
        if self.running is None:
            return False
        code = self.running.poll()
        if code is not None:
            if not self._killed:
                self.unwanted.append(code)
            self.running = None
        return code is None

    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:]

    def ended(self) -> str:
        """If it has ended by itself, the end of its log: for `unless` of a wait."""
        return "" if self.alive() else self.last_words() or f"{self.name} has ended, and said nothing"

    def kill(self) -> None:
        """Kill it and its whole group, such as Spark's JVM."""
        if self.alive():
            self._killed = True
            os.killpg(self.pid, signal.SIGKILL)
            self.running.wait()  # type: ignore[union-attr]
            self.running = None

    def members(self) -> list[int]:
        """The processes to pause: the whole group."""
        group = self.pid
        return [pid for pid in _pids() if _group(pid) == group]

    def end(self) -> int | None:
        """Ask it to end; returns its exit code."""
        if not self.alive():
            return None
        assert self.running is not None
        self._killed = True
        self.running.terminate()
        try:
            return self.running.wait(90)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL
        finally:
            self.running = None


class Server(Process):
    """`millpond serve --workers 2`: a main process, and its workers: a follower and two doors."""

    url = ""

    def __init__(self, command: Callable[[], list[str]], log: Path) -> None:
        super().__init__("server", command, log)
        self._children: dict[int, str] = {}

    def _output(self, log: IO[str]) -> IO[str] | int:
        return log if self.url else subprocess.PIPE

    def wait_for_url(self) -> None:
        """The address after the first start; later starts take the same port."""
        assert self.running is not None
        assert self.running.stdout is not None
        self.url = json.loads(self.running.stdout.readline())["url"]

    def worker(self, wanted: str) -> int | None:
        """The id of its `follower`, or of a `door`; None if there is none at the moment."""
        found: dict[str, int] = {}
        port = int(self.url.rpartition(":")[2])
        for pid in children(self.pid):
            found["door" if listens(pid, port) else "follower"] = pid
        return found.get(wanted)

    def kill(self) -> None:
        """Kill the main process.  Its workers then end by themselves; wait until they have."""
        if self.alive():
            self._killed = True
            orphans = children(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            self.running.wait()  # type: ignore[union-attr]
            self.running = None
            for pid in orphans:
                signal_if_there(pid, signal.SIGCONT)
            try:
                wait_until(
                    lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans), "the end of a killed server's workers"
                )
            except TimedOut:
                self.unwanted.append(-1)
                for pid in orphans:
                    signal_if_there(pid, signal.SIGKILL)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of the tests."""
    return [sys.executable, "-m", module, *arguments]


def children(pid: int) -> list[int]:
    """The ids of a server's workers."""
    found = []
    for child in children_of(pid):
        with contextlib.suppress(OSError):
            if _SPAWNED in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def children_of(pid: int) -> list[int]:
    """The ids of all processes that a process has started."""
    found = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def signal_if_there(pid: int, number: int) -> None:
    """Send a signal to one of our processes, which may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _pids() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def listens(pid: int, port: int) -> bool:
    """Whether a process listens at the port."""
    inodes = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(path))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(f"socket:[{r[9]}]" in inodes for r in rows if int(r[1].rpartition(":")[2], 16) == port and r[3] == "0A")

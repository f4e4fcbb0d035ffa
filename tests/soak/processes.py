"""The processes under fire: each is started, killed, paused and started again here, and only by the ids that were got here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

_TESTS = Path(__file__).parent.parent
_SPAWNED = b"spawn_main"  # a worker of `serve`, and not Python's own tracker of resources


class Process:
    """A program that is started again whenever it ends.

    unwanted:  exit codes it ended with on its own
    """

    def __init__(self, name: str, command: Callable[[], list[str]], log: Path) -> None:
        self.name, self._command, self._log = name, command, log
        self.started = 0.0
        self.unwanted: list[int] = []
        self._killed = False
        self.running: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the running process, which leads a group of its own."""
        assert self.running is not None
        return self.running.pid

    def start(self) -> None:
        """Start it."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])}
        with self._log.open("a") as log:
            self.running = subprocess.Popen(
                self._command(), stdout=self._output(log), stderr=log, env=environment, start_new_session=True, text=True
            )
        self.started, self._killed = time.monotonic(), False

    def _output(self, log: IO[str]) -> IO[str] | int:
        return log

    def alive(self) -> bool:
        """Whether it runs; how it ended is kept where nobody killed it."""
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

    def kill(self) -> None:
        """Kill it and whatever belongs to its group, such as Spark's JVM."""
        if self.alive():
            self._killed = True
            os.killpg(self.pid, signal.SIGKILL)
            self.running.wait()  # type: ignore[union-attr]
            self.running = None

    def members(self) -> list[int]:
        """What can be paused: all of the group."""
        group = self.pid
        return [pid for pid in _pids() if _group(pid) == group]

    def end(self) -> int | None:
        """Ask it to end; its exit code."""
        if not self.alive():
            return None
        assert self.running is not None
        self._killed = True
        self.running.terminate()
        try:
            return self.running.wait(40)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL
        finally:
            self.running = None


class Server(Process):
    """`millpond serve --workers 2`: the process that keeps the others alive, a follower and two doors."""

    url = ""

    def __init__(self, command: Callable[[], list[str]], log: Path) -> None:
        super().__init__("server", command, log)
        self._children: dict[int, str] = {}

    def _output(self, log: IO[str]) -> IO[str] | int:
        return log if self.url else subprocess.PIPE

    def wait_for_url(self) -> None:
        """The address, of the first start; later ones take the same port."""
        assert self.running is not None
        assert self.running.stdout is not None
        self.url = json.loads(self.running.stdout.readline())["url"]

    def worker(self, wanted: str) -> int | None:
        """The id of its `follower`, or of a `door`; None where it hasn't got one just now."""
        found: dict[str, int] = {}
        port = int(self.url.rpartition(":")[2])
        for pid in children(self.pid):
            found["door" if listens(pid, port) else "follower"] = pid
        return found.get(wanted)

    def kill(self) -> None:
        """Kill the one that keeps the others alive; these end by themselves, and it may start again when they have."""
        if self.alive():
            self._killed = True
            orphans = children(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            self.running.wait()  # type: ignore[union-attr]
            self.running = None
            for pid in orphans:
                signal_if_there(pid, signal.SIGCONT)
            deadline = time.monotonic() + 30
            while any(Path(f"/proc/{pid}").exists() for pid in orphans):
                if time.monotonic() > deadline:
                    self.unwanted.append(-1)  # workers that outlive their server
                    for pid in orphans:
                        signal_if_there(pid, signal.SIGKILL)
                    return
                time.sleep(0.05)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours."""
    return [sys.executable, "-m", module, *arguments]


def children(pid: int) -> list[int]:
    """The workers that a server has spawned."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if _SPAWNED in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def signal_if_there(pid: int, number: int) -> None:
    """Send a signal to a process of ours that may have ended."""
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

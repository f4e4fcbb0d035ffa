"""The prompt of `millpond sql` on a terminal: what a person types, and what is shown then."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint
from suite.programs import cpu_seconds, is_asleep, started
from suite.waiting import LEAST_SECONDS, TimedOut, wait_until

COLUMN = "two words"
LONG = "SELECT sum(a.range * b.range % 7) FROM range(10000000) a, range(10000000) b"
# The processor time of a statement that runs: nothing before it in the prompt costs as much.
BUSY_SECONDS = 1.0
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|[\x07\r]")


class Terminal:
    """A terminal in which a prompt runs."""

    def __init__(self, fd: int, pid: int) -> None:
        self._fd = fd
        self._pid = pid
        self.shown = ""

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._fd, text.encode())

    def run(self, statement: str) -> None:
        """Type a statement that lasts, and wait until it runs."""
        before = cpu_seconds(self._pid)
        self.type(f"{statement};\n")
        self.until(";\n")
        _wait_until_busy(self._pid, before)

    def interrupt(self) -> None:
        """Press Ctrl-C once the program waits for keys: between prompt and wait, Python notices it at the next key only."""
        wait_until(lambda: is_asleep(self._pid), "a prompt that waits for keys")
        self.type("\x03")

    def until(self, wanted: str) -> str:
        """All that is shown from here on, up to this text."""
        ends = time.monotonic() + LEAST_SECONDS
        while wanted not in self.shown:
            if not select.select([self._fd], [], [], max(0.0, ends - time.monotonic()))[0]:
                raise TimedOut(repr(wanted), LEAST_SECONDS, self.shown)
            for letter in CONTROL.sub("", os.read(self._fd, 65536).decode()):
                self.shown = self.shown[:-1] if letter == "\b" else self.shown + letter
        found, _, self.shown = self.shown.partition(wanted)
        return found + wanted


@contextmanager
def prompt(place: Path, home: Path) -> Iterator[Terminal]:
    """The prompt in a terminal; it ends by itself."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "MILLPOND_HOME": str(home), "TERM": "xterm", "COLUMNS": "120", "INPUTRC": "/dev/null"}
    command = [sys.executable, "-m", "millpond.cli", "sql", str(place)]
    # Keys such as Ctrl-C go to the programs whose terminal it is.
    running = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        terminal = Terminal(ours, running.pid)
        terminal.until("millpond> ")
        yield terminal
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait(60)
        os.close(ours)


def _wait_until_busy(pid: int, before: float) -> None:
    wait_until(lambda: cpu_seconds(pid) - before > BUSY_SECONDS, "a statement that runs")


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    made = WrittenCheckpoint(tmp_path / "job", key=(Field("page", atomic("string")),), value=(Field(COLUMN, atomic("long")),))
    made.plan([(("a;b",), 41), (("c",), 7)], snapshot=False)
    made.commit()
    return made


def test_a_session(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with prompt(job.path, tmp_path / "home") as terminal:
        terminal.type(".ta\t\n")
        assert "job.aggregate_0" in terminal.until("millpond> ")
        terminal.type(".describe job.a\t\n")
        assert COLUMN in terminal.until("millpond> ")
        terminal.type('SELECT "two w\t, pa\t FROM job.a\t\n')
        assert terminal.until("...> ").startswith('SELECT "two words", page FROM "job.aggregate_0"')
        terminal.type("WHERE page = 'a;b'; SELECT 1 + 1 AS two;\n")
        assert re.search(r"41 +a;b.*two", terminal.until("millpond> "), re.DOTALL)
        terminal.type("SELECT nothing;\n")
        assert "INVALID_STATEMENT" in terminal.until("millpond> ")
        terminal.type("SELECT 'half a\n")
        terminal.until("...> ")
        terminal.interrupt()
        terminal.until("millpond> ")
        terminal.type("SELECT 'whole';\n")
        assert "whole" in terminal.until("millpond> ")
        terminal.type(".quit\n")
    with prompt(job.path, tmp_path / "home") as terminal:
        terminal.type("\x1b[A\x1b[A\n")  # Up, twice: what was typed before is remembered
        assert "whole" in terminal.until("millpond> ")
        terminal.type("\x04")  # Ctrl-D


def test_a_statement_that_runs_is_ended_by_a_key(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with prompt(job.path, tmp_path / "home") as terminal:
        terminal.run(LONG)
        terminal.type("\x03")
        assert "interrupted" in terminal.until("millpond> ")
        terminal.type("SELECT 2 + 2 AS four;\n")
        assert "four" in terminal.until("millpond> ")
        terminal.type(".quit\n")


def test_a_statement_without_a_prompt_is_ended_by_a_key(job: WrittenCheckpoint, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millpond.cli", "sql", str(job.path), LONG]
    environment = {**os.environ, "MILLPOND_HOME": str(tmp_path / "home")}
    with started(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        wait_until((tmp_path / "home" / "replicas").exists, "the replica", unless=running.poll)
        _wait_until_busy(running.pid, cpu_seconds(running.pid))
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert "INTERNAL_ERROR" not in said
    assert running.returncode == 130, said


def test_a_watch_shows_each_batch_until_a_key(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with prompt(job.path, tmp_path / "home") as terminal:
        terminal.type(f'.watch SELECT "{COLUMN}" FROM "job.aggregate_0"\n')
        terminal.until("...> ")
        terminal.type("WHERE page = 'c';\n")
        terminal.until("7")
        job.plan([(("c",), 4711)], snapshot=False)
        job.commit()
        terminal.until("4711")
        terminal.type("\x03")
        terminal.until("millpond> ")
        terminal.type(".quit\n")

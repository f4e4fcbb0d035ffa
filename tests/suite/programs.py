"""Programs that a test starts: they end with the test, however it ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suite.waiting import PATIENCE_SECONDS


@contextmanager
def started(args: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a program; it must have ended, or end by itself, soon after the block.

    `subprocess.Popen` as a context waits for the end without a limit: a failure in the block then hangs the whole run, for
    example if the program waits in turn for somebody who reads what it writes.

    options:  of `subprocess.Popen`
    Raises:   TimeoutExpired if it goes on; it is killed then, as it is after an error of the block.
    """
    with subprocess.Popen(args, **options) as running:
        try:
            yield running
            if running.stdin is not None:
                running.stdin.close()
            running.wait(PATIENCE_SECONDS)
        finally:
            if running.poll() is None:
                running.kill()


def cpu_seconds(pid: int) -> float:
    """The processor time of a process; 0 if it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def is_asleep(pid: int) -> bool:
    """Whether the main thread of a process waits for something."""
    return _stat(pid)[:1] == ["S"]


def _stat(pid: int) -> list[str]:
    """What /proc/PID/stat has behind the program's name; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

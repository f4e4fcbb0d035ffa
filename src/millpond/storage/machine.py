"""This machine since its last start, and the processes on it: whether one that was noted is still there."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def boot_id() -> str:
    """An id that changes when the machine restarts; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def machine_id() -> str:
    """An id of this machine, or container, until its restart; empty if the system doesn't say.

    Within it a process id means one process at a time.
    """
    boot = boot_id()
    try:
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}" if boot else ""
    except OSError:
        return ""


def host_name() -> str:
    """The machine's name, for people."""
    return platform.node() or "an unnamed machine"


def process_start(pid: int) -> str:
    """When a process began, in ticks since the machine's start; empty if the system doesn't say.

    With its id this names one process: ids are used again.
    """
    return _state_and_start(pid)[1]


def process_began_ms() -> int:
    """When this process began, milliseconds since 1970; now if the system doesn't say."""
    try:
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - int(process_start(os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        age = 0.0
    return int((time.time() - max(0.0, age)) * 1000)


def is_running(pid: int, start: str) -> bool:
    """Whether the process with this id and start is still there, as far as the system says."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's, and may be hidden
        return True
    state, now = _state_and_start(pid)
    return state not in ("Z", "X") and (not now or now == start)


def _state_and_start(pid: int) -> tuple[str, str]:
    try:
        # The name in parentheses may have any characters: state is field 3, the start is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]

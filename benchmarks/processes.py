"""What processes use: processor seconds and memory, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int, *, children: bool = False) -> float:
    """User and system time of a process so far, of all its threads.

    children:  and of all that descend from it, those that have ended and were waited for too
    """
    seconds = _times(pid, ended=children)
    if children:
        seconds += sum(_times(other, ended=True) for other in _descendants(pid))
    return seconds


def memory_mib(pid: int) -> dict[str, int]:
    """What a process holds: VmHWM (the most so far, mapped files too), RssAnon (private), RssFile (mapped files)."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) // 1024 for name in ("VmHWM", "RssAnon", "RssFile")}


def _times(pid: int, *, ended: bool) -> float:
    fields = _fields(pid)
    return sum(map(int, fields[11 : 15 if ended else 13])) / _TICKS


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _fields(int(folder.name))):
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat what stands behind the name; nothing where the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

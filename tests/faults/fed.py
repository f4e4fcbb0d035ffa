"""A job that is fed files and killed: what tests of such jobs share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak.processes import Process, signal_if_there

Rows = list[dict[str, Any]]
SEED = int(os.environ.get("MILLPOND_SEED", "20261122"))
WAIT_SECONDS = 240
_LOST_WORKER = "Python worker exited unexpectedly"


class Files:
    """A folder of files, a JSON object a line, that a job reads in the order in which they were written.

    rows:  of each file
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.rows: list[Rows] = []

    def add(self, rows: Rows) -> None:
        """Write the next file, whole from the moment it is seen.  Spark goes by the files' times."""
        number, hidden = len(self.rows), self.folder / ".next"
        hidden.write_text("\n".join(map(json.dumps, rows)))
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(self.folder / f"{number:06}.json")
        self.rows.append(rows)


def wait_until(done: Callable[[], bool], job: Process, *, pause_seconds: float = 0.05) -> None:
    """Ask until it is so; where the job ends before, or nothing comes of it, its last words are told."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not done():
        assert job.alive(), f"seed {SEED}: {job.last_words()}"
        assert time.monotonic() < deadline, f"seed {SEED}: {job.last_words()}"
        time.sleep(pause_seconds)


def newest(folder: Path) -> int:
    """The newest batch of `commits` or `offsets`, -1 where there is none."""
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


def sink_rows(output: Path) -> list[tuple[int, dict[str, Any]]]:
    """(batch, row) of what Spark's file sink has committed, by its own log of files.

    Every tenth log is a compacted one: its own files with those of all before.
    """
    import pyarrow.parquet as pq

    rows, seen = [], set()
    logs = {int(log.name.removesuffix(".compact")): log for log in (output / "_spark_metadata").glob("[0-9]*")}
    for batch, log in sorted(logs.items()):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            assert entry["action"] == "add"
            name = entry["path"].rsplit("/", 1)[-1]
            if name not in seen:
                seen.add(name)
                rows += [(batch, row) for row in pq.read_table(output / name).to_pylist()]
    return rows


def python_workers(job: Process) -> list[int]:
    """Those that run tasks: children of the daemon that Spark's JVM starts for them, which leads a group of its own."""
    parents, words = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(place.name)] = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words[int(place.name)] = (place / "cmdline").read_bytes()

    def of_job(pid: int) -> bool:
        return pid == job.pid or (pid in parents and of_job(parents[pid]))

    daemons = {pid for pid, command in words.items() if command.endswith(b"pyspark.daemon\0pyspark.worker\0") and of_job(pid)}
    return sorted(pid for pid, parent in parents.items() if parent in daemons)


def kill_workers(job: Process, log: Path, within_batch: Callable[[], bool], *, pause_seconds: float) -> None:
    """Kill those that run tasks, and nothing else, until a task has met it; Spark tries that one again.

    within_batch:  whether a batch is under way just now
    """

    def lost() -> int:
        return log.read_text(errors="replace").count(_LOST_WORKER)

    def met() -> bool:
        if within_batch():
            for worker in python_workers(job):
                signal_if_there(worker, signal.SIGKILL)
        return lost() > before

    before = lost()
    wait_until(met, job, pause_seconds=pause_seconds)

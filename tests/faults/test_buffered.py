"""Rows that wait in the state are neither lost nor repeated, whenever the job, its JVM and its workers are killed."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import millpond
from faults.buffered_job import AT_LEAST
from faults.fed import SEED, Files, kill_workers, newest, sink_rows, wait_until
from soak.processes import Process

pytest.importorskip("pyspark")
pytestmark = pytest.mark.faults
KILLS = int(os.environ.get("MILLPOND_KILLS", "2"))
ROWS_A_FILE = 9


def released(output: Path) -> list[tuple[int, int, int]]:
    """(shard, release, n) of all rows that the file sink has committed, as Spark reads them: by its own log of files."""
    return [(row["shard"], row["release"], row["n"]) for _, row in sink_rows(output)]


def test_no_row_is_lost_or_repeated_by_kills(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    incoming, pond, output = Files(tmp_path / "in"), tmp_path / "pond", tmp_path / "out"
    offsets, commits = (pond / "jobs" / "rows" / "checkpoint" / name for name in ("offsets", "commits"))
    written = fed = 0

    def write() -> None:
        nonlocal written
        incoming.add([{"n": n, "text": f"row {n}"} for n in range(written, written + ROWS_A_FILE)])
        written += ROWS_A_FILE

    def feed() -> int:
        """A file for each look at which the job has come on; how many batches it has done."""
        nonlocal fed
        done = newest(commits) + 1
        if done > fed:
            write()
            fed = done
        return done

    def wait_for_batches(more: int) -> None:
        wanted = feed() + more
        wait_until(lambda: feed() >= wanted, job, pause_seconds=0.02)

    def within_batch() -> bool:
        feed()
        return newest(offsets) > newest(commits)

    write()
    command = [sys.executable, "-m", "faults.buffered_job", str(incoming.folder), str(pond), str(output)]
    log = tmp_path / "log"
    job = Process("job", lambda: command, log)
    job.start()
    looks = kills = seen = 0
    try:
        while kills < KILLS:
            deadline = time.monotonic() + 180
            wait_for_batches(2)
            with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as opened:
                until = time.monotonic() + chance.uniform(0.5, 2.5)
                while time.monotonic() < until or not seen:
                    assert time.monotonic() < deadline, f"seed {SEED}"
                    feed()
                    rows = opened["rows_waiting"].scan()
                    waiting = Counter(row["n"] for row in rows)
                    assert set(waiting.values()) <= {1}, f"seed {SEED}"
                    assert all(row["text"] == f"row {row['n']}" for row in rows)
                    # Fewer than it takes wait in each shard, at whatever batch.
                    assert max(Counter(row["shard"] for row in rows).values(), default=0) < AT_LEAST
                    looks, seen = looks + 1, seen + len(rows)
                    time.sleep(0.02)
            # A worker alone, whose task is tried again; then all together.
            kill_workers(job, log, within_batch, pause_seconds=chance.uniform(0.2, 0.6))
            wait_for_batches(1)
            job.kill()
            kills += 1
            job.start()
        wait_until(lambda: len(released(output)) >= written, job, pause_seconds=0.2)
        with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as opened:
            wait_until(lambda: not opened["rows_waiting"].count(), job)  # the sink is ahead of the batch's commit
    finally:
        job.kill()
    assert job.unwanted == []
    out = released(output)
    assert sorted(n for _, _, n in out) == list(range(written)), f"seed {SEED}"
    # Each shard's releases are numbered without a gap.
    numbers = {shard: {release for other, release, _ in out if other == shard} for shard, _, _ in out}
    assert all(found == set(range(1, len(found) + 1)) for found in numbers.values())
    assert len(numbers) == 2
    assert looks > KILLS

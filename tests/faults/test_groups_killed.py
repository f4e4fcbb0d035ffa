"""Salted groups with live hot keys, and groups with variables, while the jobs, their JVM and their workers are killed.

The oracle is a recomputation over the files that a table says it has: at any moment it is what the first so many of them give.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import millpond
from faults.fed import SEED, Files, Rows, newest, python_workers, wait_until
from soak.processes import Process

pytest.importorskip("pyspark")
pytestmark = pytest.mark.faults
KILLS = int(os.environ.get("MILLPOND_KILLS", "2"))
ROWS_A_FILE = 1500  # more than it takes to judge which are hot
JOBS = ("views", "visitors_by_map", "visitors_by_list")


def test_groups_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    pond, log, incoming = tmp_path / "pond", tmp_path / "log", Files(tmp_path / "in")
    files = incoming.rows

    def feed() -> None:
        first = len(files) * ROWS_A_FILE
        incoming.add(
            [
                {"n": n, "page": "/hot" if n % 2 else f"/{chance.randrange(40)}", "host": f"h{chance.randrange(60)}"}
                for n in range(first, first + ROWS_A_FILE)
            ]
        )

    def batches() -> int:
        """That the slowest job has done."""
        return min(newest(pond / "jobs" / job / "checkpoint" / "commits") for job in JOBS) + 1

    def check(opened: millpond.Pond) -> int:
        """Hold all tables against the files that they have; how many the slowest job has."""
        slowest = len(files)
        views = opened["views"].scan()
        hits, rest = divmod(sum(row["hits"] for row in views), ROWS_A_FILE)
        assert rest == 0, f"seed {SEED}"
        seen = [row for rows in files[:hits] for row in rows]
        assert {row["page"]: row["hits"] for row in views} == Counter(row["page"] for row in seen), f"seed {SEED}"
        assert {row["page"]: set(row["hosts"]) for row in views} == hosts_of(seen)
        for way in ("by_map", "by_list"):
            with opened.cut(f"visitors_{way}") as cut:
                counted = {row["page"]: row["visitors"] for row in cut[f"visitors_{way}_count"].scan()}
                listed = Counter(row["page"] for row in cut[f"visitors_{way}_hosts"].scan())
            assert counted == listed, f"seed {SEED}"
            has = [n for n in range(len(files) + 1) if visitors_of(files[:n]) == counted]
            assert has, f"seed {SEED}: {way} has the hosts of no number of files"
            slowest = min(slowest, hits, has[-1])
        return slowest

    feed()
    job = Process("job", lambda: [sys.executable, "-m", "faults.groups_job", str(incoming.folder), str(pond)], log)
    job.start()
    killed_workers = 0

    def wait_for_batches(more: int) -> None:
        fed, wanted = -1, batches() + more

        def came_on() -> bool:
            nonlocal fed
            if (done := batches()) > fed and done < wanted:
                feed()
                fed = done
            return done >= wanted

        wait_until(came_on, job)

    try:
        for kill in range(KILLS + 1):
            wait_for_batches(2)
            if kill < KILLS:
                feed()
                # A worker alone, which Spark replaces; then all together.
                for worker in chance.sample(workers := python_workers(job), min(1, len(workers))):
                    os.kill(worker, signal.SIGKILL)
                    killed_workers += 1
                wait_for_batches(2)
                feed()
                time.sleep(chance.uniform(0.1, 1.5))
                job.kill()
                with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as opened:
                    opened.catch_up(60)
                    check(opened)
                job.start()
        with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as opened:
            wait_until(lambda: check(opened) == len(files), job, pause_seconds=0.5)
    finally:
        job.kill()
    assert job.unwanted == []
    assert killed_workers
    assert len(millpond.HotKeys(pond, "views").found()) == 1  # so rows were split


def hosts_of(rows: Rows) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["page"], set()).add(row["host"])
    return found


def visitors_of(files: list[Rows]) -> dict[str, int]:
    return {page: len(hosts) for page, hosts in hosts_of([row for rows in files for row in rows]).items()}

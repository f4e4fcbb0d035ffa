"""Models that are swapped while the job, its JVM and its workers are killed: each record is scored once, by the model of its batch.

The oracle is what an undisturbed run would have written: the weights of each version are known here.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import millpond
from faults.fed import SEED, Files, kill_workers, newest, sink_rows, wait_until
from small_models import linear
from soak.processes import Process

pytest.importorskip("pyspark")
pytestmark = pytest.mark.faults
KILLS = 2
RECORDS_A_FILE = 20


def test_every_record_is_scored_once_by_the_model_of_its_batch(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    published, pond, output = (tmp_path / name for name in ("published", "pond", "out"))
    published.mkdir()
    records = Files(tmp_path / "records")
    commits = pond / "jobs" / "model" / "checkpoint" / "commits"
    weights: list[tuple[float, float]] = []
    written = fed = 0

    def feed() -> int:
        """A file, and sometimes a model, for each batch that the job has done; how many it has done."""
        nonlocal fed, written
        done = newest(commits) + 1
        if done >= fed:
            fed = done + 1
            if fed % 2:
                weights.append((float(len(weights) + 1), chance.uniform(-1, 1)))
                millpond.publish_model(published, linear(list(weights[-1]), 0.0), name=f"model{len(weights)}")
            records.add([{"id": n, "a": n % 7, "b": n % 11} for n in range(written, written + RECORDS_A_FILE)])
            written += RECORDS_A_FILE
        return done

    feed()
    command = [sys.executable, "-m", "faults.models_job", str(records.folder), str(published), str(pond), str(output)]
    log = tmp_path / "log"
    job = Process("job", lambda: command, log)
    job.start()

    def within_batch() -> bool:
        feed()
        return newest(commits.parent / "offsets") > newest(commits)

    def wait_for_batches(more: int) -> None:
        wanted = feed() + more
        wait_until(lambda: feed() >= wanted, job, pause_seconds=0.02)

    try:
        for _ in range(KILLS):
            wait_for_batches(2)
            until = time.monotonic() + chance.uniform(0.2, 1.5)
            while time.monotonic() < until:
                feed()
                time.sleep(0.02)
            # A worker alone, whose task is tried again; then all together.
            kill_workers(job, log, within_batch, pause_seconds=chance.uniform(0.2, 0.6))
            wait_for_batches(1)
            job.kill()
            job.start()
        wait_for_batches(2)
        deadline = time.monotonic() + 120
        # The sink's log is written before the commit, and the tables hold what is committed.
        while len(found := sink_rows(output)) < written or not (commits / str(max(batch for batch, _ in found))).exists():
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        job.kill()
    assert sorted(row["id"] for _, row in found) == list(range(written)), f"seed {SEED}"
    version_of: dict[int, set[int | None]] = {}
    for batch, row in found:
        version_of.setdefault(batch, set()).add(row["model_version"])
        if row["model_version"] is not None:
            a, b = weights[row["model_version"] - 1]
            assert row["model"] == f"model{row['model_version']}"
            assert math.isclose(row["result"], a * row["a"] + b * row["b"], rel_tol=1e-5, abs_tol=1e-5), f"seed {SEED}"
    # All shards of a batch have met one version, and none goes back.
    assert all(len(versions) == 1 for versions in version_of.values()), f"seed {SEED}: {version_of}"
    met = [next(iter(version_of[batch])) or 0 for batch in sorted(version_of)]
    assert met == sorted(met)
    assert len(set(met)) > 1
    with millpond.open(pond, replica_dir=tmp_path / "home", wait_seconds=60) as opened:
        opened.catch_up(60)
        versions = [(row["version"], row["name"], row["since_batch"]) for row in opened["model_versions"].scan()]
        assert [(v, name) for v, name, _ in versions] == [(n, f"model{n}") for n in range(1, len(versions) + 1)]
        # A version holds since the first batch that met it, or before where it had no records.
        first = {version: min(b for b in version_of if version in version_of[b]) for version in set(met) - {0}}
        assert all(since <= first[version] for version, _, since in versions if version in first)
        usage = {row["version"]: row["usage"] for row in opened["model_statistics"].scan()}
        counted = Counter(row["model_version"] for _, row in found if row["model_version"] is not None)
        assert {version: n for version, n in usage.items() if n} == counted

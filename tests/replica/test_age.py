"""The age of an answer: since its commit, or since its batch began if a copy has lost the time of the commit."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import millpond
from millpond.tables.answer import Lag
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until

HOUR = 3600.0


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    """One batch, planned and committed an hour ago."""
    checkpoint = WrittenCheckpoint(tmp_path / "ck")
    began = time.time() - HOUR
    checkpoint.clock = int(began * 1000)
    checkpoint.plan([("a", 1)], snapshot=False)
    checkpoint.commit()
    for file in (p for p in checkpoint.path.rglob("*") if p.is_file()):
        os.utime(file, (began, began))
    return checkpoint


def lag_of(path: Path) -> Lag:
    with millpond.open(path, replica_dir="memory://") as pond:
        (table,) = pond.tables()
        lag = pond[table].get(k="a").cut.lag
    cold = millpond.read_row(path, table, {"k": "a"}).cut.lag
    assert cold.age_from == lag.age_from
    assert -1 < cold.age_seconds - lag.age_seconds < 300
    return lag


def test_an_original_tells_when_it_was_committed(job: WrittenCheckpoint) -> None:
    lag = lag_of(job.path)
    assert lag.age_from == "commit"
    assert lag.age_seconds == pytest.approx(HOUR, abs=300)


def test_a_batch_that_ran_long_is_as_young_as_its_commit(job: WrittenCheckpoint) -> None:
    os.utime(job.path / "commits" / "0")
    lag = lag_of(job.path)
    assert lag.age_from == "commit"
    assert lag.age_seconds < 300


def test_a_copy_is_as_old_as_its_batch(job: WrittenCheckpoint, tmp_path: Path) -> None:
    shutil.copytree(job.path, tmp_path / "copy", copy_function=shutil.copy)  # as `cp -r` does, without file times
    lag = lag_of(tmp_path / "copy")
    assert lag.age_from == "batch_start"
    assert lag.age_seconds == pytest.approx(HOUR, abs=300)


def test_a_commit_older_than_its_batch_tells_nothing(job: WrittenCheckpoint) -> None:
    os.utime(job.path / "commits" / "0", (0, 0))
    assert lag_of(job.path).age_from == "batch_start"


def test_a_file_restored_under_a_follower_doesnt_make_the_state_younger(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond:
        (table,) = pond.tables()
        for name in ("offsets/0", "commits/0"):
            restored = job.path / f".{Path(name).name}.restored"
            shutil.copy(job.path / name, restored)
            restored.rename(job.path / name)
        new = (job.path / "commits" / "0").stat().st_mtime_ns
        wait_until(lambda: pond[table].get(k="a").cut.position.committed_ns == new, "the new time of the commit")
        cut = pond[table].get(k="a").cut
        assert cut.lag.age_from == "commit"
        assert cut.lag.age_seconds == pytest.approx(HOUR, abs=300)

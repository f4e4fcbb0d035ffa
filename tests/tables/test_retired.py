"""A job whose folder is removed is gone from reads, readiness and threads."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

import millpond
from millpond.catalogue import create_job
from millpond.errors import MillpondError
from spark_files.checkpoint import WrittenCheckpoint


def _job(pond: Path, name: str, keys: str, job_id: str = "id") -> None:
    create_job(pond, name)
    job = WrittenCheckpoint(pond / "jobs" / name / "checkpoint", job_id)
    job.plan([(key, 1) for key in keys], snapshot=False)
    job.commit()


def _followers() -> int:
    return sum(thread.name == "millpond-follower" for thread in threading.enumerate())


@pytest.mark.parametrize("follow", [True, False])
def test_a_retired_job_fails_nothing(tmp_path: Path, follow: bool) -> None:
    path, before = tmp_path / "pond", _followers()
    for name in ("stays", "goes"):
        _job(path, name, "ab")
    with millpond.open(path, replica_dir=tmp_path / "home"):
        pass
    with millpond.open(path, replica_dir=tmp_path / "home", follow=follow) as pond:
        assert pond.ready() == (True, "ready")
        shutil.rmtree(path / "jobs" / "goes")
        assert pond.ready() == (True, "ready")
        assert (pond.jobs(), pond.tables()) == (["stays"], ["stays.aggregate_0"])
        assert list(pond.statistics()) == ["stays"]
        assert _followers() - before == int(follow)
        with pytest.raises(MillpondError) as refused:
            pond["goes.aggregate_0"].count()
        assert refused.value.condition == "UNKNOWN_TABLE"
        pond.catch_up(60)
        if follow:
            _job(path, "goes", "xyz", "another")  # and it may come back, as another job
            pond.catch_up(60)  # all jobs, also those that the pond hasn't seen yet
            assert pond["goes.aggregate_0"].count() == 3
            assert pond.ready() == (True, "ready")


def test_a_pond_that_is_gone_isnt_ready(tmp_path: Path) -> None:
    _job(tmp_path / "pond", "a", "x")
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home") as pond:
        shutil.rmtree(tmp_path / "pond")
        ready, reason = pond.ready()
        assert not ready
        assert "NO_CHECKPOINT" in reason

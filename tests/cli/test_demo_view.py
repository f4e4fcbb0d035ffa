"""What the demo shows while its jobs start, run, or start anew while replicas of older jobs are still there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import millpond
from millpond.catalogue import create_job
from millpond.cli import demo_view
from millpond.cli.demo_view import look
from millpond.errors import CONDITIONS, PASSING, MillpondError
from millpond.replica import replica
from millpond.tables.cold.table import find_definition
from spark_files.checkpoint import WrittenCheckpoint

DEFINITION = "jobs/bad_lines/tables/bad_lines.json"


def _job(pond: Path, job_id: str) -> WrittenCheckpoint:
    """The demo's job `bad_lines`, before its first batch."""
    checkpoint = WrittenCheckpoint(pond / "jobs" / "bad_lines" / "checkpoint", job_id)
    create_job(pond, "bad_lines")
    return checkpoint


def _commit(job: WrittenCheckpoint, key: str) -> None:
    job.plan([(key, 1)], snapshot=False)
    job.commit()


def _define(pond: Path) -> None:
    folder = create_job(pond, "bad_lines")
    stored = find_definition(folder.checkpoint, "checkpoint.aggregate_0")
    folder.write_definition(replace(stored, table="bad_lines", derived=True, warnings=()))


def test_a_pond_that_was_deleted_and_begun_anew_shows_the_new_jobs_as_they_come(tmp_path: Path) -> None:
    """The old job's replica is still there.  Until the new job has a batch, the demo shows nothing, and no error."""
    pond, home = tmp_path / "pond", tmp_path / "home"
    old = _job(pond, "old")
    for key in ("a", "b"):
        _commit(old, key)
    _define(pond)
    definition = (pond / DEFINITION).read_bytes()
    with millpond.open(pond, replica_dir=home) as opened:
        assert [(t.name, t.rows) for t in look(opened).tables] == [("bad_lines", 2)]
    shutil.rmtree(pond)
    new = _job(pond, "new")
    (pond / DEFINITION).parent.mkdir()
    (pond / DEFINITION).write_bytes(definition)
    with millpond.open(pond, replica_dir=home, follow=False, wait_seconds=0) as opened:
        with pytest.raises(MillpondError) as refused:
            opened["bad_lines"].count()
        assert refused.value.condition == "JOB_REPLACED"
        assert look(opened).tables == []
    with millpond.open(pond, replica_dir=home, wait_seconds=0) as opened:
        assert look(opened).tables == []
        _commit(new, "c")
        opened.catch_up(30)
        assert [(t.name, t.rows) for t in look(opened).tables] == [("bad_lines", 1)]


def test_what_waits_outlives_all_that_passes() -> None:
    """One list has the conditions that pass by themselves; waiting for a job to begin goes on through all of them."""
    assert set(CONDITIONS) >= PASSING
    for waiting in (demo_view._NOT_YET, replica._PASSING):
        assert waiting >= PASSING

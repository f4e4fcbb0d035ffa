"""`kill -9` at any step of what deletes savepoints, forks a job, or compares two: the old or the new is whole."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import millpond
from millpond.catalogue import create_job, open_jobs
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.fork import plan_fork
from millpond.savepoint.manage.delete import plan_delete_savepoint
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.manage.prune import Keep, prune_by
from millpond.savepoint.verify import verify_savepoint
from savepoint.killed import run_killed
from savepoint.test_golden_cells import rows_of
from savepoint.test_killed import files_of, points, refusal
from spark_files.checkpoint import WrittenCheckpoint
from suite.sizes import IS_LONG

NAMES = ["s0", "s1", "s2", "s3"]
BATCH = 3
KILLS = 20 if IS_LONG else 5
# The threads of a command take some steps more or less each time.
SPARE = 8


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    """A job of a pond, with four batches and a savepoint of each."""
    pond = tmp_path / "pond"
    job = WrittenCheckpoint(Path(create_job(pond, "counts").checkpoint.removeprefix("file://")))
    for name in NAMES:
        job.plan([(f"k{n}", n + job.next_batch) for n in range(9)], snapshot=False)
        job.commit()
        plan_savepoint(pond, name).run()
    return job


def test_what_is_deleted_is_never_taken_for_whole(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """Others have all of their files.  A second `delete` ends what `prune` began, and `list` names it."""
    pond, fresh = tmp_path / "pond", tmp_path / "fresh"
    shutil.copytree(pond, fresh)
    steps = run_killed(0, pond, "prune", "1") - SPARE
    ends = set()
    for point in sorted(random.Random(3).sample(range(1, steps), KILLS)):
        shutil.rmtree(pond)
        shutil.copytree(fresh, pond)
        assert run_killed(point, pond, "prune", "1") < 0
        there = list_savepoints(pond)
        assert not there.broken
        whole = [found.manifest.name for found in there.found]
        assert whole == NAMES[len(NAMES) - len(whole) :]  # the oldest goes first
        assert [verify_savepoint(found).problems for found in there.found] == [()] * len(whole)
        ends.add((len(whole), len(there.incomplete)))
        for name in there.incomplete:
            assert refusal(lambda left=name: open_savepoint(pond, left)).condition == "SAVEPOINT_INCOMPLETE"
            refused = refusal(lambda left=name: plan_savepoint(pond, left))
            assert (refused.condition, f"delete … {name}" in str(refused.hint)) == ("SAVEPOINT_INCOMPLETE", True)
            plan_delete_savepoint(pond, name).run()
        prune_by(pond, Keep(last=1)).run()
        assert sorted(path.name for path in (pond / "savepoints").iterdir()) == ["s3"]
        assert verify_savepoint(open_savepoint(pond, "s3")).problems == ()
    assert any(incomplete for _, incomplete in ends)
    assert len(ends) > 1


def test_a_fork_is_whole_or_no_job(job: WrittenCheckpoint, tmp_path: Path) -> None:
    """The first job is as it was; what a killed fork leaves isn't read, and the error says what to delete."""
    pond = tmp_path / "pond"
    expected, before = rows_of(job.path, BATCH), files_of(pond)
    steps = run_killed(0, pond, "fork", "s3", "other") - SPARE
    ends = set()
    for point in points(steps, 5):
        shutil.rmtree(pond / "jobs/other", ignore_errors=True)
        assert run_killed(point, pond, "fork", "s3", "other") < 0
        assert before.items() <= files_of(pond).items()
        jobs = [folder.job for folder in open_jobs(pond)]
        if "other" not in jobs:
            assert jobs == ["counts"]
            if (pond / "jobs/other").exists():
                ends.add("incomplete")
                if list((pond / "jobs/other").iterdir()):
                    refused = refusal(lambda: plan_fork(pond, "s3", "other"))
                    assert (refused.condition, "delete that folder" in str(refused.hint)) == ("TABLE_EXISTS", True)
                    assert str(pond / "jobs/other") in refused.message
                shutil.rmtree(pond / "jobs/other")
            plan_fork(pond, "s3", "other").run()
        else:
            ends.add("whole")
            assert refusal(lambda: plan_fork(pond, "s3", "other")).condition == "TABLE_EXISTS"
        assert rows_of(pond / "jobs/other/checkpoint", BATCH) == expected
        tables = (f"{name}.aggregate_0" for name in ("counts", "other"))
        assert len({repr(sorted(map(repr, millpond.read_arrow(pond, table).to_pylist()))) for table in tables}) == 1
    assert "incomplete" in ends


def test_a_killed_diff_leaves_no_file(job: WrittenCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rows in temporary files, nor anything beside the savepoints."""
    pond, home = tmp_path / "pond", tmp_path / "home"
    monkeypatch.setenv("MILLPOND_HOME", str(home))
    before = files_of(pond)
    steps = run_killed(0, pond, "diff", "s0", "s3") - SPARE
    assert steps > 20
    for point in random.Random(5).sample(range(1, steps), KILLS):
        assert run_killed(point, pond, "diff", "s0", "s3") < 0
        assert files_of(pond) == before
        assert files_of(home) == {}
    (table,) = millpond.read_diff(pond, "s0", "s3").tables
    assert (table.counts.changed, table.counts.added, table.counts.removed) == (9, 0, 0)

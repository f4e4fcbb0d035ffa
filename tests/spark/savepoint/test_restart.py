"""A savepoint of a running job: Spark goes on from it, and ends with the state of the job that nobody interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from live_jobs.interrupted import CELLS, NAMES, Interrupted, Restored, last_batch, ordered, read_batch, session_of
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("name", a_few(NAMES, 0, long=12))
def test_a_restored_job_ends_like_the_one_that_was_never_interrupted(spark: SparkSession, tmp_path: Path, name: str) -> None:
    own, cell = session_of(spark, name), CELLS[name]
    job = Interrupted(own, tmp_path / "checkpoint", tmp_path / "inputs")
    cell.write(job)
    savepoint = job.savepoint
    assert verify_savepoint(savepoint).problems == ()
    plan_restore(job.checkpoint, savepoint.manifest.name, tmp_path / "restored").run()
    batch = savepoint.manifest.batch
    assert batch < last_batch(job.checkpoint)
    assert ordered(read_batch(own, tmp_path / "restored", batch)) == ordered(read_batch(own, job.checkpoint, batch))
    cell.write(Restored(own, tmp_path / "restored", tmp_path / "inputs", job.runs))
    ends = [read_batch(own, folder, last_batch(folder)) for folder in (tmp_path / "restored", job.checkpoint)]
    assert ordered(ends[0]) == ordered(ends[1])
    assert any(ends[0].values()), "a state without rows shows nothing"

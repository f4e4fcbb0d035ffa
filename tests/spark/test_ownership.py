"""Of two jobs that Millpond starts over one checkpoint, the second is refused, with the name of the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.catalogue import job_of
from millpond.errors import MillpondError
from millpond.ownership.lease import NAME, take_lease


@pytest.fixture
def counts(spark, tmp_path):
    (tmp_path / "in").mkdir()
    write_event_file(tmp_path / "in", 0, [{"k": "a"}, {"k": "b"}])
    return spark.readStream.schema("k string").json(str(tmp_path / "in")).groupBy("k").count()


def refused(counts, tmp_path: Path, **options) -> MillpondError:
    with pytest.raises(MillpondError) as caught:
        millpond.start(counts, table="counts", pond=tmp_path / "pond", partitions=2, **options)
    return caught.value


def test_a_second_job_is_refused_until_the_first_has_ended(counts, tmp_path):
    job = millpond.start(counts, table="counts", pond=tmp_path / "pond", partitions=2)
    error = refused(counts, tmp_path)
    assert error.condition == "CHECKPOINT_IN_USE"
    assert "the job counts" in error.message
    job.wait_for_batch(0, 60)
    assert job.statistics()["lease_error"] is None
    job.stop()
    assert json.loads((tmp_path / "pond/jobs/counts" / NAME).read_text())["owner"] == ""
    with millpond.start(counts, table="counts", pond=tmp_path / "pond", trigger="available-now") as again:
        assert again.wait_for_end(60)
    # A query that somebody ends without the job, and one that fails, leave it as well.
    job = millpond.start(counts, table="counts", pond=tmp_path / "pond")
    job.query.stop()
    with millpond.start(counts, table="counts", pond=tmp_path / "pond") as again:
        assert again.query.isActive
    job.stop()


def test_a_job_whose_lease_is_taken_is_stopped(counts, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLPOND_LEASE_SECONDS", "2")
    job = millpond.start(counts, table="counts", pond=tmp_path / "pond", partitions=2)
    job.wait_for_batch(0, 60)
    lease = take_lease(job_of(tmp_path / "pond", "counts").storage, "a second job", take_over=True)
    lease.keep()
    assert job.wait_for_end(20)
    assert "CHECKPOINT_IN_USE" in job.statistics()["lease_error"]
    assert refused(counts, tmp_path).condition == "CHECKPOINT_IN_USE"
    with millpond.start(counts, table="counts", pond=tmp_path / "pond", take_over=True) as again:
        assert again.query.isActive
    lease.release()
    job.stop()


def test_only_state_whose_files_have_ids_is_fenced(counts, tmp_path):
    with millpond.start(counts, table="counts", pond=tmp_path / "pond", partitions=2) as job:
        job.wait_for_batch(0, 60)
    error = refused(counts, tmp_path, fenced=True)
    assert error.condition == "INVALID_REQUEST"
    assert "format 2" in error.message
    with millpond.start(counts, table="counts", pond=tmp_path / "pond") as job:
        assert job.query.isActive


def test_what_cant_start_leaves_no_lease(counts, tmp_path):
    def broken(writer):
        raise RuntimeError("no sink")

    with pytest.raises(RuntimeError):
        millpond.start(counts, table="counts", pond=tmp_path / "pond", sink=broken)
    with millpond.start(counts, table="counts", pond=tmp_path / "pond", partitions=2, fenced=True) as job:
        job.wait_for_batch(0, 60)
        assert json.loads(Path(tmp_path / "pond/jobs/counts/checkpoint/commits/0").read_text().splitlines()[1])["stateUniqueIds"]

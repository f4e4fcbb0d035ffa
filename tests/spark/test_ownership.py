"""Of two jobs that Millpond starts over one checkpoint, the second is refused, with the name of the first."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException

import millpond
from inputs.event_file import write_event_file
from millpond.catalogue import job_of
from millpond.errors import MillpondError
from millpond.ownership.lease import NAME, take_lease
from millpond.ownership.runs import read_runs
from millpond.settings import LeaseSettings
from millpond.spark.job import started_jobs
from suite.waiting import wait_until


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
    unhurried = LeaseSettings(length_seconds=600.0)  # a stall doesn't let it run out
    lease = take_lease(job_of(tmp_path / "pond", "counts").storage, "a second job", take_over=True, settings=unhurried)
    lease.keep()
    assert job.wait_for_end(60)
    assert "CHECKPOINT_IN_USE" in job.statistics()["lease_error"]
    assert refused(counts, tmp_path).condition == "CHECKPOINT_IN_USE"
    with millpond.start(counts, table="counts", pond=tmp_path / "pond", take_over=True) as again:
        assert again.query.isActive
    lease.release()
    job.stop()


def test_the_runs_of_a_job_are_recorded(counts, tmp_path):
    """Each with its first commit and why it ended; also of a job whose variable is gone."""
    import gc

    def broken(frame, batch):
        raise ValueError("no luck")

    began = time.time() * 1000
    with millpond.start(counts, table="counts", pond=tmp_path / "pond", partitions=2) as job:
        job.wait_for_batch(0, 60)
    write_event_file(tmp_path / "in", 1, [{"k": "a"}])
    with pytest.raises(StreamingQueryException):
        millpond.start(counts, table="counts", pond=tmp_path / "pond", sink=broken).wait_for_end(60)
    gc.collect()
    millpond.start(counts, table="counts", pond=tmp_path / "pond").wait_for_batch(1, 60)
    gc.collect()
    (job,) = started_jobs()
    job.stop()
    assert started_jobs() == []
    found = read_runs(job_of(tmp_path / "pond", "counts").storage)
    first, second, third = found.runs
    assert (found.count, first.batch, second.batch, third.batch) == (3, None, 0, 0)
    assert (first.error, second.error, third.error) == (None, "ValueError", None)
    assert second.committed_ms is None
    for run, batch in ((first, 0), (third, 1)):
        commit = tmp_path / f"pond/jobs/counts/checkpoint/commits/{batch}"
        assert run.committed_ms == commit.stat().st_mtime_ns // 1_000_000
        assert began < run.committed_ms <= run.ended_ms
        assert run.recovery_seconds == (run.committed_ms - run.began_ms) / 1000 > 0


def test_a_job_that_cant_be_started_to_the_end_is_stopped(counts, tmp_path, monkeypatch):
    """Spark has begun its query, and nobody would have the lease."""
    folder = job_of(tmp_path / "pond", "counts")
    monkeypatch.setattr(type(folder), "write_sink", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        millpond.start(counts, table="counts", pond=tmp_path / "pond", partitions=2)
    assert [query.name for query in counts.sparkSession.streams.active if query.name == "counts"] == []
    take_lease(folder.storage, "the next one").release()


def test_a_standby_waits_for_the_lease(counts, tmp_path, monkeypatch, capfd):
    """It takes it when the job is gone; of a job that isn't fenced it would be wrong."""
    monkeypatch.setenv("MILLPOND_RUN_STANDBY", "1")
    error = refused(counts, tmp_path)
    assert error.condition == "INVALID_REQUEST"
    assert "fenced=True" in error.hint
    lease = take_lease(job_of(tmp_path / "pond", "counts").storage, "another job")
    lease.keep()
    found = []
    options = {"table": "counts", "pond": tmp_path / "pond", "partitions": 2, "fenced": True}
    waiting = threading.Thread(target=lambda: found.append(millpond.start(counts, **options)))
    waiting.start()
    said: list[str] = []

    def all_said():
        said.append(capfd.readouterr().err)
        return "".join(said)

    wait_until(lambda: "standby" in all_said(), "the standby's message", unless=lambda: not waiting.is_alive())
    assert "another job" in all_said()
    assert not found
    lease.release()
    waiting.join(60)
    with found[0] as job:
        job.wait_for_batch(0, 60)


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

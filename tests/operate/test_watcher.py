"""All jobs of several places are measured; what is wrong with one is said, and stops no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

import millpond
from millpond.catalogue import create_job, open_jobs
from millpond.cli import main
from millpond.operate.alerts.evaluate import firing
from millpond.operate.sample_log import samples_of
from millpond.operate.watcher import Watcher, read_newest
from millpond.serve.backups import Backups
from millpond.serve.ponds import open_ponds
from millpond.settings import BackupSettings, SampleSettings
from millpond.tables.pond import Pond
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import stays, wait_until

OFTEN = SampleSettings(sample_seconds=0.05, sizes_seconds=0, share=1e9)


def job_in(pond: Path, name: str, batches: int) -> WrittenCheckpoint:
    create_job(pond, name)
    job = WrittenCheckpoint(pond / "jobs" / name / "checkpoint", name)
    for batch in range(batches):
        commit(job, batch)
    return job


def commit(job: WrittenCheckpoint, value: int) -> None:
    job.plan([("k", value)], snapshot=False)
    job.commit()


def test_jobs_come_go_and_break(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first, second = job_in(one, "a", 3), job_in(other, "a", 1)
    broken = job_in(one, "broken", 1)
    (one / "jobs/broken/job.json").write_text("{")
    places = {"one": str(one), "other": str(other)}
    with Watcher(places, OFTEN) as watcher:
        wait_until(lambda: watcher.samples().keys() == {"one/a", "other/a"}, "samples of both jobs")
        commit(first, 9)
        wait_until(lambda: watcher.samples()["one/a"].batch == 3, "the sample of batch 3")
        assert watcher.samples()["other/a"].batch == 0
        assert watcher.errors() == {}

        (one / "jobs/broken/job.json").write_text(json.dumps({"format": 1, "job": "broken", "checkpoint": "checkpoint"}))
        commit(broken, 4)
        wait_until(lambda: "one/broken" in watcher.samples(), "a sample of the mended job")
        late = job_in(other, "late", 2)
        wait_until(
            lambda: "other/late" in watcher.samples() and watcher.samples()["other/late"].batch == 1, "a sample of the late job"
        )

        (late.path / "commits/1").write_bytes(b"")
        wait_until(
            lambda: watcher.samples()["other/late"].problem is not None or watcher.samples()["other/late"].batch == 1,
            "a sample of the damaged job",
        )
        (other / "jobs/late/job.json").unlink()
        wait_until(lambda: "other/late" not in watcher.samples(), "the end of the job that is gone")
        commit(second, 1)
        wait_until(lambda: watcher.samples()["other/a"].batch == 1, "the sample of batch 1")
        newest = watcher.samples()
    for place, name in ((one, "one"), (other, "other")):
        for folder in open_jobs(place):
            kept = samples_of(folder)
            # One that comes within half an interval of another isn't kept.
            assert kept[-1].at_ms >= newest[f"{name}/{folder.job}"].at_ms - OFTEN.sample_seconds * 500
            assert [sample.at_ms for sample in kept] == sorted({sample.at_ms for sample in kept})
    assert read_newest(places).keys() == {"one/a", "one/broken", "other/a"}


def test_a_checkpoint_that_is_elsewhere_now_is_measured_there(tmp_path: Path) -> None:
    """As after a rescale in a bucket, which gives a job another folder."""
    job = job_in(tmp_path / "pond", "a", 1)
    with Watcher({"": str(tmp_path / "pond")}, OFTEN) as watcher:
        wait_until(lambda: "a" in watcher.samples(), "the job's first sample")
        moved = WrittenCheckpoint(job.path.with_name("checkpoint-2"), "a")
        for batch in range(6):
            commit(moved, batch)
        description, new = tmp_path / "pond/jobs/a/job.json", tmp_path / "new.json"
        new.write_text(json.dumps({"format": 1, "job": "a", "checkpoint": "checkpoint-2"}))
        new.replace(description)  # a watcher that reads half of it has no sample for a moment
        wait_until(lambda: watcher.samples()["a"].batch == 5, "the sample of batch 5", ignoring=(KeyError,))


def test_what_goes_wrong_in_the_server_is_in_the_samples_and_fires(tmp_path: Path) -> None:
    """Its replica of a job, and the job's archive; another job has neither."""
    pond, archive = tmp_path / "pond", tmp_path / "archive"
    job, well = job_in(pond, "a", 1), job_in(pond, "well", 1)
    state = next(path for path in (job.path / "state").rglob("1.delta"))
    state.rename(tmp_path / "away")
    stranger = job_in(tmp_path / "other", "stranger", 1)
    assert CliRunner().invoke(main, ["archive", str(stranger.path), "--to", str(archive / "a"), "--once"]).exit_code == 0

    def open_pond(_: str) -> Pond:
        return millpond.open(pond, replica_dir=tmp_path / "replicas", wait_seconds=0)

    watcher = Watcher({"": str(pond)}, OFTEN)
    backups = Backups({"": str(pond)}, BackupSettings(archive=str(archive)))
    with open_ponds([""], open_pond, backups, watcher):

        def seen(name: str) -> tuple[int | None, int | None]:
            sample = watcher.samples().get(name)
            return (None, None) if sample is None else (sample.readable, sample.backups_failing)

        wait_until(lambda: seen("a") == (0, 1), "samples of the replica and the archive that fail")
        wait_until(lambda: seen("well") == (1, 0), "samples of a job with which nothing is wrong")
        later = [structs.replace(watcher.samples()["a"], at_ms=minute * 60_000) for minute in range(8)]
        assert {"replica-failing", "backups-failing"} <= {alert.rule for alert in firing("a", later)}
        (tmp_path / "away").rename(state)
        commit(job, 2)
        commit(well, 2)
        wait_until(lambda: seen("a") == (1, 1), "samples of the replica that can be read")


def test_a_place_that_isnt_there_yet(tmp_path: Path) -> None:
    with Watcher({"": str(tmp_path / "pond")}, OFTEN) as watcher:
        stays(lambda: watcher.samples() == {}, "no samples")
        job_in(tmp_path / "pond", "a", 1)
        wait_until(lambda: "a" in watcher.samples(), "the job's first sample")


def test_samples_that_cant_be_kept_are_an_error_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    job_in(tmp_path / "pond", "a", 1)
    blocked = tmp_path / "pond/jobs/a/samples"
    for place in (blocked, tmp_path / "home/samples"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("a file where a folder should be")
    with Watcher({"": str(tmp_path / "pond")}, OFTEN) as watcher:
        wait_until(lambda: "a" in watcher.errors(), "the error")
        assert watcher.samples()["a"].batch == 0
        blocked.unlink()
        wait_until(lambda: not watcher.errors(), "the end of the error")
    assert samples_of(open_jobs(tmp_path / "pond")[0])

"""A server that makes savepoints of its jobs at intervals, and archives their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from servers.serving import wait_until_ready
from spark_files.checkpoint import WrittenCheckpoint
from suite.waiting import wait_until


def _metrics(client: httpx.Client) -> dict[str, float]:
    lines = (line for line in client.get("/metrics").text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
def test_every_job_has_savepoints_and_an_archive(serve: Any, tmp_path: Path, workers: str) -> None:
    jobs = {name: WrittenCheckpoint(tmp_path / name / "job", job_id=name) for name in ("one", "two")}
    for job in jobs.values():
        job.plan([("a", 0)], snapshot=False)
        job.commit()
    options = ("--savepoint-every", "1s", "--savepoint-keep-last", "2", "--archive", str(tmp_path / "archive"))
    places = [f"{name}={job.path}" for name, job in jobs.items()]
    with serve(*places, "--workers", workers, *options) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        for number in range(1, 5):
            for job in jobs.values():
                job.plan([("a", number)], snapshot=False)
                job.commit()
            made = 'millpond_savepoints_made_total{job="two/job"}'
            before = _metrics(client).get(made, 0.0)
            wait_until(lambda before=before, made=made: _metrics(client).get(made, 0.0) > before, "one more savepoint")
        wait_until(lambda: _metrics(client).get('millpond_archived_batches_total{job="one/job"}', 0) >= 4, "archived batches")
        found = _metrics(client)
        assert found["millpond_backups_failing"] == found['millpond_savepoint_errors_total{job="one/job"}'] == 0
    for name, job in jobs.items():
        savepoints = millpond.list_savepoints(job.path).found
        assert len(savepoints) == 2
        assert all(s.manifest.name.startswith("scheduled-") for s in savepoints)
        archive = tmp_path / "archive" / name / "job"
        restored = tmp_path / f"restored-{name}"
        ran = CliRunner().invoke(main, ["savepoint", "restore", str(archive), "newest", "--to", str(restored)])
        assert ran.exit_code == 0, ran.output
        with millpond.open(restored) as pond:
            (table,) = pond.tables()
            row = pond[table].get(k="a")
            assert (row["v"], row.batch) == (4, 4)


def test_what_fails_is_seen_and_the_rest_goes_on(serve: Any, tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("a", 1)], snapshot=False)
    job.commit()
    other = WrittenCheckpoint(tmp_path / "other", job_id="other")
    other.plan([("b", 1)], snapshot=False)
    other.commit()
    archive = tmp_path / "archive" / "job"
    ran = CliRunner().invoke(main, ["archive", str(other.path), "--to", str(archive), "--once"])
    assert ran.exit_code == 0, ran.output
    before = sorted(path for path in archive.rglob("*") if path.is_file())
    options = ("--savepoint-every", "1s", "--archive", str(tmp_path / "archive"))
    with serve(str(job.path), *options) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        wait_until_ready(client)
        wait_until(lambda: _metrics(client)["millpond_backups_failing"] == 1, "a backup that fails")
        wait_until(lambda: _metrics(client).get('millpond_savepoints_made_total{job="job"}', 0) == 1, "a savepoint")
        assert _metrics(client)['millpond_archive_errors_total{job="job"}'] >= 1
    assert sorted(path for path in archive.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("options", [("--savepoint-every", "soon"), ("--archive", "a", "--archive-keep-for", "-1d")])
def test_an_interval_that_isnt_one_is_refused_at_the_start(tmp_path: Path, options: tuple[str, ...]) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    ran = CliRunner().invoke(main, ["serve", str(job.path), *options])
    assert "[INVALID_REQUEST]" in ran.output
    assert ran.exit_code == 2

"""Ponds in a bucket: the catalogue, heartbeats, and the doors, which take URIs as well as folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import millpond
from millpond.catalogue import create_beside, create_job, open_jobs
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.cli import main
from millpond.schema.definition.default_table import undefined_table
from millpond.schema.definition.table import TableDefinition
from millpond.storage import open_storage
from servers.proxy import proxy
from servers.s3 import QUICK, moto_server, use
from spark_files.checkpoint import UploadedCheckpoint
from suite.waiting import wait_until


@pytest.fixture
def pond_uri(place: str) -> str:
    """A pond with one job, which has three batches, a definition, and a heartbeat."""
    pond = place.removesuffix("/ck") + "/pond"
    folder = create_job(pond, "views")
    job = UploadedCheckpoint(open_storage(folder.checkpoint))
    for n in range(3):
        job.batch([("a", n), ("bb", 10 * n)])
    folder.write_definition(definition(job, "page_views"))
    folder.write_heartbeat("running")
    return pond


def definition(job: UploadedCheckpoint, name: str) -> TableDefinition:
    (store,), _ = read_stores(job.storage, Batch(0))
    return undefined_table(name, store, "made by a test")


def test_a_pond_opens_by_its_uri(pond_uri: str, tmp_path: Path) -> None:
    with millpond.open(pond_uri, replica_dir=tmp_path, settings=QUICK) as pond:
        assert pond.uri == pond_uri
        assert (pond.jobs(), pond.tables()) == (["views"], ["page_views"])
        row = pond["page_views"].get(k="a")
        assert (row["v"], row.batch, row.job_state) == (2, 2, "running")
        assert pond.statistics()["views"]["requests"]["get"] > 0
    assert [p.name.split("-")[0] for p in (tmp_path / "replicas").iterdir()] == ["views"]


def test_s3a_finds_the_replica_that_s3_has_built(pond_uri: str, tmp_path: Path) -> None:
    millpond.open(pond_uri, replica_dir=tmp_path, settings=QUICK).close()
    with millpond.open(pond_uri.replace("s3://", "s3a://"), replica_dir=tmp_path, settings=QUICK) as pond:
        assert pond.statistics()["views"]["bootstraps"] == 0


def test_a_checkpoint_that_nobody_prepared_opens_and_gets_a_folder_beside_it(job: UploadedCheckpoint, place: str) -> None:
    with millpond.open(place, replica_dir="memory://", settings=QUICK) as pond:
        assert pond.tables() == ["ck.aggregate_0"]
    folder = create_beside(place.replace("s3://", "s3a://"))
    folder.write_definition(definition(job, "mine"))
    assert folder.storage.uri == f"{place}.millpond"
    assert open_jobs(place)[0].definitions().keys() == {"mine"}
    with millpond.open(place, replica_dir="memory://", settings=QUICK) as pond:
        assert pond.tables() == ["mine"]


def test_a_pond_on_disk_may_name_a_checkpoint_in_a_bucket(job: UploadedCheckpoint, place: str, tmp_path: Path) -> None:
    create_job(tmp_path / "pond", "far", place)
    with millpond.open(tmp_path / "pond", replica_dir="memory://", settings=QUICK) as pond:
        assert pond.tables() == ["far.aggregate_0"]
        assert pond["far.aggregate_0"].get(k="a")["v"] == 0


def test_a_whole_bucket_has_its_folder_in_the_cache(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path))
    boto3.client("s3", endpoint_url=moto_server()).create_bucket(Bucket="whole")
    UploadedCheckpoint(open_storage("s3://whole")).batch([("a", 5)])
    with millpond.open("s3a://whole", settings=QUICK) as pond:
        assert pond["whole.aggregate_0"].get(k="a")["v"] == 5
    assert create_beside("s3://whole").storage.local_path() is not None


def test_a_job_that_joins_a_pond_is_found_without_a_reader_asking(
    pond_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    often = dataclasses.replace(QUICK, remote_heartbeat_seconds=0.05, remote_catalogue_seconds=0.1)
    with millpond.open(pond_uri, replica_dir=tmp_path, settings=often) as pond:
        folder = create_job(pond_uri, "more")
        UploadedCheckpoint(open_storage(folder.checkpoint)).batch([("a", 7)])
        wait_until(lambda: "more.aggregate_0" in pond.tables(), "the job that joins")
        assert pond["more.aggregate_0"].get(k="a")["v"] == 7
        open_jobs(pond_uri)[1].write_heartbeat("stopped")
        wait_until(lambda: pond["page_views"].get(k="a").job_state == "stopped", "the news that the other job has stopped")


def test_every_command_takes_a_uri(pond_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path))

    def run(*words: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(main, [words[0], pond_uri, *words[1:], "--json"])
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    (table,) = run("tables")
    assert (table["table"], table["row_count"]) == ("page_views", 2)
    assert run("get", "page_views", "k=bb")[0]["v"] == 20
    assert [row["k"] for row in run("scan", "page_views")] == ["a", "bb"]
    (report,) = run("inspect")
    assert report["unread"] == []
    sizes = open_storage(f"{pond_uri}/jobs/views/checkpoint/state/0/0").sizes()
    assert report["stores"][0]["partitions"][0]["rows"] == 1
    assert (report["stores"][0]["partitions"][0]["files"], report["stores"][0]["partitions"][0]["file_bytes"]) == (
        len(sizes),
        sum(sizes.values()),
    )
    assert report["requests"]["list"] > 0
    shown = CliRunner().invoke(main, ["inspect", pond_uri])
    assert "requests    " in shown.stdout


def test_inspecting_costs_two_listings_a_partition_and_its_files(
    job: UploadedCheckpoint, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(moto_server()) as (url, faults):
        use(monkeypatch, url)
        done = CliRunner().invoke(main, ["inspect", place, "--json"])
        report = json.loads(done.stdout)
        assert sum(n for kind, n in report["requests"].items() if kind != "retried") < faults.count() < 50


@pytest.mark.long
def test_errors_of_storage_have_their_exit_code(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, code, condition in (
        (place, 3, "NO_CHECKPOINT"),
        ("s3://no-such-bucket/x", 3, "NO_CHECKPOINT"),
    ):
        done = CliRunner().invoke(main, ["tables", uri])
        assert (done.exit_code, done.stderr.split("]")[0]) == (code, f"[{condition}")
    use(monkeypatch, "http://127.0.0.1:9")
    done = CliRunner().invoke(main, ["tables", place])
    assert (done.exit_code, done.stderr.split("]")[0]) == (4, "[STORAGE_UNAVAILABLE")

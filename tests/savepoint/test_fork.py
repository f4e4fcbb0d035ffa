"""Forks: a second job beside the first, with the state of a savepoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import millpond
from millpond.catalogue import create_job, job_of, open_jobs
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.position import Batch
from millpond.cli import main
from millpond.ownership.lease import take_lease
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.fork import plan_fork
from millpond.savepoint.origin import read_origin
from millpond.savepoint.restore import plan_restore
from millpond.storage import open_storage
from oracles.ends import condition_of, ends_of
from spark_files.checkpoint import WrittenCheckpoint


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    """A pond with a job of four batches, and a savepoint of the third."""
    job = WrittenCheckpoint(Path(create_job(tmp_path / "pond", "counts").checkpoint.removeprefix("file://")))
    for batch in range(4):
        job.plan([(("a",), batch), (("b" * (batch + 1),), batch)], snapshot=False)
        job.commit()
    plan_savepoint(tmp_path / "pond", "third", batch=2).run()
    return tmp_path / "pond"


def test_both_jobs_are_read_side_by_side(pond: Path) -> None:
    plan = plan_fork(pond, "third", "counts_b")
    assert "the input of batch 3 of counts once more" in plan.describe()
    assert [folder.job for folder in open_jobs(pond)] == ["counts"]
    folder = plan.run()
    assert [folder.job for folder in open_jobs(pond)] == ["counts", "counts_b"]
    assert read_origin(folder.storage) == "third"
    assert sorted(folder.storage.names()) == ["checkpoint", "job.json", "lease.json", "origin.json"]
    with millpond.open(pond, replica_dir="memory://", wait_seconds=30) as opened:
        first, second = (opened[f"{job}.aggregate_0"].scan() for job in ("counts", "counts_b"))
        assert (first.cut.position.batch, second.cut.position.batch) == (3, 2)
        assert {row["k"]: row["v"] for row in first} == {"a": 3, "b": 0, "bb": 1, "bbb": 2, "bbbb": 3}
        assert {row["k"]: row["v"] for row in second} == {"a": 2, "b": 0, "bb": 1, "bbb": 2}
    metadata = [(pond / "jobs" / job / "checkpoint/metadata").read_text() for job in ("counts", "counts_b")]
    assert metadata[0] != metadata[1]
    again = plan_savepoint(pond, "of_fork", job="counts_b").run()
    assert again.manifest.origin == "third"


def test_a_name_that_is_taken_or_no_pond_is_refused(pond: Path, tmp_path: Path) -> None:
    assert condition_of(lambda: plan_fork(pond, "third", "counts")) == "TABLE_EXISTS"
    assert condition_of(lambda: plan_fork(pond, "third", "a/b")) == "INVALID_NAME"
    assert condition_of(lambda: plan_fork(pond, "first", "x")) == "UNKNOWN_SAVEPOINT"
    bare = WrittenCheckpoint(tmp_path / "ck")
    bare.plan([("a", 1)], snapshot=False)
    bare.commit()
    plan_savepoint(tmp_path / "ck", "one").run()
    assert condition_of(lambda: plan_fork(tmp_path / "ck", "one", "x")) == "INVALID_REQUEST"
    assert [folder.job for folder in open_jobs(pond)] == ["counts"]


def test_a_job_that_somebody_starts_now_is_refused(pond: Path) -> None:
    plan = plan_fork(pond, "third", "x")
    lease = take_lease(open_storage(pond / "jobs/x"), "the job x")
    assert condition_of(lambda: plan_fork(pond, "third", "x")) == condition_of(plan.run) == "CHECKPOINT_IN_USE"
    assert condition_of(lambda: plan_restore(pond, "third", pond / "jobs/x/checkpoint")) == "CHECKPOINT_IN_USE"
    lease.release()
    plan.run()


def test_a_damaged_savepoint_leaves_no_job(pond: Path) -> None:
    plan = plan_fork(pond, "third", "x")
    path = pond / "savepoints/third/checkpoint/state/0/1/2.delta"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert condition_of(plan.run) == "SAVEPOINT_DAMAGED"
    assert not (pond / "jobs/x").exists()


def test_of_several_forks_with_one_name_one_is_made(pond: Path) -> None:
    plans = [plan_fork(pond, "third", "x") for _ in range(6)]
    ends = ends_of([plan.run for plan in plans])
    assert sum(end == "TABLE_EXISTS" for end in ends) == 5
    with millpond.open(pond, replica_dir="memory://", wait_seconds=30) as opened:
        assert len(opened["x.aggregate_0"].scan()) == 4


FORMS: list[dict[str, Any]] = [
    {"partitions": 5},
    {"provider": "rocksdb", "checkpoint_format": 2, "partitions": 3},
    {"codec": "zstd", "row_checksum": True},
]


@pytest.mark.parametrize("form", FORMS)
def test_the_state_of_a_fork_is_written_anew(pond: Path, form: dict[str, Any]) -> None:
    """Here through the command, whose options are those of a restore; the first job stays as it is."""
    names = {"checkpoint_format": "format"}
    options = [
        word
        for name, value in form.items()
        for word in (["--row-checksum"] if name == "row_checksum" else [f"--{names.get(name, name)}", str(value)])
    ]
    done = CliRunner().invoke(main.named("fork"), [str(pond), "counts", "--from", "third", "--as", "counts_b", *options])
    assert done.exit_code == 0, done.output
    assert f"state       {plan_restore(pond, 'third', pond / 'x', **form).form.describe()}" in done.output
    storage = job_of(pond, "counts_b").open_checkpoint()
    batch, before = (read_batch(place, Batch(2)) for place in (storage, job_of(pond, "counts").open_checkpoint()))
    changed = {name: value for name, value in form.items() if name != "checkpoint_format"}
    assert batch.settings == replace(before.settings, **changed)
    assert bool(batch.state_ids) == ("checkpoint_format" in form)
    with millpond.open(pond, replica_dir="memory://", wait_seconds=30) as opened:
        rows = list(opened["counts_b.aggregate_0"].scan())
        assert {row["k"]: row["v"] for row in rows} == {"a": 2, "b": 0, "bb": 1, "bbb": 2}
        assert {row["k"]: row["v"] for row in opened["counts.aggregate_0"].scan()}["a"] == 3


@pytest.mark.parametrize("form", [{"partitions": 0}, {"provider": "lmdb"}, {"checkpoint_format": 2}, {"codec": "gzip"}])
def test_a_form_that_the_state_cannot_have_is_refused(pond: Path, form: dict[str, Any]) -> None:
    assert condition_of(lambda: plan_fork(pond, "third", "x", **form)) == "UNSUPPORTED"
    assert not (pond / "jobs/x").exists()

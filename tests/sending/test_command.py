"""`millpond send`, and what it refuses."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import millpond
from millpond.cli import main
from millpond.errors import MillpondError
from sending.test_contract import TABLE, Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path, 11)
    made.pond.close()
    return made


def command(job: Job, tmp_path: Path, *words: str) -> Result:
    words = ("send", str(job.checkpoint.path), TABLE, "--once", *words)
    return CliRunner(env={"MILLPOND_HOME": str(tmp_path / "home")}).invoke(main, words)


def test_the_command_sends_what_is_committed_and_writes_metrics(job: Job, tmp_path: Path) -> None:
    file, metrics = tmp_path / "sent.db", tmp_path / "send.prom"
    for _ in range(2):
        words = ("--to", f"sqlite://{file}", "--history", "forever", "--metrics", str(metrics))
        done = command(job, tmp_path, *words)
        assert done.exit_code == 0, done.stderr
        with sqlite3.connect(file) as database:
            assert dict(database.execute(f'SELECT k, v FROM "{TABLE}"')) == job.checkpoint.content()
        assert f"batch {job.newest}, up to date" in done.stderr
        assert "millpond_send_batch{" in metrics.read_text()
        job.batch()


def test_a_password_in_the_address_is_refused_and_not_shown(job: Job, tmp_path: Path) -> None:
    done = command(job, tmp_path, "--to", "postgresql://me:hunter2@host/db", "--history", "forever")
    assert done.exit_code == 2
    assert "--target-options" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_job_without_history_says_how_to_keep_it(job: Job, tmp_path: Path) -> None:
    with millpond.open(job.checkpoint.path, replica_dir=tmp_path / "other") as pond:
        sender = millpond.send(pond, TABLE, to=f"sqlite://{tmp_path}/sent.db")
        with sender, pytest.raises(MillpondError) as raised:
            sender.wait_for_batch(job.newest, 60)
    assert raised.value.condition == "HISTORY_GONE"
    assert "history" in raised.value.hint


@pytest.mark.parametrize(
    "to",
    [
        "ftp://host/x",
        "file://host/x",
        "sqlite:///x?a=1",
        "file:///x?format=csv",
        "kafka://h:1/",
        "kafka://h:1/t?form=x",
        "https://x/",
        "s3://bucket/changes?format=parquet",
        "gs://bucket/changes",
    ],
)
def test_an_address_that_no_target_has_is_refused_at_once(job: Job, tmp_path: Path, to: str) -> None:
    with job.open() as pond, pytest.raises(MillpondError) as raised:
        millpond.send(pond, TABLE, to=to)
    assert raised.value.condition == "INVALID_REQUEST"
    assert ("bucket" in raised.value.hint + raised.value.message) == to.startswith(("s3", "gs"))


def test_rows_that_no_sender_wrote_are_left_alone(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "sent.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE own (k text, v integer)")
        database.execute("INSERT INTO own VALUES ('mine', 1)")
    to = ("--to", f"sqlite://{file}?table=own", "--history", "forever")
    done = command(job, tmp_path, *to)
    assert done.exit_code == 2
    assert "TARGET_MISMATCH" in done.stderr
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT k FROM own").fetchall() == [("mine",)]

"""Commands that go on while batches come: `watch` and `changes`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.settings import Retention
from written_checkpoint import WrittenCheckpoint

TABLE = "job.aggregate_0"


@pytest.fixture
def job(tmp_path: Path) -> WrittenCheckpoint:
    job = WrittenCheckpoint(tmp_path / "job")
    _commit(job, a=1, b=1)
    return job


def _commit(job: WrittenCheckpoint, **values: int | None) -> int:
    job.plan(list(values.items()), snapshot=False)
    job.commit()
    return job.next_batch - 1


def _start(home: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "MILLPOND_HOME": str(home)}
    command = [sys.executable, "-m", "millpond.cli", *words, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_watch_shows_a_row_whenever_it_changes(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with _start(tmp_path / "home", "watch", str(job.path), TABLE, "k=a", "--times", "3") as running:
        assert (_line(running)["v"]) == 1
        _commit(job, b=2)  # not this row
        batch = _commit(job, a=2)
        shown = _line(running)
        assert (shown["v"], shown["_batch"]) == (2, batch)
        _commit(job, a=3)
        assert _line(running)["v"] == 3
        assert running.wait(30) == 0


def test_changes_are_shown_in_order_and_go_on_with_the_token(job: WrittenCheckpoint, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with millpond.open(job.path, replica_dir=home, retention={TABLE: Retention(history_batches=None)}) as pond:
        first = pond[TABLE].get(k="a").batch
        batches = [_commit(job, a=2), _commit(job, a=3, c=1)]
        pond.catch_up(30)
        with _start(home, "changes", str(job.path), TABLE, "--since", str(first), "--limit", "2") as running:
            told, errors = running.communicate(timeout=60)
            assert running.returncode == 0, errors
        shown = [json.loads(line) for line in told.splitlines()]
        assert [(c["batch"], c["kind"], c["new"]) for c in shown] == [
            (batches[0], "update", {"k": "a", "v": 2}),
            (batches[1], "update", {"k": "a", "v": 3}),
        ]
        token = errors.split("--since ")[1].split()[0]
        with _start(home, "changes", str(job.path), TABLE, "--since", token, "--follow", "--limit", "2") as running:
            assert _line(running)["new"] == {"k": "c", "v": 1}
            _commit(job, d=5)
            assert _line(running)["new"] == {"k": "d", "v": 5}
            assert running.wait(30) == 0


def test_changes_that_nobody_keeps_are_an_error(job: WrittenCheckpoint, tmp_path: Path) -> None:
    with _start(tmp_path / "home", "changes", str(job.path), TABLE, "--since", "0") as running:
        _, errors = running.communicate(timeout=60)
    assert json.loads(errors.splitlines()[-1])["error"]["condition"] == "HISTORY_GONE"
    assert running.returncode != 0

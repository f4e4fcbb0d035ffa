"""Commands that go on while batches come: `watch` and `changes`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.serve.access.tokens import add_token
from millpond.settings import Retention
from spark_files.checkpoint import WrittenCheckpoint

TABLE = "job.aggregate_0"


@pytest.fixture(params=["path", "URL"])
def place(request: pytest.FixtureRequest, job: WrittenCheckpoint, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Where a command reads, with its options: the checkpoint, or a server that follows it and wants a token."""
    if request.param == "path":
        yield (str(job.path),)
        return
    token = add_token(tmp_path / "readers.json", "me", tables=["*"])
    options = ("--port", "0", "--tokens", str(tmp_path / "readers.json"), "--history", f"{TABLE}=forever")
    with _start(tmp_path / "server", "serve", str(job.path), *options) as server:
        yield _line(server)["url"], "--server-token", token
        server.terminate()
        assert server.wait(30) == 0


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


def test_watch_shows_a_row_whenever_it_changes(job: WrittenCheckpoint, place: tuple[str, ...], tmp_path: Path) -> None:
    where, *options = place
    with _start(tmp_path / "home", "watch", where, TABLE, "k=a", "--times", "3", *options) as running:
        assert (_line(running)["v"]) == 1
        _commit(job, b=2)  # not this row
        batch = _commit(job, a=2)
        shown = _line(running)
        assert (shown["v"], shown["_batch"]) == (2, batch)
        _commit(job, a=3)
        assert _line(running)["v"] == 3
        assert running.wait(30) == 0


@pytest.mark.long
def test_watch_shows_a_table_whenever_a_row_of_it_changes(job: WrittenCheckpoint, place: tuple[str, ...], tmp_path: Path) -> None:
    where, *options = place
    with _start(tmp_path / "home", "watch", where, TABLE, "--times", "3", "--limit", "2", *options) as running:
        assert [(row["k"], row["v"]) for row in (_line(running), _line(running))] == [("a", 1), ("b", 1)]
        _commit(job, c=2)  # beyond the limit
        _commit(job, b=2)
        assert [(row["k"], row["v"]) for row in (_line(running), _line(running))] == [("a", 1), ("b", 2)]
        _commit(job, a=None)
        assert [(row["k"], row["v"]) for row in (_line(running), _line(running))] == [("b", 2), ("c", 2)]
        assert running.wait(30) == 0


def test_changes_are_shown_in_order_and_go_on_with_the_token(job: WrittenCheckpoint, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with millpond.open(job.path, replica_dir=home, retention={TABLE: Retention(history_batches=None)}) as pond:
        first = pond[TABLE].get(k="a").batch
        batches = [_commit(job, a=2), _commit(job, a=3, c=1)]
        pond.catch_up(30)
        with _start(home, "changes", str(job.path), TABLE, "--since", str(first), "--limit", "2") as running:
            output, errors = running.communicate(timeout=60)
            assert running.returncode == 0, errors
        shown = [json.loads(line) for line in output.splitlines()]
        assert [(c["batch"], c["kind"], c["new"]) for c in shown] == [
            (batches[0], "update", {"k": "a", "v": 2}),
            (batches[1], "update", {"k": "a", "v": 3}),
        ]
        token = json.loads(errors.splitlines()[-1])["token"]
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


@pytest.mark.long
def test_changes_of_a_server_are_followed(job: WrittenCheckpoint, tmp_path: Path) -> None:
    options = ("--port", "0", "--history", f"{TABLE}=forever")
    with _start(tmp_path / "server", "serve", str(job.path), *options) as server:
        url = _line(server)["url"]
        with _start(tmp_path / "home", "changes", url, TABLE, "--since", "0", "--follow", "--limit", "2") as running:
            batch = _commit(job, a=2)
            change = _line(running)
            assert (change["batch"], change["kind"], change["new"]) == (batch, "update", {"k": "a", "v": 2})
            _commit(job, c=5)
            assert _line(running)["new"] == {"k": "c", "v": 5}
            assert running.wait(30) == 0
        server.terminate()
    assert not (tmp_path / "home").exists(), "a server's reader keeps no replica"


@pytest.mark.long
def test_commands_ask_a_server_with_a_token_or_are_told_that_it_wants_one(job: WrittenCheckpoint, tmp_path: Path) -> None:
    token = add_token(tmp_path / "readers.json", "me", tables=["job.*"])
    with _start(tmp_path / "server", "serve", str(job.path), "--port", "0", "--tokens", str(tmp_path / "readers.json")) as server:
        url = _line(server)["url"]

        def ask(*words: str, **environment: str) -> tuple[int, list[Any], Any]:
            command = [sys.executable, "-m", "millpond.cli", *words, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)
            error = json.loads(done.stderr.splitlines()[-1])["error"]["condition"] if done.returncode > 1 else None
            return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], error

        with_token = {"MILLPOND_TOKEN": token}
        code, rows, _ = ask("tables", url, **with_token)
        assert (code, [(r["table"], r["row_count"]) for r in rows]) == (0, [(TABLE, 2)])
        assert ask("get", url, TABLE, "k=a", **with_token)[1][0]["v"] == 1
        assert [r["k"] for r in ask("scan", url, TABLE, **with_token)[1]] == ["a", "b"]
        assert ask("get", url, TABLE, "k=z", **with_token)[0] == 1
        assert ask("get", url, TABLE, "k=a")[2] == "TOKEN_NEEDED"
        assert ask("watch", url, "nothing", "k=a", **with_token)[2] == "NOT_ALLOWED"
        assert ask("changes", url, TABLE, "--since", "0", **with_token)[2] == "HISTORY_GONE"
        assert ask("get", url, TABLE, "k=a", "--replica-dir", str(tmp_path), **with_token)[2] == "INVALID_REQUEST"
        assert ask("get", url, TABLE, "k=a", "--cold", **with_token)[2] == "INVALID_REQUEST"
        server.terminate()


@pytest.mark.long
def test_watch_shows_a_row_again_when_it_becomes_final(golden: Callable[[str], Any], tmp_path: Path) -> None:
    cell = golden("windows-rocksdb-changelog")
    cell.uncommit()
    for batch in range(4):
        cell.commit(batch)
    key = ("window_start=2026-01-01T00:00:00Z", "window_end=2026-01-01T00:01:00Z", "host=h0")
    table = "windows-rocksdb-changelog.aggregate_0"
    with _start(tmp_path / "home", "watch", str(cell.checkpoint), table, *key, "--times", "2") as running:
        before = _line(running)
        cell.commit(4)  # the watermark passes the window's end
        after = _line(running)
        assert (before["count"], before["_batch"], before["_final"]) == (4, 3, False)
        assert (after["count"], after["_batch"], after["_final"], after["_changed"]) == (4, 4, True, 4)
        assert running.wait(30) == 0

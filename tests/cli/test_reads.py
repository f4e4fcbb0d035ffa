"""get and scan with bounds, ranges and pages, one command after the other."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millpond.cli import main
from millpond.errors import CONDITIONS
from written_checkpoint import WrittenCheckpoint

TABLE = "ck.aggregate_0"
Run = Callable[..., Result]


@pytest.fixture
def checkpoint(tmp_path: Path) -> WrittenCheckpoint:
    """Five keys, read from a topic up to offset 7 of partition 0, in batch 0."""
    written = WrittenCheckpoint(tmp_path / "ck", sources=lambda batch: [{"views": {"0": 7 + batch}}])
    written.plan([(k, n) for n, k in enumerate(("a", "aa", "b", "c", "d"))], snapshot=False)
    written.commit()
    return written


@pytest.fixture
def run(checkpoint: WrittenCheckpoint, tmp_path: Path) -> Run:
    def call(command: str, *words: str) -> Result:
        return CliRunner(env={"MILLPOND_HOME": str(tmp_path / "home")}).invoke(main, [command, str(checkpoint.path), TABLE, *words])

    return call


def keys(done: Result) -> str:
    assert done.exit_code == 0, done.stderr
    return " ".join(line.split("\t")[0] for line in done.stdout.splitlines()[1:])


def test_ranges_in_both_directions(run: Run) -> None:
    assert keys(run("scan", "--reverse")) == "d c b aa a"
    assert keys(run("scan", "--start", "k=aa", "--end", "k=c")) == "aa b"
    assert keys(run("scan", "--start", "k=aa", "--reverse", "--limit", "2")) == "d c"


def test_a_page_tells_the_token_of_the_next(run: Run) -> None:
    first = run("scan", "--limit", "2")
    assert keys(first) == "a aa"
    found = re.search(r"--token ([A-Za-z0-9_-]+)$", first.stderr)
    assert found
    second = run("scan", "--limit", "3", "--token", found[1])
    assert keys(second) == "b c d"
    assert "--token" not in second.stderr
    refused = run("scan", "--reverse", "--token", found[1])
    assert "[INVALID_TOKEN]" in refused.stderr
    assert refused.exit_code == CONDITIONS["INVALID_TOKEN"].exit_code


@pytest.mark.parametrize(
    ("bound", "condition"),
    [
        (["--min-batch", "0"], None),
        (["--min-batch", "1"], "NOT_UP_TO_BOUND"),
        (["--contains-offset", "views:0:6"], None),
        (["--contains-offset", "views:0:7"], "NOT_UP_TO_BOUND"),
        (["--contains-offset", "views:0:6", "--contains-offset", "views:0:7"], "NOT_UP_TO_BOUND"),
        (["--contains-offset", "views:0"], "INVALID_BOUND"),
        (["--min-offsets", json.dumps({"views": {"0": 7}})], None),
        (["--min-offsets", json.dumps({"views": {"0": 8}})], "NOT_UP_TO_BOUND"),
        (["--min-offsets", "null"], "INVALID_BOUND"),
        (["--min-offsets", "{"], "INVALID_BOUND"),
        (["--contains-file", "/in/a.json"], "INVALID_BOUND"),
        (["--max-behind", "0"], None),
        (["--max-age", "3600"], None),
        (["--max-age", "0"], "NOT_UP_TO_BOUND"),
        (["--max-age", "-1"], "INVALID_BOUND"),
    ],
)
@pytest.mark.parametrize("command", ["get", "scan"])
def test_bounds(command: str, bound: list[str], condition: str | None, run: Run) -> None:
    done = run(command, "k=a", *bound)
    if condition is None:
        assert keys(done) == "a"
    else:
        assert f"[{condition}]" in done.stderr
        assert (done.exit_code, done.stdout) == (CONDITIONS[condition].exit_code, "")


def test_a_command_waits_for_its_bound(checkpoint: WrittenCheckpoint, run: Run) -> None:
    def commit() -> None:
        time.sleep(0.5)
        checkpoint.plan([("a", 5)], snapshot=False)
        checkpoint.commit()

    thread = threading.Thread(target=commit)
    thread.start()
    done = run("get", "k=a", "--contains-offset", "views:0:7", "--wait", "30")
    thread.join()
    assert done.stdout.splitlines()[1] == "a\t5"


def test_a_cold_read_takes_no_bound(run: Run) -> None:
    done = run("get", "k=a", "--cold", "--min-batch", "0")
    assert "[INVALID_REQUEST]" in done.stderr

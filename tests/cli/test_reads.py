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
from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint

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


@pytest.fixture
def expired(tmp_path: Path) -> Run:
    """A command on the rows of minutes 0, 1 and 2.  The first row expired in batch 1.  One column has the name of a mark."""
    key = (Field("t", atomic("timestamp")), Field("_final", atomic("string")))
    written = WrittenCheckpoint(tmp_path / "ck", key=key, watermarked=True)
    written.plan([((minute * 60_000_000, "x"), minute) for minute in range(3)], snapshot=False)
    written.commit()
    home = {"MILLPOND_HOME": str(tmp_path / "home")}
    written.watermark_ms = 30_000
    written.plan([((0, "x"), None)], snapshot=False)

    def call(command: str, *words: str) -> Result:
        return CliRunner(env=home).invoke(main, [command, str(written.path), TABLE, *words])

    assert call("scan").exit_code == 0
    written.commit()
    return call


def test_rows_that_expired_are_marked_in_text_and_json(expired: Run) -> None:
    marked = [line.split("\t") for line in expired("scan", "--closed").stdout.splitlines()]
    assert marked[0] == ["t", "_final", "v", "__final"]
    assert [row[2:] for row in marked[1:]] == [["0", "true"], ["1", "false"], ["2", "false"]]
    # The options decide whether there is a column for the mark, whatever the rows are.
    assert expired("scan", "--live").stdout.splitlines()[0] == "t\t_final\tv"
    assert expired("scan", "--closed", "--reverse", "--limit", "1").stdout.splitlines()[0] == "t\t_final\tv\t__final"
    rows = [json.loads(line) for line in expired("scan", "--closed", "--json").stdout.splitlines()]
    assert [(row["_final"], row["__final"], row["_changed"], row["_batch"]) for row in rows] == [
        ("x", True, 1, 1),
        ("x", False, None, 1),
        ("x", False, None, 1),
    ]


def test_a_miss_says_whether_there_was_a_row(expired: Run) -> None:
    key = ("t=1970-01-01T00:00:00Z", "_final=x")
    text, as_json = expired("get", *key, "--live"), expired("get", *key, "--live", "--json")
    assert (text.exit_code, text.stdout, as_json.exit_code, as_json.stdout) == (1, "", 1, "")
    assert "There was one, which expired" in text.stderr
    assert json.loads(as_json.stderr)["evicted"] == [0]
    assert json.loads(as_json.stderr)["position"]["watermark_ms"] == 30_000
    never = ("t=1970-01-01T09:00:00Z", "_final=x")
    assert "expired" not in expired("get", *never, "--live").stderr
    assert json.loads(expired("get", *never, "--live", "--json").stderr)["evicted"] == []


def test_a_count_is_a_number_alone(run: Run) -> None:
    done = run("count")
    assert (done.exit_code, done.stdout) == (0, "5\n")
    assert done.stderr.startswith("batch 0 of ck")
    assert run("count", "k=aa").stdout == "1\n"
    as_json = run("count", "k=nobody", "--json")
    assert json.loads(as_json.stdout) == {"count": 0}
    assert json.loads(as_json.stderr.splitlines()[-1])["batch"] == 0


def test_the_exit_code_tells_whether_an_event_is_in(run: Run) -> None:
    there = run("event", "--offset", "views:0:6")
    assert (there.exit_code, there.stdout.splitlines()[1].split("\t")[:2]) == (0, ["0", "true"])
    yet_to_come = run("event", "--offset", "views:0:7")
    assert (yet_to_come.exit_code, yet_to_come.stdout.splitlines()[1].split("\t")[:2]) == (1, ["\\N", "false"])
    assert "[INVALID_REQUEST]" in run("event").stderr


def test_versions_end_with_since_when_and_until_when(run: Run, checkpoint: WrittenCheckpoint) -> None:
    done = run("history", "k=a")
    names, row = (line.split("\t") for line in done.stdout.splitlines())
    assert names == ["k", "v", "_kind", "_batch", "_until_batch", "_committed", "_until"]
    assert row[:2] == ["a", "0"]
    assert (row[4], row[6]) == ("\\N", "\\N")
    cut = run("history", "--limit", "2")
    assert len(cut.stdout.splitlines()) == 3
    assert "only 2 are shown" in cut.stderr
    assert "[HISTORY_GONE]" in run("history", "--since", "1969-01-01T00:00:00Z").stderr


def test_a_key_without_times_has_no_windows(run: Run) -> None:
    assert "[NO_WINDOW]" in run("windows", "--since", "2026-03-01T12:00:00Z").stderr

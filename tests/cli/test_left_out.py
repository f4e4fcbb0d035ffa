"""TABLE left out: the only table is meant, and where there are several they are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from millpond.cli import main
from servers.serving import serving, wait_until_ready
from spark_files.golden import GOLDEN

ONE, TWO = "counts-hdfs", "chained-rocksdb-changelog"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    shutil.copytree(GOLDEN / ONE / "checkpoint", tmp_path / "country=DE")
    shutil.copytree(GOLDEN / TWO / "checkpoint", tmp_path / "two")
    return tmp_path / "country=DE"


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def same(*words: str, place: Path, table: str) -> None:
    command, *rest = words
    named, left_out = run(command, place, table, *rest), run(command, place, *rest)
    assert named.exit_code == left_out.exit_code == 0, left_out.output
    assert named.stdout == left_out.stdout != ""


def test_the_only_table_may_be_left_out(place: Path) -> None:
    table = "country=DE.aggregate_0"  # a folder of a partition may be a job's name
    for words in (["scan", "--limit", "3"], ["count"], ["count", "page=/"], ["get", "page=/"], ["get", "--cold", "page=/"]):
        same(*words, place=place, table=table)
    for words in (
        ["get", "--key", '{"page": "/"}'],
        ["scan", "page=/"],
        ["watch", "page=/", "--times", "1"],
        ["watch", "--times", "1"],
    ):
        same(*words, place=place, table=table)
    assert run("describe", place).stdout.startswith(f"table       {table}\n")
    assert json.loads(run("describe", place, "--json").stdout)["table"] == table
    assert run("changes", place, "--since", "1").exit_code == run("changes", place, table, "--since", "1").exit_code
    assert "has no window" in run("windows", place, "page=/").stderr


def test_a_server_has_one_table(place: Path, tmp_path: Path) -> None:
    with serving(place, home=tmp_path / "home") as (url, _):
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until_ready(client)
        assert run("count", url).stdout, run("count", url).output
        assert run("count", url).stdout == run("count", url, "country=DE.aggregate_0").stdout == "43\n"
        assert run("count", url, "page=/").stdout == "1\n"


def test_several_tables_are_named(place: Path) -> None:
    two = place.with_name("two")
    for words in (
        ["scan"],
        ["get", "page=/"],
        ["get", "--cold", "page=/"],
        ["count", "page=/"],
        ["describe"],
        ["watch"],
        ["changes"],
    ):
        refused = run(words[0], two, *words[1:])
        assert refused.exit_code == 2, words
        assert "2 tables" in refused.stderr
        assert "two.aggregate_0, two.dedupe_1" in refused.stderr
    assert "UNKNOWN_TABLE" in run("scan", two, "nothing").stderr
    assert "UNKNOWN_TABLE" in run("scan", place, "nothing").stderr


def test_a_job_without_a_batch_has_no_table_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    new = tmp_path / "new"
    for folder in ("offsets", "commits"):
        (new / folder).mkdir(parents=True)
    (new / "metadata").write_text('{"id":"5f6e2f0e-0e67-4b6c-9d57-3d6c0ab3e5a0"}')
    for more in ([], ["--json"]):
        shown = run("tables", new, *more)
        assert (shown.exit_code, shown.stderr) == (
            0,
            "new has no table yet: its tables are known from its first committed batch on.\n",
        )
    for command in ("scan", "count", "describe"):
        refused = run(command, new)
        assert "UNKNOWN_TABLE" in refused.stderr
        assert refused.exit_code == run(command, new, "t").exit_code

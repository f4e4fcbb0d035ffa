"""`millpond savepoint` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millpond.cli import main


@pytest.fixture
def run(golden: Callable) -> Callable[..., Result]:
    """A command about the savepoints of one job; `PLACE` stands for its checkpoint."""
    place = str(golden("windows-rocksdb-changelog").checkpoint)
    return lambda *words: CliRunner().invoke(main, ["savepoint", *(place if word == "PLACE" else word for word in words)])


def test_from_making_to_deleting(run: Callable[..., Result], tmp_path: Path) -> None:
    made = run("create", "PLACE", "--name", "one", "--note", "before\x1b[31m")
    assert made.exit_code == 0
    assert "batch       11" in made.stdout
    assert "\x1b" not in made.stdout
    assert run("list", "PLACE").stdout.splitlines()[1].split("\t")[0] == "one"
    (listed,) = map(json.loads, run("list", "PLACE", "--json").stdout.splitlines())
    assert (listed["name"], listed["batch"], listed["note"]) == ("one", 11, "before\x1b[31m")
    shown = json.loads(run("show", "PLACE", "one", "--json").stdout)
    assert sum(partition["rows"] for partition in shown["partitions"]) == listed["rows"]
    assert run("verify", "PLACE", "one").stdout.startswith("one: ")
    restored = run("restore", "PLACE", "one", "--to", str(tmp_path / "restored"))
    assert restored.stdout == f"file://{tmp_path}/restored\n"
    assert "TARGET_NOT_EMPTY" in run("restore", "PLACE", "one", "--to", str(tmp_path / "restored")).stderr
    assert CliRunner().invoke(main, ["savepoint", "create", str(tmp_path / "restored"), "--name", "next"]).exit_code == 0
    assert run("export", "PLACE", "one", "--to", str(tmp_path / "one.tar")).exit_code == 0
    assert run("import", "PLACE", str(tmp_path / "one.tar"), "--name", "two").exit_code == 0
    assert "  " + "two" not in run("tree", "PLACE").stdout
    pruned = run("prune", "PLACE", "--keep-last", "1")
    assert (pruned.exit_code, pruned.stderr.count("delete ")) == (0, 1)
    assert "INVALID_REQUEST" in run("prune", "PLACE").stderr
    assert run("delete", "PLACE", "one").exit_code == 0
    assert "one" in run("list", "PLACE").stdout
    assert run("delete", "PLACE", "one", "--yes").exit_code == 0
    assert [line.split("\t")[0] for line in run("list", "PLACE").stdout.splitlines()] == ["name", "two"]


def test_each_mistake_is_one_line_with_its_exit_code(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("create", "PLACE", "--name", "one").exit_code == 0
    for words, condition, code in (
        (("create", "PLACE", "--name", "one"), "SAVEPOINT_EXISTS", 2),
        (("create", "PLACE", "--name", "a/b"), "INVALID_NAME", 2),
        (("create", "PLACE", "other", "--name", "x"), "INVALID_REQUEST", 2),
        (("create", "PLACE", "--name", "x", "--batch", "99"), "BATCH_GONE", 4),
        (("create", "http://localhost:1", "--name", "x"), "INVALID_REQUEST", 2),
        (("create", str(tmp_path), "--name", "x"), "NO_CHECKPOINT", 3),
        (("show", "PLACE", "x"), "UNKNOWN_SAVEPOINT", 3),
        (("verify", "PLACE", "x"), "UNKNOWN_SAVEPOINT", 3),
        (("restore", "PLACE", "x", "--to", str(tmp_path / "y")), "UNKNOWN_SAVEPOINT", 3),
        (("import", "PLACE", str(tmp_path / "y.tar")), "FILE_MISSING", 3),
        (("export", "PLACE", "one", "--to", str(tmp_path / "no/such/folder.tar")), "NOT_WRITABLE", 6),
    ):
        done = run(*words)
        assert (done.exit_code, done.stderr.count("\n")) == (code, 1), (words, done.stderr)
        assert condition in done.stderr
        assert done.stdout == ""
    (file,) = (path for path in tmp_path.rglob("savepoints/one/checkpoint/commits/*"))
    file.write_text(file.read_text() + " ")
    done = run("verify", "PLACE", "one")
    assert done.exit_code == 5
    assert "checkpoint/commits/11: [SAVEPOINT_DAMAGED]" in done.stdout

"""`millpond diff` as a person or a program uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import millpond
from millpond.cli import main
from spark_files.checkpoint import WrittenCheckpoint


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenCheckpoint:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    made = WrittenCheckpoint(tmp_path / "job")
    for changes in ([("a", 1), ("\t\x1b[31m", 2), ("same", 3)], [("a", 4), ("\t\x1b[31m", None), ("new", None)], [("new", 5)]):
        made.plan(changes, snapshot=False)
        made.commit()
    millpond.plan_savepoint(tmp_path / "job", "first", batch=0).run()
    return made


@pytest.fixture
def run(job: WrittenCheckpoint) -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(main, ["diff", str(job.path), *words])


def test_rows_go_to_stdout_and_counts_to_stderr(run: Callable[..., Result]) -> None:
    found = run("first")
    assert found.exit_code == 1
    assert found.stdout.splitlines() == [
        "table\tkind\tkey\told\tnew",
        'job.aggregate_0\tremoved\t{"k":"\\\\t\\\\u001b[31m"}\t{"v":2}\t\\N',
        'job.aggregate_0\tchanged\t{"k":"a"}\t{"v":1}\t{"v":4}',
        'job.aggregate_0\tadded\t{"k":"new"}\t\\N\t{"v":5}',
    ]
    said = found.stderr.splitlines()
    assert said[0].startswith("left: savepoint first · batch 0 of job · begun ")
    assert said[1].startswith("right: batch 2 of job · newest batch · begun ")
    assert said[1].endswith(' · source 0 ends at {"logOffset": 2}')
    assert said[2].startswith("The source offsets of the two sides differ")
    assert said[3:] == ["job.aggregate_0: 1 added, 1 removed, 1 changed, 1 the same", "The two sides differ."]
    cut_off = run("first", "@1", "--limit", "1")
    assert len(cut_off.stdout.splitlines()) == 2
    assert "batch 1 of job · 1 batch behind" in cut_off.stderr
    assert "job.aggregate_0: only 1 of the rows that differ are shown (--limit)" in cut_off.stderr


def test_the_same_is_exit_code_0(run: Callable[..., Result]) -> None:
    found = run("first", "@0")
    assert (found.exit_code, found.stdout) == (0, "table\tkind\tkey\told\tnew\n")
    assert found.stderr.splitlines()[2:] == [
        "job.aggregate_0: 0 added, 0 removed, 0 changed, 3 the same",
        "The two sides are the same.",
    ]


def test_json_has_a_row_a_line_and_all_else_at_the_end_of_stderr(run: Callable[..., Result]) -> None:
    found = run("first", "--json")
    assert found.exit_code == 1
    rows = list(map(json.loads, found.stdout.splitlines()))
    assert rows[1] == {
        "table": "job.aggregate_0",
        "kind": "changed",
        "key": {"k": "a"},
        "old": {"v": 1},
        "new": {"v": 4},
        "columns": ["v"],
    }
    assert [(row["kind"], row["old"], row["new"]) for row in rows] == [
        ("removed", {"v": 2}, None),
        ("changed", {"v": 1}, {"v": 4}),
        ("added", None, {"v": 5}),
    ]
    said: dict[str, Any] = json.loads(found.stderr.splitlines()[-1])
    assert (said["is_same"], said["offsets"]) == (False, "differ")
    assert (said["left"]["savepoint"], said["left"]["batch"], said["right"]["batch"]) == ("first", 0, 2)
    assert said["tables"][0]["counts"] == {"added": 1, "removed": 1, "changed": 1, "same": 1}
    assert "rows" not in said["tables"][0]


def test_a_parquet_file_has_every_row_that_differs(run: Callable[..., Result], tmp_path: Path, golden: Callable) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    found = run("first", "--parquet", str(path))
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.splitlines()[0] == f"3 rows in {path}"
    assert parquet.read_table(path).to_pylist() == [
        {"_kind": "removed", "k": "\t\x1b[31m", "_old": {"v": 2}, "_new": None, "_columns": []},
        {"_kind": "changed", "k": "a", "_old": {"v": 1}, "_new": {"v": 4}, "_columns": ["v"]},
        {"_kind": "added", "k": "new", "_old": None, "_new": {"v": 5}, "_columns": []},
    ]
    assert run("first", "@0", "--parquet", str(path)).exit_code == 0
    assert len(parquet.read_table(path)) == 0
    assert run("first", "--parquet", str(path), "--limit", "2").exit_code == 1
    assert len(parquet.read_table(path)) == 2
    # A table with a key alone, of several.
    chained = golden("chained-rocksdb-changelog")
    words = ["diff", str(chained.checkpoint), f"@{chained.last - 1}", f"@{chained.last}", "--parquet", str(path)]
    assert "INVALID_REQUEST" in CliRunner().invoke(main, words).stderr
    name = f"{chained.checkpoint.name}.dedupe_1"
    assert CliRunner().invoke(main, [*words, "--table", name]).exit_code == 1
    assert parquet.read_table(path).column_names == ["_kind", "page", "host", "_columns"]
    diff = millpond.read_diff(chained.checkpoint, f"@{chained.last - 1}", f"@{chained.last}", tables=[name], parquet=path, limit=1)
    assert len(parquet.read_table(path)) == diff.tables[0].counts.differ > len(diff.tables[0].rows) == 1


def test_each_mistake_is_one_line_with_its_exit_code(run: Callable[..., Result], job: WrittenCheckpoint) -> None:
    for words, condition, code in (
        (("nothing",), "UNKNOWN_SAVEPOINT", 3),
        (("first", "@9"), "BATCH_GONE", 4),
        (("first", "--table", "x"), "UNKNOWN_TABLE", 3),
        (("first", "--ignore", "x"), "UNKNOWN_COLUMN", 2),
        (("first", "--ignore", "k"), "INVALID_REQUEST", 2),
        (("first", "--json", "--parquet", "x"), "INVALID_REQUEST", 2),
        (("first", "--against", "http://localhost:1"), "INVALID_REQUEST", 2),
        (("first", "--limit", "-1"), "INVALID_REQUEST", 2),
    ):
        found = run(*words)
        assert (found.exit_code, found.stdout) == (code, ""), found.stderr
        assert condition in found.stderr
    server = CliRunner().invoke(main, ["diff", "http://localhost:1", "first"])
    assert (server.exit_code, server.stdout) == (2, "")
    assert run("first", "--ignore", "v").exit_code == 1
    assert run("first", "@0", "--ignore", "v").exit_code == 0

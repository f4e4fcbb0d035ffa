"""`millpond repair` as a person uses it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner, Result

from millpond.cli import main


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["repair", *map(str, words)])


def test_from_the_finding_to_the_copy(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("windows-rocksdb-changelog").checkpoint
    healthy = run(checkpoint)
    assert (healthy.exit_code, "Spark starts from it as it is" in healthy.stdout) == (0, True)
    (checkpoint / "commits/11").write_bytes(b"")
    shown = run(checkpoint)
    assert shown.exit_code == 5
    assert "REPAIR_NEEDED" in shown.stderr
    assert shown.stdout.splitlines()[1].split("\t")[:3] == ["commits/11", "empty", "fails"]
    assert "goes on     after batch 10; batch 11 is run again as it was planned" in shown.stdout
    assert "lost        nothing" in shown.stdout
    assert not (tmp_path / "repaired").exists()
    done = run(checkpoint, "--to", tmp_path / "repaired", "--yes")
    assert (done.exit_code, done.stdout) == (0, f"file://{tmp_path}/repaired\n")
    assert "found       commits/11: The file is empty." in done.stderr
    assert run(tmp_path / "repaired").exit_code == 0
    again = run(checkpoint, "--to", tmp_path / "repaired", "--yes")
    assert (again.exit_code, "TARGET_NOT_EMPTY" in again.stderr) == (2, True)


def test_as_json(golden: Callable) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    (checkpoint / "state/0/1/12.snapshot").unlink()
    (checkpoint / "state/0/1/12.delta").unlink()
    found = run(checkpoint, "--json")
    shown = json.loads(found.stdout.splitlines()[0])
    assert (shown["starts"], shown["needed"], shown["possible"]) == (False, True, True)
    assert (shown["batch"], shown["run_again"], shown["undone"]) == (10, 11, None)
    assert shown["findings"][0]["path"] == "state/0/1/12.delta"
    assert found.exit_code == 5


def test_what_cant_be_repaired(golden: Callable, tmp_path: Path) -> None:
    checkpoint = golden("counts-hdfs").checkpoint
    shutil.rmtree(checkpoint / "state/0/1")
    for words in ((checkpoint,), (checkpoint, "--to", tmp_path / "x", "--yes")):
        done = run(*words)
        assert (done.exit_code, "NOT_REPAIRABLE" in done.stderr) == (5, True)
    assert not (tmp_path / "x").exists()
    for words, condition, code in (
        ((tmp_path / "nothing",), "NO_CHECKPOINT", 3),
        ((checkpoint, "other"), "INVALID_REQUEST", 2),
        (("http://localhost:1",), "INVALID_REQUEST", 2),
    ):
        done = run(*words)
        assert (done.exit_code, condition in done.stderr) == (code, True)

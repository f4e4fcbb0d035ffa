"""Mistakes in a call of `millpond write-state`, which it finds before it starts Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from millpond.cli import main


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        ((), "--from", 2),
        (("--from", "past", "--batches", "0"), "--batches", 2),
        (("--from", "past", "--conf", "spark.ui.enabled"), "isn't KEY=VALUE", 2),
    ],
)
def test_each_mistake_is_one_line_with_its_exit_code(tmp_path: Path, words: tuple[str, ...], says: str, code: int) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "job.py").write_text("def query(events):\n    return events\n")
    done = CliRunner().invoke(main, ["write-state", str(tmp_path / "new"), str(tmp_path / "job.py"), *words])
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert says in done.stderr


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    done = CliRunner().invoke(main, ["write-state", str(tmp_path / "new"), str(tmp_path / "job.py"), "--from", "past"])
    assert (done.exit_code, "FILE_MISSING" in done.stderr) == (3, True)
    assert not (tmp_path / "new").exists()

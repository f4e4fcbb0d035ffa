"""A user's file, from which a command takes functions: what it may hold, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark.cloudpickle
import pytest

from millpond.errors import MillpondError
from millpond.spark.program import call_program, function_of, load_program

PROGRAM = """
import beside_it


def query(n):
    return n + beside_it.NUMBER


if __name__ == "__main__":
    raise SystemExit("not run")
"""
STARTS = "from pyspark.sql.streaming.readwriter import DataStreamWriter\nDataStreamWriter.start(None)"


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_workers_get_the_functions_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("NUMBER = 41\n")
    (tmp_path / "job.py").write_text(
        "import beside_it\ndef query(n):\n    return n + beside_it.NUMBER\nif __name__ == '__main__':\n    1 / 0\n"
    )
    query = function_of(load_program(tmp_path / "job.py"), "query")
    assert call_program("query(events)", query, 1) == 42
    assert b"beside_it" in pyspark.cloudpickle.dumps(query)  # its code, and not only its name
    with pytest.raises(MillpondError, match="no function 'source'"):
        function_of(load_program(tmp_path / "job.py"), "source")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def query(:", "SyntaxError"),
        ("import nowhere_at_all", "nowhere_at_all"),
        (STARTS, "starts a query"),
    ],
)
def test_a_program_that_can_not_be_loaded_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "job.py").write_text(text)
    with pytest.raises(MillpondError, match=says) as refused:
        load_program(tmp_path / "job.py")
    assert refused.value.condition == "INVALID_REQUEST"


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MillpondError) as refused:
        load_program(tmp_path / "job.py")
    assert refused.value.condition == "FILE_MISSING"

"""A user's file, from which commands take functions: Spark's workers get them, and what it raises is an error of ours."""

from __future__ import annotations

from pathlib import Path

import pyspark.cloudpickle
import pytest

from millpond.errors import MillpondError
from millpond.program import call_program, function_of, importable
from millpond.spark.program import import_queries, without_starts

PROGRAM = """
import beside_it


def query(n):
    return n + beside_it.NUMBER


if __name__ == "__main__":
    raise SystemExit("not run")
"""
STARTS = "from pyspark.sql.streaming.readwriter import DataStreamWriter\nDataStreamWriter.start(None)"


def test_workers_get_the_functions_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("NUMBER = 41\n")
    path = tmp_path / "job.py"
    path.write_text(PROGRAM)
    with importable(path), without_starts(path):
        module = import_queries(path)
        query = function_of(module, "query", path)
        assert call_program("query", query, 1) == 42
        assert b"beside_it" in pyspark.cloudpickle.dumps(query)  # its code, and not only its name
        with pytest.raises(MillpondError, match="no function 'source'"):
            function_of(module, "source", path)


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
    path = tmp_path / "job.py"
    path.write_text(text)
    with pytest.raises(MillpondError, match=says) as refused, importable(path), without_starts(path):
        import_queries(path)
    assert refused.value.condition == "INVALID_REQUEST"

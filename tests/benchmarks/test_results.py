"""Each result is written by one script, and is complete: machine, versions, load, and every round."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "write_result(" in path.read_text() and path.stem != "results")
# Written by programs of the tests.
OTHERS = {"chaos", "fuzz", "in_a_row", "kills", "long", "outage", "random_queries", "soak"}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "results", raising=False)
    module = importlib.import_module("results")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks/sinks.py", "--rounds", "2"])
    return module


def within(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a result, with its place."""
    yield place, node
    parts = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in parts:
        yield from within(value, f"{place}/{name}")


def test_a_result_has_what_no_script_may_forget(results: Any) -> None:
    path = results.write_result("sinks", {"ratio": 1.5}, [{"rate": 3}, {"rate": 2}])
    kept = json.loads(path.read_text())
    assert (kept["ratio"], kept["rounds"], kept["command"]) == (1.5, [{"rate": 3}, {"rate": 2}], "benchmarks/sinks.py --rounds 2")
    assert set(kept["load_average"]) == {"before", "after"}
    assert kept["machine"].keys() >= {"date", "cpu", "cores", "python", "millpond", "pyspark"}
    assert kept["sha256"] == results.digest(kept)
    kept["ratio"] = 1.6
    assert kept["sha256"] != results.digest(kept)


@pytest.mark.parametrize(("name", "rounds"), [("to_arrow", [1]), ("sinks", []), ("sinks", None)])
def test_another_scripts_result_and_one_without_rounds_are_refused(results: Any, name: str, rounds: Any) -> None:
    with pytest.raises(ValueError, match="its rounds"):
        results.write_result(name, {}, rounds)
    with pytest.raises(ValueError, match="every result"):
        results.write_result("sinks", {"load_average": 0.0}, [1])


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_writes_its_own_result_and_in_no_other_way(name: str) -> None:
    tree = ast.parse((BENCHMARKS / f"{name}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    written = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "write_result"]
    assert [(ast.literal_eval(call.args[0]), len(call.args)) for call in written] == [(name, 3)]
    assert "FOLDER" not in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_each_result_has_a_program_that_writes_it() -> None:
    assert {path.stem for path in (BENCHMARKS / "results").glob("*.json")} == {*SCRIPTS, *OTHERS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_committed_is_what_its_script_wrote(results: Any, name: str) -> None:
    kept = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
    assert kept["sha256"] == results.digest(kept)
    assert set(kept["load_average"]) == {"before", "after"}
    assert kept["machine"].keys() == results.machine().keys()
    assert kept["command"].startswith(f"benchmarks/{name}.py")
    assert kept["rounds"]
    assert [place for place, value in within(kept) if value in ({}, [], "")] == []

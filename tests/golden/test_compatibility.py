"""COMPATIBILITY.md says what was read just now, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from millpond.errors import MillpondError
from millpond.storage import open_storage

HERE = Path(__file__).parent


def load(name: str) -> ModuleType:
    """A script beside this file."""
    spec = importlib.util.spec_from_file_location(f"golden_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def read_cell(folder: Path) -> str:
    """`read` where the newest state that Spark was asked for is what we read; the condition where it is refused."""
    state = load("test_state")
    storage = open_storage(folder / "checkpoint")
    for name, batches in json.loads((folder / "state.json").read_text()).items():
        batch = max(batches, key=int)
        try:
            if state.rows_of(storage, int(batch), name) != sorted(json.dumps(row) for row in batches[batch]):
                return "WRONG"
        except MillpondError as error:
            return error.condition
    return "read"


def test_the_page_is_what_reading_the_golden_checkpoints_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.syspath_prepend(str(HERE))
    compatibility = load("compatibility")
    refused = {name: condition for name, (_, condition) in load("make_operators").REFUSED.items()}
    assert "?" not in refused.values()
    found = list(compatibility.cells(read_cell))
    assert {cell.outcome for cell in found} == {"read"}
    assert compatibility.PAGE.read_text() == compatibility.render(found, refused)

"""COMPATIBILITY.md has exactly the results of reading the golden checkpoints now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from millpond.errors import MillpondError
from millpond.storage import open_storage
from spark_files.golden import GOLDEN
from spark_files.golden import load_script as load

HERE = Path(__file__).parent


def read_cell(folder: Path) -> str:
    """`read` if the newest state that Spark gave is what Millpond reads; the condition if Millpond refuses it."""
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


def test_the_page_is_what_reading_gives_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell of the page is a checkpoint that was read, or one that Spark or Millpond refused in a test."""
    monkeypatch.syspath_prepend(str(HERE))
    compatibility = load("compatibility")
    found = list(compatibility.cells(read_cell))
    assert {cell.outcome for cell in found} == {"read"}
    not_read = compatibility.millpond_refuses()
    assert not [what for what, conditions, _ in not_read if "read" in conditions]
    assert compatibility.PAGE.read_text() == compatibility.render(found, compatibility.spark_refuses(), not_read)


def test_a_cell_that_was_neither_read_nor_refused_is_said_not_to_have_been_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    compatibility = load("compatibility")
    refused = {"transform-state-hdfs": "NOT_HERE"}
    assert compatibility._entry([], refused, "transform-state", "hdfs") == "Spark refuses: `NOT_HERE`"
    assert compatibility._entry([], refused, "transform-ttl", "hdfs") == "not tried"


def test_the_readme_claims_no_operator_of_an_old_version_that_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators that the README leaves out for 3.5 are those without a golden checkpoint of 3.5."""
    monkeypatch.syspath_prepend(str(HERE))
    compatibility = load("compatibility")
    tried = {path.parent.name for path in (GOLDEN / "spark-3.5").glob("*/state.json")}
    families = {
        "aggregation": "counts",
        "windows": "windows",
        "session windows": "sessions",
        "duplicates": "dedupe",
        "joins": "join",
    }
    families |= {"limit": "limit", "applyInPandasWithState": "apply"}
    missing = {words for words, name in families.items() if not any(cell.startswith(name) for cell in tried)}
    text = " ".join((compatibility.ROOT / "README.md").read_text().split())
    claim = re.search(r"Of 3\.5, (.*?) weren't tried", text)
    assert claim is not None
    assert set(claim[1].split(", ")) == missing

"""A table read directly from the checkpoint equals that of a replica, and every batch that is still there can be read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import CheckpointError, MillpondError, RequestError
from millpond.schema.definition.table import parse_definition
from spark_files.golden import GOLDEN
from suite.sizes import a_few

pytestmark = pytest.mark.usefixtures("either_way")

pa = pytest.importorskip("pyarrow")
CELLS = [
    (str(p.parent.relative_to(GOLDEN)), defined)
    # Of older versions, only cells whose files differ for such a read: 3.5 packs SSTs with Snappy.
    for p in sorted(
        [*GOLDEN.glob("*/state.json"), *GOLDEN.glob("spark-4.3/*/state.json"), *GOLDEN.glob("spark-3.5/counts-*/state.json")]
    )
    for defined in (True, False)
    if not defined or (p.parent / "definition.json").exists()
]


def rows_of(table: Any) -> list[str]:
    """The rows as texts, sorted: NaN equals NaN, and types count."""
    columns = [table.column(name).to_pylist() for name in table.column_names]
    return sorted(map(repr, zip(*columns, strict=True)))


@pytest.mark.parametrize(("cell", "defined"), a_few(CELLS, 8))
def test_a_cold_read_of_each_batch_is_what_the_replica_has(
    golden: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str, defined: bool
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # whether a row has expired depends on when the batch was planned
    copy = golden(cell)
    if defined:
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    copy.uncommit()
    before: dict[str, list[str]] = {}
    rows = 0
    with millpond.open(copy.checkpoint, replica_dir=tmp_path / "home") as pond:
        for batch in range(copy.last + 1):
            copy.commit(batch)
            if batch not in (0, 1, copy.last // 2, copy.last - 1, copy.last):
                before = {}
                continue
            pond.catch_up(60)
            for name, content in before.items():
                older = millpond.read_arrow(copy.checkpoint, name, batch=batch - 1)
                assert older.schema.metadata[b"millpond.batch"] == str(batch - 1).encode()
                assert rows_of(older) == content
            before = {}
            for name in pond.tables():
                try:
                    expected = pond[name].live().to_arrow()
                except RequestError as refused:
                    with pytest.raises(MillpondError) as cold:
                        millpond.read_arrow(copy.checkpoint, name)
                    assert cold.value.condition == refused.condition
                    continue
                found = millpond.read_arrow(copy.checkpoint, name)
                assert found.schema.equals(expected.schema, check_metadata=True)
                found.validate(full=True)
                before[name] = rows_of(expected)
                assert rows_of(found) == before[name]
                rows += len(expected)
    assert rows > 0


def test_a_batch_that_isnt_committed_is_refused(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-hdfs")
    (table,) = millpond.open(copy.checkpoint, replica_dir="memory://").tables()
    with pytest.raises(CheckpointError) as gone:
        millpond.read_arrow(copy.checkpoint, table, batch=copy.last + 1)
    assert gone.value.condition == "FILE_GONE"


def test_an_unknown_table_is_told_with_those_there_are(golden: Callable[[str], Any]) -> None:
    with pytest.raises(RequestError) as unknown:
        millpond.read_arrow(golden("counts-hdfs").checkpoint, "nothing")
    assert unknown.value.condition == "UNKNOWN_TABLE"
    assert "aggregate_0" in unknown.value.hint

"""A diff of two batches is the difference of what a replica showed after each, for every operator and provider."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.schema.definition.table import parse_definition
from millpond.tables.diff.read import TableDiff
from spark_files.golden import CELLS, GOLDEN
from suite.sizes import a_few

pytestmark = pytest.mark.usefixtures("either_way")

DEFINED = [(cell, True) for cell in CELLS if (GOLDEN / cell / "definition.json").exists()]
Table = dict[Any, dict[str, Any]]


def plain(value: Any) -> Any:
    """A value that equals another one exactly if a user would call them the same."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return "NaN" if value != value else value  # Python compares numbers of two types exactly
    if isinstance(value, dict):
        return frozenset((plain(name), plain(of)) for name, of in value.items())
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else (type(value).__name__, value)


def rows_of(table: millpond.Table) -> Table:
    """key -> the other columns."""
    keys = [column.name for column in table.definition.key]
    found = {}
    for row in table.live().scan(limit=100_000):
        columns = dict(dict.items(row))
        found[tuple((name, plain(columns.pop(name))) for name in keys)] = columns
    return found


def expected(old: Table, new: Table, compared: tuple[str, ...]) -> tuple[dict[Any, Any], int]:
    """(key -> added, removed, or the columns that differ; how many rows are the same)."""
    kinds: dict[Any, Any] = {}
    for key in old.keys() | new.keys():
        if key not in old or key not in new:
            kinds[key] = "added" if key in new else "removed"
            continue
        columns = [name for name in compared if plain(old[key][name]) != plain(new[key][name])]
        if columns:
            kinds[key] = columns
    return kinds, len(old.keys() & new.keys()) - sum(isinstance(kind, list) for kind in kinds.values())


def check(found: TableDiff, old: Table, new: Table) -> None:
    left, right = ({name for row in side.values() for name in row} for side in (old, new))
    if left and right:
        apart = {column.name for column in found.retyped if not column.compared}
        assert {*found.columns} == (left & right) - apart
        assert ({*found.only_left}, {*found.only_right}) == (left - right, right - left)
    kinds, same = expected(old, new, found.columns)
    assert found.counts.same == same
    assert found.counts.differ == len(found.rows) == len(kinds)
    for row in found.rows:
        key = tuple((name, plain(value)) for name, value in dict.items(row.key))
        assert kinds.pop(key) == (list(row.columns) if row.kind == "changed" else row.kind)
        for shown, there in ((row.old, old), (row.new, new)):
            assert plain(None if shown is None else dict(dict.items(shown))) == plain(there.get(key))
    assert not kinds


@pytest.mark.parametrize(("cell", "defined"), a_few([*((cell, False) for cell in CELLS), *DEFINED], 5))
def test_a_diff_of_two_batches_is_the_difference_of_what_was_shown(
    golden: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str, defined: bool
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # whether a row has expired depends on when the batch was planned
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    copy, random = golden(cell), Random(cell)
    if defined:
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    copy.uncommit()
    shown: dict[int, dict[str, Table]] = {}
    with millpond.open(copy.checkpoint, replica_dir="memory://") as pond:
        for batch in range(copy.last + 1):
            copy.commit(batch)
            pond.catch_up(60)
            shown[batch] = {name: rows_of(pond[name]) for name in pond.tables()}
    pairs = [(copy.last, copy.last), (copy.last - 1, copy.last), (copy.last, copy.last - 1)]
    pairs += [(random.choice([*shown]), random.choice([*shown])) for _ in range(6)]
    compared = 0
    for old, new in pairs:
        try:
            diff = millpond.read_diff(copy.checkpoint, f"@{old}", f"@{new}", limit=None)
        except MillpondError as error:  # Spark has cleaned up the older batch
            assert error.condition in ("FILE_GONE", "BATCH_GONE")
            assert min(old, new) < copy.last - 1 or "minBatches" in cell
            continue
        assert (diff.left.batch, diff.right.batch) == (old, new)
        assert {table.table for table in diff.tables} | {*diff.only_left} == shown[old].keys()
        assert {table.table for table in diff.tables} | {*diff.only_right} == shown[new].keys()
        for table in diff.tables:
            check(table, shown[old][table.table], shown[new][table.table])
        assert diff.is_same == (not diff.only_left and not diff.only_right and all(table.is_same for table in diff.tables))
        assert old != new or diff.is_same
        compared += sum(table.counts.differ + table.counts.same for table in diff.tables)
    assert compared

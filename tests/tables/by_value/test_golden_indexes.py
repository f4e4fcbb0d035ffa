"""Reads by an index give what a scan gives that is sorted by the same values, at every batch of every golden checkpoint."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.replica.replica import MEMORY
from millpond.schema.convert import to_stored
from millpond.schema.definition.indexes import has_order
from millpond.schema.definition.table import parse_definition
from millpond.settings import Retention
from millpond.tables.failed import FailedValue
from spark_files.golden import CELLS, GOLDEN, TYPES
from suite.sizes import a_few

CELLS_OF_NOW = [cell for cell in CELLS if "/" not in cell or cell.startswith("spark-4.3")]
VALUES = sorted(p.name for p in (GOLDEN / "values" / "jobs").iterdir())
KEPT = a_few([(cell, place) for n, cell in enumerate(CELLS_OF_NOW) for place in (("lmdb", "memory")[n % 2],)], 6)


@pytest.mark.parametrize(("cell", "kept_in"), KEPT)
def test_rows_by_value_equal_a_sorted_scan_at_every_batch(
    golden: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str, kept_in: str
) -> None:
    if len(cell) % 2:  # as of many rows
        monkeypatch.setattr("millpond.tables.by_value.entries._FEW_ROWS", 1)
    copy = golden(cell)
    if (copy.source / "definition.json").exists():
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    draw = random.Random(cell)
    copy.uncommit()
    copy.commit(0)
    with millpond.open(copy.checkpoint, replica_dir=MEMORY) as pond:
        definitions = {name: pond[name].definition for name in pond.tables()}
    indexes = {name: some for name, definition in definitions.items() if (some := draw_indexes(definition, draw))}
    home = tmp_path / "home" if kept_in == "lmdb" else MEMORY
    kept = {name: Retention(closed_seconds=None) for name in definitions}
    compared, restart_at = 0, draw.randrange(copy.last + 1) if kept_in == "lmdb" else None
    pond = millpond.open(copy.checkpoint, replica_dir=home, indexes=indexes, retention=kept)
    try:
        for batch in range(copy.last + 1):
            if batch:
                copy.commit(batch)
            if batch == restart_at:
                pond.close()
                with millpond.open(copy.checkpoint, replica_dir=MEMORY) as now:
                    there = {name: draw_indexes(now[name].definition, draw) for name in now.tables()}
                # One more for each table, while the replica is a batch behind.
                indexes = {n: list(dict.fromkeys([*these, *there[n][:1]])) for n, these in indexes.items() if there.get(n)}
                again = indexes
                pond = millpond.open(copy.checkpoint, replica_dir=home, indexes=again)
            pond.catch_up(60)
            for name, these in indexes.items():
                for index in these:
                    if name in pond.tables() and set(index) <= set(pond[name].columns):  # a job may drop them
                        compared += compare(pond[name], index, draw)
    finally:
        pond.close()
    assert compared or not indexes


@pytest.mark.parametrize("name", a_few(TYPES, 2))
@pytest.mark.parametrize("few_rows", [1, 1000])
def test_values_of_every_type_have_an_order(types_pond: Path, monkeypatch: pytest.MonkeyPatch, name: str, few_rows: int) -> None:
    monkeypatch.setattr("millpond.tables.by_value.entries._FEW_ROWS", few_rows)
    draw = random.Random(name)
    with millpond.open(types_pond, replica_dir=MEMORY) as pond:
        indexes = draw_indexes(pond[name].definition, draw)
    with millpond.open(types_pond, replica_dir=MEMORY, indexes={name: indexes}) as pond:
        assert all(compare(pond[name], index, draw) for index in indexes)


@pytest.mark.parametrize("name", a_few(VALUES, 2))
def test_values_that_cant_be_computed_stand_beside_null(name: str, tmp_path: Path) -> None:
    draw, place = random.Random(name), tmp_path / "values"
    shutil.copytree(GOLDEN / "values", place)
    with millpond.open(place, replica_dir=MEMORY) as pond:
        indexes = [(column,) for column, type_ in pond[name].definition.types.items() if has_order(type_)]
    with millpond.open(place, replica_dir=MEMORY, indexes={name: indexes}) as pond:
        assert all(compare(pond[name], index, draw) for index in indexes)


def draw_indexes(definition: Any, draw: random.Random) -> list[tuple[str, ...]]:
    if definition.many or definition.parts is not None:
        return []
    names = [name for name, type_ in definition.types.items() if has_order(type_)]
    found = {tuple(draw.sample(names, min(len(names), draw.choice((1, 1, 2, 3))))) for _ in range(3)} if names else set()
    return sorted(found)


def place_of(definition: Any, index: tuple[str, ...]) -> Callable[[Any], Any]:
    """What a row is sorted by."""
    stored = {name: to_stored(definition.types[name]) for name in index}

    def one(row: Any, name: str) -> Any:
        value = dict.get(row, name)
        if value is None or type(value) is FailedValue:
            return (0,)
        if isinstance(value, float):
            return (2,) if math.isnan(value) else (1, value)
        if isinstance(value, str):
            return 1, value.encode("utf-8", "surrogateescape")
        return 1, stored[name](value)

    return lambda row: tuple(one(row, name) for name in index)


def compare(table: Any, index: tuple[str, ...], draw: random.Random) -> int:
    """Ask for all rows, for a range, for pages, and for those that share the first columns; returns how many rows were compared."""
    for seen in (table, table.live(), table.with_closed()):
        place = place_of(seen.definition, index)
        rows = sorted(seen.scan(), key=place)
        assert same(seen.range(by=index), rows)
        assert same(seen.top(index, None), rows[::-1])
    if not rows:
        return 0
    assert same(pages(table.with_closed(), index, draw.randrange(1, 5)), rows[::-1])
    edges = sorted((draw.choice(rows), draw.choice(rows)), key=place)
    count = draw.randrange(1, len(index) + 1)
    low, high = ({name: dict.get(row, name) for name in index[:count]} for row in edges)
    if any(type(value) is FailedValue for value in (*low.values(), *high.values())):
        return len(rows)
    first, last = (place(edge)[:count] for edge in edges)
    wanted = [row for row in rows if first <= place(row)[:count] < last]
    assert same(table.with_closed().range(by=index, start=low, end=high), wanted)
    assert same(table.with_closed().range(by=index, start=low, end=high, reverse=True), wanted[::-1])
    if count < len(index):
        wanted = [row for row in rows if place(row)[:count] == first]
        assert same(table.with_closed().top(index[count:], None, key=low), wanted[::-1])
    return len(rows)


def pages(table: Any, index: tuple[str, ...], size: int) -> list[Any]:
    found, answer = [], table.top(index, size)
    while True:
        found += answer
        if not answer.more:
            return found
        answer = table.top(index, size, token=answer.token)


def same(found: Any, expected: list[Any]) -> bool:
    assert [repr(dict(row)) for row in found] == [repr(dict(row)) for row in expected]
    assert [row.final for row in found] == [row.final for row in expected]
    return True


@pytest.mark.long
def test_a_replica_that_is_behind_gets_the_indexes_of_another_meaning(golden: Callable[[str], Any], tmp_path: Path) -> None:
    copy = golden("counts-hdfs")
    copy.uncommit()
    copy.commit(0)
    draw = random.Random(1)
    with millpond.open(copy.checkpoint, replica_dir=MEMORY) as pond:
        (name,) = pond.tables()
        column = pond[name].columns[-1]
    with millpond.open(copy.checkpoint, replica_dir=tmp_path, indexes={name: [column]}) as pond:
        assert compare(pond[name], (column,), draw)
    # Now somebody says what the state means: the same columns, or others, have other values.
    definition = parse_definition(copy.read("definition"))
    create_beside(copy.checkpoint).write_definition(definition)
    for batch in range(1, copy.last + 1):
        copy.commit(batch)
        indexes = [(c,) for c, type_ in definition.types.items() if has_order(type_)][: batch + 1]
        with millpond.open(copy.checkpoint, replica_dir=tmp_path, indexes={definition.table: indexes}) as pond:
            assert all(compare(pond[definition.table], index, draw) for index in indexes)


def test_an_index_that_isnt_there_is_an_error(golden: Callable[[str], Any]) -> None:
    copy = golden("counts-hdfs")
    with millpond.open(copy.checkpoint, replica_dir=MEMORY) as pond:
        table = pond[pond.tables()[0]]
        column = table.columns[-1]
        with pytest.raises(MillpondError) as refused:
            table.top(column)
        assert refused.value.condition == "NO_INDEX"
        with pytest.raises(MillpondError) as refused:
            table.top("nothing")
        assert refused.value.condition == "UNKNOWN_COLUMN"

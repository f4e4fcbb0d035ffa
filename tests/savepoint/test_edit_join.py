"""Edits of joins' rows: places and counts are what Spark writes for the rows that are there."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.errors import MillpondError, RequestError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.rewrite.rewrite import open_state
from millpond.savepoint.verify import verify_savepoint
from millpond.schema.convert import to_python
from millpond.storage import open_storage
from spark_files.golden import CELLS, GOLDEN
from suite.sizes import a_few

StateRow = millpond.StateRow
JOINS = sorted([cell for cell in CELLS if "join-" in cell], key=lambda cell: cell[::-1])
FORMAT4 = "spark-4.3/join-full-format4-rocksdb-changelog"
Row = tuple[tuple[Any, ...], tuple[Any, ...]]
"""the join's key and a row's columns in stored form"""


class State:
    """The state of a join as Spark stores it.

    bytes:   (store, partition, key, value), of all rows
    rows:    side -> its rows, those of a key in the order of their places
    """

    def __init__(self, place: Path, number: int) -> None:
        storage = open_storage(place)
        batch = read_batch(storage, Batch(number))
        self.bytes: set[tuple[str, int, bytes, bytes]] = set()
        self.rows: dict[str, list[Row]] = {"left": [], "right": []}
        self.fields: dict[str, Any] = {}
        found: dict[str, list[tuple[Any, Any]]] = {}
        for operator in read_operator_files(storage, batch.batch):
            for store in read_whole_stores(storage, operator):
                state = open_state(storage, batch, store)
                codec = StoreCodec(store, batch.settings, state.numbers)
                hash_key, partitions = state.hasher(), partitions_of(batch, store.files)
                for partition in partitions:
                    for key, value in state.iter_rows(partition):
                        assert hash_key(key) % len(partitions) == partition
                        self.bytes.add((store.id, partition, key, value))
                        of = codec.of(codec.family_of(key))
                        self.fields[of.schema.name] = of.schema
                        found.setdefault(of.schema.name, []).append((of.read_key(key), of.read_value(value)))
        for side, rows in self.rows.items():
            indexed, timed = found.get(f"{side}-keyWithIndexToValue", []), found.get(f"{side}-keyWithTsToValues", [])
            counts: dict[Any, int] = {}
            for key, value in sorted(indexed, key=lambda row: row[0][-1]):
                assert key[-1] == counts.get(key[:-1], 0)  # no holes
                counts[key[:-1]] = key[-1] + 1
                rows.append((key[:-1], value[0]))
            assert counts == {key: value[0][0] for key, value in found.get(f"{side}-keyToNumValues", [])}
            for key, value in timed:
                rows.extend((key[:-1], element) for element in value)
            assert {key: [(None,)] * len(value) for key, value in timed} == dict(found.get(f"{side}-tsWithKey", []))
            for key, value in timed:
                (place,) = self.fields[f"{side}-keyWithTsToValues"].timed
                assert {row[place][1] if isinstance(row[place], tuple) else row[place] for row in value} == {key[-1]}

    def by_key(self, side: str) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for key, value in self.rows[side]:
            found.setdefault(key, []).append(value)
        return found


def savepoint_of(cell: str, tmp_path: Path) -> tuple[Path, int]:
    source = tmp_path / "job"
    shutil.copytree(GOLDEN / cell / "checkpoint", source)
    return source, plan_savepoint(source, "first").run().manifest.batch


def edited(source: Path, first: str, name: str, edit: Callable[[StateRow], StateRow | None], **more: Any) -> Path:
    """The restored result; its savepoint verifies."""
    plan = millpond.plan_edit_savepoint(source, first, name, edit=edit, **more)
    made = plan.run()
    assert verify_savepoint(made).problems == ()
    target = source.parent / name
    plan_restore(source, name, target).run()
    return target


@pytest.mark.parametrize("cell", a_few(JOINS, 3, long=6))
def test_keys_and_values_change_and_back(tmp_path: Path, cell: str) -> None:
    """Rows that are made anew, and those that went to another key and came back, have the same bytes."""
    source, batch = savepoint_of(cell, tmp_path)
    before = State(source, batch)
    scanned = read_batch(open_storage(source), Batch(batch)).planned_watermark_ms
    waits_from = dt.datetime.fromtimestamp(scanned / 1000 + 1, dt.UTC)
    again = edited(source, "first", "again", lambda row: StateRow(row.table, dict(row.key), dict(row.value)))
    assert State(again, batch).bytes == before.bytes
    sign = 1

    def turned(value: Any) -> Any:
        if isinstance(value, str):
            return value[::-1]
        if isinstance(value, dt.datetime):  # in format 4 the row moves with it, not back to before the watermark
            return value + dt.timedelta(seconds=sign) if value > waits_from else value
        return value + sign if type(value) is int else value

    def edit(row: StateRow) -> StateRow:
        key = {name: turned(value) for name, value in row.key.items()}
        return StateRow(row.table, key, {name: turned(value) for name, value in row.value.items()})

    there = State(edited(source, "first", "there", edit), batch)
    assert {side: len(rows) for side, rows in there.rows.items()} == {side: len(rows) for side, rows in before.rows.items()}
    assert len(there.bytes - before.bytes) > 10
    sign = -1
    assert State(edited(source, "there", "back", edit), batch).bytes == before.bytes


@pytest.mark.parametrize("cell", a_few(JOINS, 4, long=8))
def test_any_rows_go_and_move(tmp_path: Path, cell: str) -> None:
    """Rows that stay under their key keep their order; those that come follow them; the side that isn't named stays."""
    source, batch = savepoint_of(cell, tmp_path)
    before = State(source, batch)
    some = random.Random(cell)
    side = some.choice([side for side, rows in before.rows.items() if rows])
    (name,) = [
        name for name in before.fields if name.startswith(side) and name.endswith(("-keyWithIndexToValue", "-keyWithTsToValues"))
    ]
    schema = before.fields[name]
    reads = [to_python(field.type) for field in schema.key[:-1]]
    keys = sorted({key for key, _ in before.rows[side]}, key=repr)
    fates: dict[Any, list[Any]] = {}  # a row -> what becomes of it, each time that it is seen: two rows may be the same
    asked: dict[Any, int] = {}

    def as_python(key: Any) -> tuple[Any, ...]:
        return tuple(read(column) for read, column in zip(reads, key, strict=True))

    def fate(row: Any) -> Any:
        return fates.setdefault(row, some.choice([None, row[0], row[0], some.choice(keys)]))

    table = next(t for t in plan_tables(source) if side in t)

    def edit(row: StateRow) -> StateRow | None:
        found = [key for key in keys if as_python(key) == tuple(row.key.values())]
        (key,) = found
        value = next(v for k, v in before.rows[side] if k == key and values_of(schema, v) == tuple(row.value.values()))
        asked[key, value] = asked.get((key, value), 0) + 1
        becomes = fate((key, value))
        return None if becomes is None else StateRow(row.table, dict(zip(row.key, as_python(becomes), strict=True)), row.value)

    after = State(edited(source, "first", "other", edit, tables=[table]), batch)
    assert sum(asked.values()) == len(before.rows[side])
    other = "left" if side == "right" else "right"
    assert {row for row in after.bytes if side not in row[0]} >= {row for row in before.bytes if f"{other}-" in row[0]}
    assert sorted(map(repr, after.rows[other])) == sorted(map(repr, before.rows[other]))
    expected = [(fate(row), row[1]) for row in before.rows[side] if fate(row) is not None]
    assert sorted(map(repr, after.rows[side])) == sorted(map(repr, expected))
    for key, rows in after.by_key(side).items():
        if "format4" in cell and "hdfs" not in cell:
            continue  # rows of a key lie by time
        stayed = [row for row in before.by_key(side).get(key, []) if fate((key, row)) == key]
        assert rows[: len(stayed)] == stayed


def values_of(schema: Any, value: Any) -> tuple[Any, ...]:
    return tuple(to_python(field.type)(column) for field, column in zip(schema.value, value, strict=True))


def plan_tables(source: Path) -> list[str]:
    plan = millpond.plan_edit_savepoint(source, "first", "looked-at", edit=lambda row: row)
    return [table.name for table in plan.tables]


def test_a_preview_counts_rows_not_places(tmp_path: Path) -> None:
    source, batch = savepoint_of(FORMAT4, tmp_path)
    before = State(source, batch)

    def edit(row: StateRow) -> StateRow | None:
        assert "index" not in row.key
        assert "__event_time" not in row.key
        return None if "left" in row.table else row

    counts = millpond.plan_edit_savepoint(source, "first", "x", edit=edit).preview()
    assert {table: (c.rows, c.removed, c.changed) for table, c in counts.items()} == {
        table: (len(before.rows[side]), len(before.rows[side]) if side == "left" else 0, 0)
        for table in counts
        for side in before.rows
        if side in table
    }


@pytest.mark.parametrize("cell", [FORMAT4, "spark-4.3/join-left-hdfs"])
def test_what_an_edit_of_a_join_may_not_do(tmp_path: Path, cell: str) -> None:
    source, _ = savepoint_of(cell, tmp_path)

    def without_time(row: StateRow) -> StateRow:
        return StateRow(row.table, row.key, row.value | {"time": None} if "time" in row.value else row.value)

    wrong: list[tuple[Any, str]] = [
        (lambda row: StateRow(row.table, row.key | {"index": 0}, row.value), "INVALID_REQUEST"),
        (lambda row: StateRow("other", row.key, row.value), "INVALID_REQUEST"),
        (lambda row: StateRow(row.table, row.key, [row.value]), "INVALID_REQUEST"),
        (lambda row: StateRow(row.table, row.key, row.value | {"matched": 1}), "WRONG_TYPE"),
        (lambda row: 1 / 0, "INVALID_REQUEST"),
    ]
    if cell == FORMAT4:
        wrong.append((without_time, "UNSUPPORTED"))
    for edit, expected in wrong:
        plan = millpond.plan_edit_savepoint(source, "first", "x", edit=edit)
        for act in (plan.preview, plan.run):
            with pytest.raises(MillpondError) as raised:
                act()
            assert raised.value.condition == expected
    assert [found.manifest.name for found in millpond.list_savepoints(source).found] == ["first"]


def test_a_row_doesn_t_go_back_to_before_the_watermark(tmp_path: Path) -> None:
    """Format 4 on RocksDB looks between the watermarks of two batches for rows to remove; other forms look at all rows."""
    source, batch = savepoint_of(FORMAT4, tmp_path)
    scanned = read_batch(open_storage(source), Batch(batch)).planned_watermark_ms
    assert scanned > 0

    def at(time: dt.datetime) -> Callable[[StateRow], StateRow]:
        def edit(row: StateRow) -> StateRow:
            row.value |= {name: time for name, value in row.value.items() if isinstance(value, dt.datetime)}
            return row

        return edit

    watermark = dt.datetime.fromtimestamp(scanned / 1000, dt.UTC)
    plan = millpond.plan_edit_savepoint(source, "first", "before", edit=at(watermark))
    for act in (plan.preview, plan.run):
        with pytest.raises(RequestError, match="goes back to the event time") as raised:
            act()
        assert raised.value.condition == "INVALID_REQUEST"
        assert "Return None to remove the row" in (raised.value.hint or "")
    edited(source, "first", "after", at(watermark + dt.timedelta(milliseconds=1)))
    # If the watermark goes back as well, Spark looks from there.
    earlier = watermark - dt.timedelta(hours=1)
    edited(source, "first", "both", at(watermark), watermark=earlier.isoformat().replace("+00:00", "Z"))

"""Random states: a diff is the difference of two dicts, whatever the keys and values are, and however the rows lie."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

import millpond
from inputs.scalar_cases import random_value
from millpond.catalogue import create_beside
from millpond.checkpoint.encoding import join_elements
from millpond.checkpoint.files.records import DELETE, MERGE, PUT
from millpond.checkpoint.rows.unsaferow import encoder
from millpond.native.library import library
from millpond.replica.external_sort import RowSorter
from millpond.schema.definition.default_table import undefined_table
from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.definition.table import TableDefinition, ValueColumn, key_columns
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, SparkType, atomic, struct_of
from millpond.tables.diff import sorted_rows
from millpond.tables.diff.same_value import compile_same
from oracles.ends import condition_of
from spark_files.checkpoint import VALUE, WrittenCheckpoint
from suite.sizes import a_few, examples
from tables.test_parts import KEYS, PART, PARTS, Twins, copies, shares

LONG, DOUBLE, TEXT = atomic("long"), atomic("double"), atomic("string")
TYPES = {
    "long": LONG,
    "double": DOUBLE,
    "float": atomic("float"),
    "decimal": atomic("decimal(30,4)"),
    "string": TEXT,
    "binary": atomic("binary"),
    "timestamp": atomic("timestamp"),
    "time": atomic("time(6)"),
    "array": SparkType("array", "array", element=DOUBLE),
    "map": SparkType("map", "map", key=TEXT, value=DOUBLE),
    "struct": struct_of((Field("a", DOUBLE), Field("m", SparkType("map", "map", key=LONG, value=TEXT)))),
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch, either_way: str) -> None:
    """Sorted runs of a few rows, several merges and chunks of three rows, also without the library."""

    def small(folder: Path, most_runs: int) -> RowSorter:
        assert most_runs == sorted_rows._MOST_RUNS
        return RowSorter(folder, held_bytes=300, most_runs=3)

    monkeypatch.setattr(sorted_rows, "RowSorter", small)
    monkeypatch.setattr(sorted_rows, "_ROWS", 3)
    assert (library() is None) == (either_way == "python")


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list) and value and isinstance(value[0], tuple) and len(value[0]) == 2:
        return frozenset((plain(a), plain(b)) for a, b in value)
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("seed", range(examples(24)))
def test_rows_of_any_types_are_compared_by_value(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    names = random.sample([*TYPES], random.randint(1, 5))
    value = tuple(Field(name, TYPES[name]) for name in names)
    kind = random.choice([*KEYS])
    key, draw = KEYS[kind]
    job = WrittenCheckpoint(tmp_path / "job", key=key, value=value)
    states: list[dict[Any, Any]] = []
    state: dict[Any, Any] = {}
    for _ in range(4):
        changes: list[tuple[Any, Any]] = []
        for changed in {draw(random) for _ in range(random.randrange(1, 40))}:
            fresh = tuple(random_value(random, field.type) for field in value)
            before = state.get(changed)
            if before is not None and random.random() < 0.5:
                # The same value in other bytes, or nearly: maps turned, zeros and NaN of both signs.
                fresh = tuple(
                    _turned(random, old) if random.random() < 0.8 else new for old, new in zip(before, fresh, strict=True)
                )
            changes.append((changed, None if random.random() < 0.2 else fresh))
        for changed, row in changes:
            state[changed] = row
        state = {k: row for k, row in state.items() if row is not None}
        job.plan(changes, snapshot=random.random() < 0.3)
        job.commit()
        states.append(dict(state))
    for _ in range(4):
        old, new = random.randrange(4), random.randrange(4)
        (table,) = millpond.read_diff(job.path, f"@{old}", f"@{new}", limit=None).tables
        before, after = states[old], states[new]
        assert table.counts.added == len(after.keys() - before.keys())
        assert table.counts.removed == len(before.keys() - after.keys())
        changed = {k for k in before.keys() & after.keys() if plain(before[k]) != plain(after[k])}
        assert table.counts.changed == len(changed)
        assert table.counts.same == len(before.keys() & after.keys()) - len(changed)
        columns = [tuple(n for n, a, b in zip(names, before[k], after[k], strict=True) if plain(a) != plain(b)) for k in changed]
        assert sorted(columns) == sorted(row.columns for row in table.rows if row.kind == "changed")


def _turned(random: Random, value: Any) -> Any:
    if isinstance(value, float) and (value == 0 or math.isnan(value)):
        return random.choice([-value, value])
    if isinstance(value, tuple):
        return tuple(_turned(random, member) for member in value)
    if isinstance(value, list):
        turned = [_turned(random, member) for member in value]
        # Entries of a map are pairs; a list isn't turned.
        return random.sample(turned, len(turned)) if turned and isinstance(turned[0], tuple) else turned
    return value


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("how", ["copies", "shares", "shares that go"])
@pytest.mark.parametrize("kind", a_few(KEYS, 2))
def test_a_table_in_parts_is_compared_like_one_without(tmp_path: Path, kind: str, how: str) -> None:
    twins = Twins(tmp_path, kind, 7, copies() if how == "copies" else shares(), shares_go=how == "shares that go")
    for _ in range(5):
        twins.commit()
    parts, whole = twins.in_parts.path, twins.whole.path
    for batch in range(5):
        assert millpond.read_diff(parts, f"@{batch}", f"@{batch}", against=whole).is_same
    for old, new in ((0, 4), (4, 0), (2, 3), (3, 1)):
        (found,) = millpond.read_diff(parts, f"@{old}", f"@{new}", limit=None).tables
        (same,) = millpond.read_diff(whole, f"@{old}", f"@{new}", limit=None).tables
        assert found.counts == same.counts
        assert sorted(map(repr, found.rows)) == sorted(map(repr, same.rows))


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_lists_come_out_as_they_grew_whatever_was_written_in_between(seed: int, in_parts: bool) -> None:
    """Puts, appends and deletes of lists, and of lists of which each part has a copy."""
    random, key = Random(seed), KEYS["text"][0]
    stored_key = (PART, *key) if in_parts else key
    schema = StoreSchema(
        operator=0,
        operator_name="transformWithStateInPySparkExec",
        store="default",
        index=0,
        key=stored_key,
        value=VALUE,
        single=False,
        family="items",
        variable="list",
        many=True,
    )
    definition = undefined_table("t", schema)
    definition = definition.over_parts(copies()) if in_parts else definition
    encode_key, encode_row = encoder(stored_key), encoder(VALUE)
    lists: dict[Any, list[int]] = {}
    with sorted_rows.open_sorter() as sorter:
        rows = sorted_rows.SortedRows(definition, schema, sorter, by_record=True)
        for _ in range(60):
            texts, kind = KEYS["text"][1](random), random.choice([PUT, MERGE, MERGE, DELETE])
            items = [random.randrange(100) for _ in range(random.randint(1, 4))] if kind != DELETE else []
            elements = join_elements(encode_row((item,)) for item in items)
            keys = [(part, *texts) for part in PARTS] if in_parts else [texts]
            sorter.add("t", *rows._records([(kind, encode_key(k), elements) for k in keys]))
            lists[texts] = items if kind != MERGE else lists.get(texts, []) + items
        pairs = [pair for chunk in rows.iter_chunks() for pair in zip(*chunk, strict=True)]
        assert [id_ for id_, _ in pairs] == sorted({id_ for id_, _ in pairs})
        found = dict(rows.decode(*pair) for pair in pairs)
    assert found == {(*k, n): (item,) for k, items in lists.items() for n, item in enumerate(items)}


def written(path: Path, columns: dict[str, SparkType], rows: dict[str, tuple[Any, ...]], **more: Any) -> Path:
    """A job of one batch, whose table `t` has these columns, and `k`."""
    value = tuple(Field(name, type_) for name, type_ in columns.items())
    job = WrittenCheckpoint(path, value=value)
    job.plan([*rows.items()], snapshot=False)
    job.commit()
    key = more.pop("key", (Field("k", TEXT),))
    shown = tuple(ValueColumn(name, type_, buffer_column(place, type_)) for place, (name, type_) in enumerate(columns.items()))
    more = {"values": shown, **more}
    create_beside(str(path)).write_definition(
        TableDefinition(table="t", operator=0, key=key_columns(key), key_schema=key, value_schema=value, **more)
    )
    return path


def test_columns_of_one_side_are_named_and_the_others_are_compared(tmp_path: Path) -> None:
    old = written(tmp_path / "a", {"n": atomic("integer"), "gone": LONG, "w": TEXT}, {"x": (1, 5, "1"), "y": (2, 6, "2")})
    new = written(tmp_path / "b", {"added": TEXT, "w": LONG, "n": LONG}, {"x": ("q", 1, 1), "y": ("r", 2, 3)})
    diff = millpond.read_diff(old, "@0", against=new)
    (table,) = diff.tables
    assert (table.columns, table.only_left, table.only_right) == (("n",), ("gone",), ("added",))
    assert [(c.name, c.left, c.right, c.compared) for c in table.retyped] == [
        ("n", "int", "bigint", True),
        ("w", "string", "bigint", False),
    ]
    assert (table.counts.same, table.counts.changed) == (1, 1)
    (row,) = table.rows
    assert (row.kind, row.key, row.columns) == ("changed", {"k": "y"}, ("n",))
    assert (row.old, row.new) == ({"n": 2, "gone": 6, "w": "2"}, {"added": "r", "w": 2, "n": 3})
    assert not diff.is_same
    ignoring = millpond.read_diff(old, "@0", against=new, ignore=["n", "gone", "w", "added"])
    assert ignoring.is_same
    for ignore, condition in (("k", "INVALID_REQUEST"), ("nothing", "UNKNOWN_COLUMN")):
        assert condition_of(lambda ignore=ignore: millpond.read_diff(old, "@0", against=new, ignore=[ignore])) == condition


def test_another_key_is_refused(tmp_path: Path) -> None:
    old = written(tmp_path / "a", {"n": LONG}, {"x": (1,)})
    new = written(tmp_path / "b", {"n": LONG}, {"x": (1,)}, key=(Field("other", TEXT),))
    assert condition_of(lambda: millpond.read_diff(old, "@0", against=new)) == "KEYS_DIFFER"


def test_a_filter_hides_rows_on_each_side_and_failing_values_are_never_the_same(tmp_path: Path) -> None:
    n = buffer_column(0, LONG)
    above = Expression("gt", atomic("boolean"), (n, Expression("literal", LONG, options={"value": 3})))
    old = written(tmp_path / "a", {"n": LONG}, {"x": (1,), "y": (5,), "z": (9,), "w": (2,)}, having=above)
    new = written(tmp_path / "b", {"n": LONG}, {"x": (7,), "y": (2,), "z": (9,), "w": (3,)}, having=above)
    (table,) = millpond.read_diff(old, "@0", against=new).tables
    assert [(row.kind, row.key["k"]) for row in table.rows] == [("added", "x"), ("removed", "y")]
    assert table.counts.same == 1
    small = Expression("cast", atomic("byte"), (n,), {"mode": "ansi"})
    fails = {"values": (ValueColumn("b", atomic("byte"), small),)}
    old = written(tmp_path / "c", {"n": LONG}, {"x": (1000,), "y": (1000,), "z": (1,)}, **fails)
    new = written(tmp_path / "d", {"n": LONG}, {"x": (1000,), "y": (2000,), "z": (1,)}, **fails)
    (table,) = millpond.read_diff(old, "@0", against=new).tables
    assert [(row.kind, row.key["k"]) for row in table.rows] == [("changed", "y")]
    assert table.counts.same == 2
    before = table.rows[0].old
    assert before is not None
    assert condition_of(lambda: before["b"]) == "VALUE_OUT_OF_RANGE"


def test_numbers_of_several_types_are_compared_exactly() -> None:
    decimal = atomic("decimal(20,2)")
    for left, a, right, b, is_same in (
        (LONG, 2**53 + 1, DOUBLE, 2.0**53, False),
        (LONG, 3, DOUBLE, 3.0, True),
        (decimal, Decimal("3.00"), LONG, 3, True),
        (decimal, Decimal("0.10"), DOUBLE, 0.1, False),
        (atomic("float"), 0.5, DOUBLE, 0.5, True),
        (DOUBLE, math.nan, atomic("float"), -math.nan, True),
        (DOUBLE, -0.0, LONG, 0, True),
        (DOUBLE, None, DOUBLE, math.nan, False),
        (DOUBLE, None, LONG, None, True),
        (atomic("string collate UTF8_LCASE"), "a", TEXT, "A", False),
    ):
        same = compile_same(left, right)
        assert same is not None
        assert same(a, b) is is_same
    assert compile_same(LONG, TEXT) is None
    assert compile_same(atomic("boolean"), LONG) is None
    assert compile_same(struct_of((Field("a", LONG),)), struct_of((Field("b", LONG),))) is None

"""Statements that use indexes equal DuckDB's answers over all rows: conditions on values, and the first rows by value."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError
from millpond.replica.replica import MEMORY
from millpond.schema.definition.indexes import has_order
from millpond.schema.definition.table import parse_definition
from spark_files.checkpoint import WrittenCheckpoint
from spark_files.golden import GOLDEN
from sql.statements import Statements, answer_of, rows_in_duckdb, texts_of
from sql.test_pushdown import CELLS, NOT_IN_SQL, TYPES, ask
from suite.sizes import examples

duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")

pytestmark = pytest.mark.long


def draw_indexes(pond: millpond.Pond, draw: random.Random) -> dict[str, list[tuple[str, ...]]]:
    found = {}
    for name in pond.tables():
        definition = pond[name].definition
        names = [column for column, type_ in definition.types.items() if has_order(type_)]
        if names and not definition.many and definition.parts is None:
            found[name] = [tuple(draw.sample(names, min(len(names), draw.randrange(1, 4)))) for _ in range(4)]
    return found


@pytest.mark.parametrize("cell", CELLS)
def test_answers_equal_those_over_all_rows(golden: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # whether a row has expired depends on it
    copy = golden(cell)
    if (copy.source / "definition.json").exists():
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    draw = random.Random(cell)
    with millpond.open(copy.checkpoint, replica_dir=MEMORY) as pond:
        indexes = draw_indexes(pond, draw)
    with millpond.open(copy.checkpoint, replica_dir=MEMORY, indexes=indexes) as pond:
        for name, these in indexes.items():
            ask(pond, name, examples(40, 10))
            first_rows(pond, name, these, draw, examples(40, 10))


@pytest.mark.parametrize("name", TYPES)
def test_values_of_every_type_are_found(types_pond: Path, name: str) -> None:
    indexes = {name: [("k",), ("n",), ("again", "n"), ("n", "k")]}
    draw = random.Random(name)
    with millpond.open(types_pond, replica_dir=MEMORY) as pond:
        fit = has_order(pond[name].definition.types["k"])
    with millpond.open(types_pond, replica_dir=MEMORY, indexes=indexes if fit else {name: ["n"]}) as pond:
        assert ask(pond, name, examples(60, 15)) or name in NOT_IN_SQL
        first_rows(pond, name, indexes[name] if fit else [("n",)], draw, examples(60, 15))


VALUES = sorted(p.name for p in (GOLDEN / "values" / "jobs").iterdir())


@pytest.mark.parametrize("name", VALUES)
def test_values_that_cant_be_computed_are_errors_with_an_index_as_without(tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN / "values", tmp_path / "values")
    with millpond.open(tmp_path / "values", replica_dir=MEMORY) as plain:
        indexes = {name: [(c,) for c, t in plain[name].definition.types.items() if has_order(t)]}
        with millpond.open(tmp_path / "values", replica_dir=MEMORY, indexes=indexes) as indexed:
            for (column,) in indexes[name]:
                for rest in (
                    'WHERE "{c}" IS NOT NULL',
                    'ORDER BY "{c}" DESC LIMIT 1',
                    'ORDER BY "{c}" LIMIT 1',
                    'WHERE "{c}" >= "{c}"',
                ):
                    text = f'SELECT "{column}" FROM "{name}" {rest.format(c=column)}'
                    assert outcome(indexed, text) == outcome(plain, text), text


def outcome(pond: millpond.Pond, text: str) -> Any:
    try:
        return sorted(texts_of(pond.sql(text).to_arrow()))
    except MillpondError as error:
        return error.condition


def test_rows_with_long_keys_are_found_by_value(tmp_path: Path) -> None:
    draw, written = random.Random(7), WrittenCheckpoint(tmp_path / "written")
    keys = [c * n for n in range(470, 530, 3) for c in "az"] + [f"{'z' * 500}{n}" for n in range(20)] + ["", "a"]
    for _ in range(3):  # rows that change, go and come again
        changes = [(key, None if draw.random() < 0.1 else draw.randrange(20)) for key in draw.sample(keys, len(keys) * 2 // 3)]
        written.plan(changes, snapshot=False)
        written.commit()
    indexes = [("v",), ("v", "k"), ("k", "v")]
    name = f"{written.path.name}.aggregate_0"
    with millpond.open(written.path, replica_dir=MEMORY, indexes={name: indexes}) as pond:
        assert ask(pond, name, examples(120, 30))
        first_rows(pond, name, indexes, draw, examples(60, 15))


def first_rows(pond: millpond.Pond, name: str, indexes: list[tuple[str, ...]], draw: random.Random, count: int) -> None:
    """The first rows by the columns of an index have the same values as DuckDB's; of equal ones, SQL may choose any."""
    with rows_in_duckdb(pond[name]) as found:
        if found is None:
            return
        plain, every = found
        conditions = Statements(name, every, seed=draw.randrange(1 << 20))
        for _ in range(count):
            index, values = draw.choice(indexes), list[Any]()
            where = f" WHERE {conditions.condition('t', values)}" if draw.random() < 0.5 else ""
            nulls = draw.choice(("", "", " NULLS FIRST", " NULLS LAST"))
            direction = draw.choice((" DESC", ""))
            order = ", ".join(f't."{c}"{direction}{nulls}' for c in index[: draw.randrange(1, len(index) + 1)])
            some = ", ".join(f't."{c}"' for c in index)
            text = f'SELECT {some} FROM "{name}" t{where} ORDER BY {order} LIMIT {draw.randrange(1, 30)}'
            try:
                expected = answer_of(plain, text, values)
            except duckdb.Error:  # it compares other types than those of its own values
                continue
            answer = pond.sql(text, values).to_arrow()
            by = [c for c in index if f't."{c}"' in order]
            assert texts_of(answer.select(by)) == texts_of(expected.select(by)), (text, values)
            kept = set(texts_of(answer_of(plain, f'SELECT {some} FROM "{name}" t{where}', values)))
            assert set(texts_of(answer)) <= kept, (text, values)


def test_an_index_is_used_where_it_leaves_few_rows(tmp_path: Path) -> None:
    written = WrittenCheckpoint(tmp_path / "written")
    written.plan([(f"k{n:05d}", n % 5000) for n in range(30_000)], snapshot=False)
    written.commit()
    with millpond.open(written.path, replica_dir=MEMORY) as pond:
        (name,) = pond.tables()
        key, value = pond[name].columns
    with millpond.open(written.path, replica_dir=MEMORY, indexes={name: [value]}) as pond:

        def read(text: str) -> tuple[str, int, int]:
            answer = pond.sql(text.format(t=f'"{name}"', v=f'"{value}"', k=f'"{key}"'))
            (one,) = answer.reads
            return one.how, one.rows, len(answer.rows())

        how, rows, found = read("SELECT * FROM {t} WHERE {v} = 17")
        assert (how, rows, found) == ("index by " + value, 6, 6)
        assert read("SELECT * FROM {t} WHERE {v} >= 4990")[:2] == ("index by " + value, 60)
        how, rows, found = read("SELECT * FROM {t} ORDER BY {v} DESC LIMIT 10")
        assert how == f"index by {value} against its order until LIMIT"
        assert (rows, found) == (10, 10)
        how, rows, found = read("SELECT * FROM {t} ORDER BY {v} LIMIT 10")
        assert how == f"index by {value} in its order until LIMIT"
        assert (rows, found) == (10, 10)
        assert read("SELECT * FROM {t} WHERE {v} > 100")[0] == "scan"  # most rows
        assert read("SELECT * FROM {t} WHERE {k} LIKE '%1' ORDER BY {v} LIMIT 3")[2] == 3
        with millpond.open(written.path, replica_dir=MEMORY, indexes={name: [value, (key, value)]}) as both:
            (one,) = both.sql(f'SELECT * FROM "{name}" WHERE "{key}" = \'k00017\' ORDER BY "{value}" LIMIT 3').reads
            assert (one.how, one.rows) == (f"index by {key}, {value} in its order until LIMIT", 1)
        plan = pond.sql(f'EXPLAIN SELECT * FROM "{name}" WHERE "{value}" = 17').rows()[0]["plan"]
        assert f"index by {value}" in plan

"""LIMIT, alone and after ORDER BY of key columns, ends the read of the replica; the rows stay those that DuckDB gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.schema.types import Field, atomic
from spark_files.checkpoint import WrittenCheckpoint
from sql.statements import texts_of
from suite.sizes import a_few, examples

duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")
TABLE = "job.aggregate_0"
ROWS = 30_000


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[millpond.Pond]:
    """A table of 30,000 keys, one of which is NULL."""
    folder = tmp_path_factory.mktemp("limit")
    job = WrittenCheckpoint(folder / "job")
    rows: list[tuple[str | None, int]] = [(f"key-{n:06}", n) for n in range(ROWS - 1)]
    job.plan([*rows, (None, -1)], snapshot=False)
    job.commit()
    with millpond.open(job.path, replica_dir=folder / "home") as opened:
        yield opened


@pytest.mark.parametrize(
    ("statement", "expected", "read"),
    [
        ("SELECT k, v FROM {t} LIMIT 7", None, 7),
        ("SELECT * FROM {t} LIMIT 5 OFFSET 4", None, 9),
        ("SELECT v FROM {t} ORDER BY k LIMIT 3", [0, 1, 2], 3),
        ("SELECT v FROM {t} ORDER BY k NULLS FIRST LIMIT 3", [-1, 0, 1], 3),
        ("SELECT v FROM {t} ORDER BY k DESC LIMIT 3", [ROWS - 2, ROWS - 3, ROWS - 4], 3),
        ("SELECT v FROM {t} ORDER BY k DESC NULLS FIRST LIMIT 2", [-1, ROWS - 2], ROWS),
        ("SELECT t.v + 0 AS w FROM {t} t ORDER BY t.k LIMIT 2 OFFSET 10", [10, 11], 12),
        ("SELECT v FROM {t} WHERE k > 'key-000100' ORDER BY k LIMIT 2", [101, 102], 3),
        ("SELECT v FROM {t} WHERE k < 'key-000100' ORDER BY k DESC LIMIT 2", [99, 98], 3),
        ("SELECT v FROM {t} WHERE v % 2 = 1 ORDER BY k LIMIT 2", [1, 3], 10),
        ("SELECT v FROM {t} WHERE length(k) = 10 ORDER BY k DESC LIMIT ?", [ROWS - 2, ROWS - 3], 2),
        ("SELECT v FROM {t} WHERE k IN ('key-000007', 'key-000003') ORDER BY k LIMIT 1", [3], 2),
        ("SELECT v AS k, k AS v FROM {t} ORDER BY k LIMIT 1", [-1], ROWS),
        ("SELECT v FROM {t} ORDER BY v LIMIT 1", [-1], ROWS),
        ("SELECT v FROM {t} ORDER BY k, v LIMIT 1", [0], ROWS),
        ("SELECT v FROM {t} ORDER BY lower(k) LIMIT 1", [0], ROWS),
        ("SELECT v FROM {t} ORDER BY k LIMIT 10001", list(range(10_001)), ROWS),
        ("SELECT DISTINCT v FROM {t} ORDER BY v LIMIT 1", [-1], ROWS),
        ("SELECT count(*) AS v FROM {t} LIMIT 1", [ROWS], ROWS),
        ("SELECT v FROM {t} ORDER BY k LIMIT 0", [], 0),
    ],
)
def test_only_as_many_rows_are_read_as_needed(pond: millpond.Pond, statement: str, expected: list[int] | None, read: int) -> None:
    limits = millpond.SqlLimits(cache_bytes=0)
    text = statement.format(t=f'"{TABLE}"')
    answer = pond.sql(text, [2] if "?" in text else None, limits=limits)
    if expected is not None:
        assert [row[0] for row in answer.values()] == expected
    assert sum(each.rows for each in answer.reads) <= read
    assert read < ROWS or sum(each.rows for each in answer.reads) == ROWS


def test_explain_says_so(pond: millpond.Pond) -> None:
    def how(statement: str) -> str:
        return pond.sql("EXPLAIN " + statement.format(t=f'"{TABLE}"')).rows()[0]["plan"].splitlines()[0]

    assert how("SELECT v FROM {t} ORDER BY k LIMIT 3") == f"{TABLE}: scan in key order until LIMIT, columns v"
    assert how("SELECT v FROM {t} WHERE k > 'a' ORDER BY k DESC LIMIT 3").startswith(f"{TABLE}: range by k against key order until")
    assert how("SELECT v FROM {t} LIMIT 3") == f"{TABLE}: scan until LIMIT, columns v"
    assert how("SELECT v FROM {t} ORDER BY v LIMIT 3") == f"{TABLE}: scan, columns v"


KEY = (Field("a", atomic("string")), Field("b", atomic("integer")), Field("c", atomic("date")))


@pytest.mark.parametrize("nulls", a_few([((),), (("c",),), (("a", "b", "c"),)], 1))
def test_random_orders_of_three_key_columns_equal_duckdbs(tmp_path: Path, nulls: tuple[str, ...]) -> None:
    draw, fits = random.Random(len(nulls)), 0
    job = WrittenCheckpoint(tmp_path / "job", key=KEY)

    def some(name: str, values: list[Any]) -> Any:
        return None if name in nulls and draw.random() < 0.2 else draw.choice(values)

    keys = {(some("a", ["", "x", "y", "yy"]), some("b", [-2, 0, 1, 300]), some("c", [-1, 0, 1, 2])) for _ in range(60)}
    job.plan([(key, n) for n, key in enumerate(keys)], snapshot=False)
    job.commit()
    with millpond.open(job.path, replica_dir=tmp_path / "home") as pond, duckdb.connect() as plain:
        every = pond[TABLE].to_arrow().replace_schema_metadata(None)
        plain.register("every", every)
        plain.execute(f'CREATE TABLE "{TABLE}" AS SELECT * FROM every').fetchall()
        for _ in range(examples(400, 100)):
            text, values = order_statement(draw, TABLE, ("a", "b", "c"), every)
            expected = plain.cursor().execute(text, values).fetchall()
            answer = pond.sql(text, values, limits=millpond.SqlLimits(cache_bytes=0))
            assert answer.values() == expected, text
            fits += any("key order" in read.how for read in answer.reads)
    assert fits > 20


def test_random_orders_equal_duckdbs(types_pond: Path, door_home: Path) -> None:
    """Of every type of key."""
    draw, fits = random.Random(11), 0
    with millpond.open(types_pond, replica_dir=door_home) as pond, duckdb.connect() as plain:
        plain.execute("SET GLOBAL TimeZone = 'UTC'")
        for name in pond.tables():
            try:
                every = pond[name].to_arrow().replace_schema_metadata(None)
                every.validate(full=True)
                plain.register("every", every)
                plain.execute(f'CREATE OR REPLACE TABLE "{name}" AS SELECT * FROM every').fetchall()
            except (millpond.MillpondError, pa.ArrowInvalid, duckdb.Error):
                continue
            for _ in range(examples(24, 6)):
                try:
                    text, values = order_statement(draw, name, pond[name].key_order, every)
                except (ValueError, OverflowError):
                    continue  # a value that Python hasn't
                try:
                    expected = plain.cursor().sql(text, params=values).to_arrow_table()
                except duckdb.Error:
                    continue  # a value that can't be a parameter
                answer = pond.sql(text, values)
                assert texts_of(answer.to_arrow()) == texts_of(expected), text
                fits += any("key order" in read.how for read in answer.reads)
    assert fits > 20


def order_statement(draw: random.Random, name: str, keys: tuple[str, ...], rows: Any) -> tuple[str, list[Any]]:
    """A statement in the order of some key columns, all of which it shows: then one answer is right."""
    shown = ", ".join(f'"{key}"' for key in keys)
    direction = draw.choice(("", "DESC", "ASC NULLS FIRST", "DESC NULLS LAST", "DESC NULLS FIRST"))
    first = draw.randrange(len(keys)) if draw.random() < 0.3 else 0  # with the columns before it given, it decides
    order = ", ".join(f'"{key}" {direction}' for key in keys[first:])
    where, values = "", list[Any]()
    if first:
        row = {key: draw.choice(rows[key]).as_py() for key in keys[:first]}
        conditions = " AND ".join(f'"{key}" IS NOT DISTINCT FROM ?' if v is None else f'"{key}" = ?' for key, v in row.items())
        return f'SELECT {shown} FROM "{name}" WHERE {conditions} ORDER BY {order} LIMIT {draw.randrange(6)}', list(row.values())
    if draw.random() < 0.5 and len(rows):
        where, value = f' WHERE "{keys[0]}" {draw.choice((">=", "<=", "=", "<>"))} ?', draw.choice(rows[keys[0]])
        try:
            values.append(value.as_py())
        except (ValueError, OverflowError):
            where = ""
    limit = f"LIMIT {draw.randrange(6)}" + (f" OFFSET {draw.randrange(4)}" if draw.random() < 0.4 else "")
    return f'SELECT {shown} FROM "{name}"{where} ORDER BY {order} {limit}', values

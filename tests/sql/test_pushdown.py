"""Statements over tables, whose scans read only what is needed, equal DuckDB's answers over all rows of the same tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.catalogue import create_beside
from millpond.errors import MillpondError, RequestError
from millpond.schema.definition.table import parse_definition
from spark_files.golden import GOLDEN, TYPES
from sql.statements import Statements, answer_of, rows_in_duckdb, texts_of
from suite.sizes import a_few, examples

duckdb, pa = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow")
CELLS = [str(p.parent.relative_to(GOLDEN)) for p in sorted([*GOLDEN.glob("*/state.json"), *GOLDEN.glob("spark-4.3/*/state.json")])]
NOT_IN_SQL = ("string",)  # it has texts that aren't UTF-8


@pytest.mark.parametrize("cell", a_few(CELLS, 3))
def test_answers_equal_those_over_all_rows(
    golden: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # whether a row has expired depends on it
    copy = golden(cell)
    if (copy.source / "definition.json").exists():
        create_beside(copy.checkpoint).write_definition(parse_definition(copy.read("definition")))
    with millpond.open(copy.checkpoint, replica_dir=tmp_path / "home") as pond:
        assert sum(ask(pond, name, examples(60, 15)) for name in pond.tables())


@pytest.mark.parametrize("name", a_few(TYPES, 4))
def test_keys_of_every_type_are_found(types_pond: Path, door_home: Path, name: str) -> None:
    with millpond.open(types_pond, replica_dir=door_home) as pond:
        assert ask(pond, name, examples(100, 25)) or name in NOT_IN_SQL


def test_a_text_that_isnt_utf8_is_an_error_where_it_is_needed(types_pond: Path, door_home: Path) -> None:
    with millpond.open(types_pond, replica_dir=door_home) as pond:
        with pytest.raises(RequestError) as refused:
            pond.sql("SELECT k FROM string")
        assert refused.value.condition == "WRONG_TYPE"
        texts = [row["k"] for row in pond["string"].scan() if row["k"] and row["k"].isprintable()]
        for text in texts:
            answer = pond.sql("SELECT k, n FROM string WHERE k = ?", [text])
            assert answer.rows() == [{"k": text, "n": pond["string"].get(k=text)["n"]}]
            assert [(read.how, read.rows) for read in answer.reads] == [("get by k", 1)]
        assert texts


def ask(pond: millpond.Pond, name: str, count: int) -> int:
    """Ask random statements on a table; returns how many were answered."""
    asked = 0
    with rows_in_duckdb(pond[name]) as found:
        if found is None:
            return 0
        plain, every = found
        draw = Statements(name, every, seed=len(name))
        for _ in range(count):
            text, values = draw.next()
            try:
                expected = answer_of(plain, text, values)
            except duckdb.Error as refused:
                with pytest.raises(MillpondError) as ours:
                    pond.sql(text, values)
                assert ours.value.condition in ("INVALID_STATEMENT", "WRONG_TYPE"), (refused, ours.value)
                continue
            answer = pond.sql(text, values)
            assert sorted(texts_of(answer.to_arrow())) == sorted(texts_of(expected)), (text, values)
            assert answer.to_arrow().schema.types == expected.schema.types
            asked += 1
    return asked

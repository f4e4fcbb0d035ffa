"""What a newcomer tries: a bare key, printing objects, data frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from millpond.tables.answer import Row, Rows
from millpond.tables.forms.html import TABLES, html_tables
from oracles.arrow_values import shown
from spark_files.checkpoint import WrittenCheckpoint

SCRIPT = "<script>&"


@pytest.fixture(scope="module")
def pond(types_pond: Path, door_home: Path) -> Iterator[millpond.Pond]:
    with millpond.open(types_pond, replica_dir=door_home, wait_seconds=60) as opened:
        yield opened


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[millpond.Table]:
    """A table with a key of two columns."""
    from millpond.schema.types import Field, atomic

    job = WrittenCheckpoint(tmp_path / "job", key=(Field("a", atomic("string")), Field("b", atomic("long"))))
    job.plan([((SCRIPT, 1), 5)], snapshot=False)
    job.commit()
    with millpond.open(job.path, replica_dir=tmp_path / "home") as opened:
        yield opened["job.aggregate_0"]


def _condition(ask: Any) -> str:
    with pytest.raises(MillpondError) as refused:
        ask()
    return refused.value.condition


# ---------------------------------------------------------------- keys


def test_the_value_of_a_key_of_one_column_needs_no_name(pond: millpond.Pond, type_cases: ModuleType) -> None:
    for name in type_cases.CASES:
        table = pond[name]
        for row in table.scan():
            if name == "map" or row["k"] is None or isinstance(row["k"], dict | float):
                continue
            bare, named = table.get(row["k"]), table.get(k=row["k"])
            assert bare == named == row, name
            assert table.get_all([row["k"]]) == [row]
            assert (table.scan(row["k"]), table.count(row["k"])) == ([row], 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.get("x"),
        lambda t: t.get("x", b=1),
        lambda t: t.get(5),
        lambda t: t.scan("x"),
        lambda t: t.count("x"),
        lambda t: t.range("x"),
        lambda t: t.windows("x"),
        lambda t: t.to_arrow("x"),
        lambda t: t.history("x"),
        lambda t: t.get_all(["x"]),
        lambda t: t.find_event(offset="a:0:1", key="x"),
    ],
)
def test_a_bare_value_that_may_be_of_several_columns_is_refused_by_name(pairs: millpond.Table, ask: Any) -> None:
    with pytest.raises(MillpondError) as refused:
        ask(pairs)
    assert refused.value.condition == "KEY_MISSING"
    assert "(a=…, b=…)" in refused.value.hint


@pytest.mark.parametrize("keys", ["ab", b"ab", {"k": "a"}])
def test_several_keys_are_no_single_one(pond: millpond.Pond, keys: Any) -> None:
    """Otherwise the characters of a text would be keys."""
    assert _condition(lambda: pond["string"].get_all(keys)) == "INVALID_REQUEST"


# ---------------------------------------------------------------- texts


def test_objects_name_themselves(pond: millpond.Pond, pairs: millpond.Table) -> None:
    assert "long" in repr(pond)
    assert "types" in repr(pond)
    assert repr(pairs) == "<Table job.aggregate_0: a string (key), b bigint (key), v bigint>"
    row = pairs.get(a=SCRIPT, b=1)
    assert repr(row) == f"Row({{'a': '{SCRIPT}', 'b': 1, 'v': 5}}, batch=0)"
    assert str(row) == str(dict(row))
    assert repr(pairs.get(a="", b=1)) == "Row(not there, batch=0)"
    assert repr(Row((), row.cut, evicted=True)) == "Row(expired, batch=0)"
    assert repr(pairs.scan()) == f"Rows([\n  {dict(row)},\n], batch=0)"
    many = Rows([row] * 50, row.cut, more=True)
    assert repr(many).endswith("], batch=0, more=True, 30 more here)")
    assert repr(many).count(SCRIPT) == 20


def test_a_notebook_shows_rows_and_no_ones_script(pond: millpond.Pond, pairs: millpond.Table) -> None:
    for one in (pairs, pairs.scan(), pairs.get(a=SCRIPT, b=1)):
        page = one._repr_html_()
        assert SCRIPT not in page
        assert "&lt;script&gt;&amp;" in page
        assert "<th>v</th>" in page
        assert "batch 0" in page
    assert "not there" in pairs.get(a="", b=1)._repr_html_()
    assert "<td>long</td>" in pond._repr_html_()
    assert "<i>NULL</i>" in pond["long"]._repr_html_()


def test_a_notebook_shows_the_first_of_many_tables() -> None:
    page = html_tables(((f"t{number}", SCRIPT, SCRIPT) for number in range(1234)), SCRIPT)
    assert page.count("<tr>") == TABLES + 1
    assert f"and {1234 - TABLES:,} tables more" in page
    assert SCRIPT not in page
    assert "more" not in html_tables([("t", "", "")], "uri")


def test_a_notebook_shows_why_rows_cant_be_read(tmp_path: Path) -> None:
    job = WrittenCheckpoint(tmp_path / "job")
    job.plan([("a", 1)], snapshot=False)
    job.commit()
    with millpond.open(job.path, replica_dir=tmp_path / "home") as opened:
        table = opened["job.aggregate_0"]
    assert "REPLICA_CLOSED" in table._repr_html_()
    assert "k string (key)" in table._repr_html_()


def test_what_is_imported_later_is_listed() -> None:
    assert {"start", "connect", "publish", "open", *millpond.__all__} <= set(dir(millpond))


# ---------------------------------------------------------------- data frames


def test_pandas_and_polars_have_the_values_of_arrow(pond: millpond.Pond, type_cases: ModuleType) -> None:
    pytest.importorskip("pandas")
    for name in type_cases.CASES:
        if name == "string":  # has bytes that aren't UTF-8
            continue
        table = pond[name]
        whole = table.to_arrow()
        pa = pytest.importorskip("pyarrow")
        assert shown(pa.Table.from_pandas(table.to_pandas())) == shown(whole), name
        assert shown(pa.table(table)) == shown(whole)
    key = pond["long"].scan()[-1]["k"]
    assert list(pond["long"].to_pandas(key)["k"]) == [key]


def test_polars_has_the_values_of_arrow(pond: millpond.Pond, type_cases: ModuleType) -> None:
    polars = pytest.importorskip("polars")
    for name in type_cases.CASES:
        table = pond[name]
        if name == "string":
            assert _condition(table.to_polars) == "WRONG_TYPE"
            continue
        frame = table.to_polars()
        assert frame.height == table.count()
        if name not in ("map", "day_time"):
            assert shown(frame.to_arrow().cast(table.to_arrow().schema)) == shown(table.to_arrow()), name
        assert polars.DataFrame(table).equals(frame)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_library_that_is_missing_is_named(pond: millpond.Pond, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    asks = {"pandas": pond["long"].to_pandas, "polars": pond["long"].to_polars, "pyarrow": pond["long"].__arrow_c_stream__}
    with pytest.raises(MillpondError) as refused:
        asks[library]()
    assert refused.value.condition == "LIBRARY_MISSING"
    assert f"millpond[{'arrow' if library == 'pyarrow' else library}]" in refused.value.hint

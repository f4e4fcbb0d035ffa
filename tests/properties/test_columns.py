"""Columns of many rows have the values of each row, for all types; damaged rows never give another value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.checkpoint.rows.columns import Column, Spans, read_columns, span
from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.errors import CheckpointError, RequestError
from millpond.schema.convert import to_python
from millpond.schema.types import Field, SparkType, atomic, struct_of
from millpond.tables.forms.arrow import arrow_type, column_array, python_array
from millpond.tables.forms.arrow_errors import Failures
from properties.test_unsaferow import TYPES, values
from suite.sizes import examples

pa = pytest.importorskip("pyarrow")
Rows = tuple[tuple[Field, ...], list[tuple[Any, ...]]]


def has_arrow_form(type_: SparkType) -> bool:
    try:
        arrow_type(pa, type_)
    except RequestError:
        return False
    return True


def tables_of(types: list[SparkType]) -> st.SearchStrategy[Rows]:
    fields = tuple(Field(f"c{i}", t) for i, t in enumerate(types))
    return st.tuples(st.just(fields), st.lists(st.tuples(*(values(t) for t in types)), max_size=12))


TABLES = st.lists(TYPES.filter(has_arrow_form), max_size=5).flatmap(tables_of)


def row_by_row(type_: SparkType, stored: list[Any]) -> Any:
    convert = to_python(type_)
    return python_array(pa, type_, [None if v is None else convert(v) for v in stored], Failures(), "c")


def array_of(column: Column) -> Any:
    return column_array(pa, column, failures=Failures(), name="c")


def scattered(rows: list[bytes], gaps: list[bytes]) -> Spans:
    """The rows, with meaningless bytes between them."""
    spans = span([part for row, gap in zip(rows, gaps, strict=True) for part in (gap, row)])
    return Spans(spans.data, spans.begin[1::2], spans.size[1::2])


@pytest.mark.usefixtures("either_way")
@given(TABLES, st.data())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_hold_what_each_row_holds(table: Rows, data: st.DataObject) -> None:
    fields, rows = table
    gaps = data.draw(st.lists(st.binary(max_size=9), min_size=len(rows), max_size=len(rows)))
    encode = encoder(fields)
    columns = read_columns(fields, scattered([encode(row) for row in rows], gaps))
    for place, field in enumerate(fields):
        expected = row_by_row(field.type, [row[place] for row in rows])
        found = array_of(columns[place])
        found.validate(full=True)
        assert found.type == expected.type
        assert found.equals(expected), (found, expected)


@pytest.mark.usefixtures("either_way")
@given(TABLES, st.data())
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_row_gives_a_typed_error_or_what_the_row_decoder_gives(table: Rows, data: st.DataObject) -> None:
    fields, rows = table
    encode, decode = encoder(fields), decoder(fields)
    damaged = []
    for row in rows:
        content = bytearray(encode(row))
        for _ in range(data.draw(st.integers(0, 2))):
            if content:
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        damaged.append(bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content))
    try:
        columns = read_columns(fields, span(damaged))
    except CheckpointError as error:
        assert error.condition == "CORRUPT_FILE"
        return
    decoded = [decode(row) for row in damaged]
    for place, field in enumerate(fields):
        expected = row_by_row(field.type, [row[place] for row in decoded])
        found = array_of(columns[place])
        assert str(found) == str(expected) or found.equals(expected)


def test_members_of_a_null_struct_are_null() -> None:
    inner = struct_of((Field("a", atomic("string")), Field("b", struct_of((Field("c", atomic("decimal(38,2)")),)))))
    fields = (Field("s", inner),)
    rows = [encoder(fields)(row) for row in [(None,), (("x", None),), (("", (None,)),), (None,)]]
    array = array_of(read_columns(fields, span(rows))[0])
    assert array.to_pylist() == [None, {"a": "x", "b": None}, {"a": "", "b": {"c": None}}, None]
    nothing = array_of(read_columns(fields, span([rows[0], rows[0]]))[0])
    assert nothing.to_pylist() == [None, None]


@pytest.mark.parametrize("position", [0, 31, 62, 63, 64, 65, 129])
def test_each_of_many_columns_has_its_null_bit(position: int) -> None:
    fields = tuple(Field(f"c{i}", atomic("long")) for i in range(130))
    rows = [tuple(None if i == position else i for i in range(130)), tuple(range(130))]
    columns = read_columns(fields, span(map(encoder(fields), rows)))
    assert [array_of(columns[i]).to_pylist() for i in range(130)] == [[row[i] for row in rows] for i in range(130)]

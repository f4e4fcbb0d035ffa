"""Columns of many rows hold what each row holds, whatever the types, and damaged rows never give another value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.checkpoint.columns import Spans, read_columns, span
from millpond.checkpoint.unsaferow import decoder, encoder
from millpond.errors import CheckpointError, RequestError
from millpond.schema.convert import to_python
from millpond.schema.types import Field, SparkType, atomic, struct_of
from millpond.tables.arrow import arrow_type, column_array, python_array
from properties.test_unsaferow import TYPES, values

pa = pytest.importorskip("pyarrow")
Rows = tuple[tuple[Field, ...], list[tuple[Any, ...]]]
NUMBERS = {"date": pa.int32(), "timestamp": pa.int64(), "timestamp_ntz": pa.int64(), "day_time_interval": pa.int64()}


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


def numbered(type_: SparkType) -> SparkType:
    """The type with times as whole numbers, for values that Python has no times for."""
    if type_.kind in NUMBERS:
        return atomic("integer" if type_.kind == "date" else "long")
    if type_.kind == "struct":
        return struct_of(tuple(Field(f.name, numbered(f.type)) for f in type_.fields))
    if type_.kind == "array":
        assert type_.element is not None
        return SparkType("array", "array", element=numbered(type_.element))
    if type_.kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        return SparkType("map", "map", key=numbered(type_.key), value=numbered(type_.value))
    return type_


def row_by_row(type_: SparkType, stored: list[Any]) -> Any:
    convert = to_python(type_)
    return python_array(pa, type_, [None if v is None else convert(v) for v in stored])


def scattered(rows: list[bytes], gaps: list[bytes]) -> Spans:
    """The rows with bytes between them that mean nothing."""
    spans = span([part for row, gap in zip(rows, gaps, strict=True) for part in (gap, row)])
    return Spans(spans.data, spans.begin[1::2], spans.size[1::2])


@pytest.mark.usefixtures("either_way")
@given(TABLES, st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_hold_what_each_row_holds(table: Rows, data: st.DataObject) -> None:
    fields, rows = table
    gaps = data.draw(st.lists(st.binary(max_size=9), min_size=len(rows), max_size=len(rows)))
    # As numbers all times can be compared; as themselves those that Python has.
    for as_type in (numbered, lambda type_: type_):
        typed = tuple(Field(f.name, as_type(f.type)) for f in fields)
        encode = encoder(typed)
        columns = read_columns(typed, scattered([encode(row) for row in rows], gaps))
        for place, field in enumerate(typed):
            try:
                expected = row_by_row(field.type, [row[place] for row in rows])
                found = column_array(pa, columns[place])
            except RequestError:
                continue  # a time that Python, or pyarrow from Python, doesn't have
            found.validate(full=True)
            assert found.type == expected.type
            assert found.equals(expected), (found, expected)


@pytest.mark.usefixtures("either_way")
@given(TABLES, st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_row_gives_a_typed_error_or_what_the_row_decoder_gives(table: Rows, data: st.DataObject) -> None:
    fields, rows = table
    fields = tuple(Field(f.name, numbered(f.type)) for f in fields)
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
        try:
            expected = row_by_row(field.type, [row[place] for row in decoded])
            found = column_array(pa, columns[place])
        except RequestError:
            continue  # such as decimals of too many digits inside of lists
        assert str(found) == str(expected) or found.equals(expected)


def test_members_of_a_null_struct_are_null() -> None:
    inner = struct_of((Field("a", atomic("string")), Field("b", struct_of((Field("c", atomic("decimal(38,2)")),)))))
    fields = (Field("s", inner),)
    rows = [encoder(fields)(row) for row in [(None,), (("x", None),), (("", (None,)),), (None,)]]
    array = column_array(pa, read_columns(fields, span(rows))[0])
    assert array.to_pylist() == [None, {"a": "x", "b": None}, {"a": "", "b": {"c": None}}, None]
    nothing = column_array(pa, read_columns(fields, span([rows[0], rows[0]]))[0])
    assert nothing.to_pylist() == [None, None]


@pytest.mark.parametrize("position", [0, 31, 62, 63, 64, 65, 129])
def test_each_of_many_columns_has_its_null_bit(position: int) -> None:
    fields = tuple(Field(f"c{i}", atomic("long")) for i in range(130))
    rows = [tuple(None if i == position else i for i in range(130)), tuple(range(130))]
    columns = read_columns(fields, span(map(encoder(fields), rows)))
    assert [column_array(pa, columns[i]).to_pylist() for i in range(130)] == [[row[i] for row in rows] for i in range(130)]

"""Parameters of statements and patterns of the catalogue, without a server."""

from __future__ import annotations

import datetime as dt
import random
import re
from typing import Any

import pytest

from millpond.errors import RequestError
from suite.sizes import examples

pa = pytest.importorskip("pyarrow")
pytest.importorskip("google.protobuf")

from millpond.serve.flight.catalogue import is_like  # noqa: E402
from millpond.serve.sql.parameters import read_parameters  # noqa: E402


def stream(column: Any, name: str = "a") -> bytes:
    batch, sink = pa.record_batch({name: column}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as written:
        written.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def raw(type_: Any, number: int) -> Any:
    """An array of one value, whatever its number means in the type."""
    whole = pa.int32() if type_.bit_width == 32 else pa.int64()
    return pa.Array.from_buffers(type_, 1, [None, pa.array([number], whole).buffers()[1]])


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+05:30", "Nowhere/Here", "/etc/passwd", "America", "+99:99"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_with_a_zone_is_its_moment(zone: str, unit: str) -> None:
    micros = random.Random(1).choice([1_793_925_000_000_000, 1_793_921_400_000_000])  # the hour that Berlin has twice
    number = micros * 1000 // {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[unit]
    (found,) = read_parameters(stream(raw(pa.timestamp(unit, zone), number)), "SELECT ?")  # type: ignore[misc]
    assert found == dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


@pytest.mark.parametrize(
    "column",
    [
        raw(pa.time32("s"), 2**30),
        raw(pa.time32("s"), -1),
        raw(pa.time64("us"), 86_400_000_000),
        raw(pa.time64("ns"), 1),
        raw(pa.timestamp("s"), 2**60),
        raw(pa.timestamp("ns", "Nowhere/Here"), 1),
        raw(pa.date32(), 2**30),
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([[1]])),
        pa.array([[5]], pa.list_(pa.timestamp("us", "Nowhere/Here"))),
        pa.array([1.5], pa.float16()),
    ],
    ids=lambda column: str(column.type),
)
def test_a_value_without_an_exact_form_is_refused(column: Any) -> None:
    with pytest.raises(RequestError, match="WRONG_TYPE"):
        read_parameters(stream(column), "SELECT ?")


@pytest.mark.parametrize(
    ("statement", "is_named"),
    [
        ("SELECT $a", True),
        ("SELECT 'it''s', $a", True),
        ("SELECT ?", False),
        ("SELECT '$a', ?", False),
        ("SELECT 'it''s $a', ?", False),
        ('SELECT ? AS "$a"', False),
        ("SELECT ? -- $a", False),
        ("SELECT /* $a\n$a */ ?", False),
        ("SELECT $x$ $a $x$, ?", False),
        ("SELECT $$ $a $$, $a", True),
        ("SELECT $1", False),
    ],
)
def test_names_count_where_the_statement_has_them(statement: str, is_named: bool) -> None:
    assert read_parameters(stream(pa.array([5])), statement) == ({"a": 5} if is_named else [5])


def test_patterns_are_those_of_like() -> None:
    draw = random.Random(7)
    for _ in range(examples(20_000, 3_000)):
        value = "".join(draw.choices("ab%_\n", k=draw.randrange(7)))
        pattern = "".join(draw.choices("ab%%__\n", k=draw.randrange(8)))
        shape = "".join({"%": ".*", "_": "."}.get(each, re.escape(each)) for each in pattern)
        assert is_like(value, pattern) == bool(re.fullmatch(shape, value, re.DOTALL)), (value, pattern)


@pytest.mark.parametrize("part", ["%", "%a", "a%", "_%", "%_"])
def test_a_long_pattern_takes_no_time(part: str) -> None:
    name = "a" * 300
    assert is_like(name, part * 2_000_000) == (part == "%")
    assert is_like(name, part * 290)
    assert not is_like(name + "b", "%" + "_%" * 150 + "c")

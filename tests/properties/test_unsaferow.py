"""A row, written as Spark writes it, reads as the same row; damaged bytes give a typed error or a row."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.errors import CheckpointError
from millpond.schema.types import Field, SparkType, atomic, struct_of
from suite.sizes import examples

INTS = {"byte": 8, "short": 16, "integer": 32, "long": 64, "date": 32, "timestamp": 64, "timestamp_ntz": 64}


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def atomic_types() -> st.SearchStrategy[SparkType]:
    names = [
        *INTS,
        "boolean",
        "float",
        "double",
        "string",
        "binary",
        "interval day to second",
        "interval year to month",
        "interval",
    ]
    decimals = st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda p: p[1] <= p[0])
    return st.one_of(st.sampled_from(names).map(atomic), decimals.map(lambda p: atomic(f"decimal({p[0]},{p[1]})")))


def nested(inner: st.SearchStrategy[SparkType]) -> st.SearchStrategy[SparkType]:
    fields = st.lists(inner, max_size=4).map(lambda ts: struct_of(tuple(Field(f"f{i}", t) for i, t in enumerate(ts))))
    arrays = inner.map(lambda t: SparkType("array", "array", element=t))
    maps = st.tuples(inner, inner).map(lambda t: SparkType("map", "map", key=t[0], value=t[1]))
    return st.one_of(fields, arrays, maps)


TYPES = st.recursive(atomic_types(), nested, max_leaves=5)


def values(type_: SparkType) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), present(type_))


def present(type_: SparkType) -> st.SearchStrategy[Any]:
    kind = type_.kind
    if kind in INTS:
        return st.integers(-(1 << INTS[kind] - 1), (1 << INTS[kind] - 1) - 1)
    if kind == "decimal":
        limit = 10**type_.precision - 1
        return st.integers(-limit, limit).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -type_.scale)))
    if kind == "struct":
        return st.tuples(*(values(f.type) for f in type_.fields))
    if kind == "array":
        assert type_.element is not None
        return st.lists(values(type_.element), max_size=70)
    if kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        return st.lists(st.tuples(present(type_.key), values(type_.value)), max_size=5)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "boolean": st.booleans(),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "string": st.text(max_size=40),
        "binary": st.binary(max_size=40),
        "day_time_interval": st.integers(-(1 << 63), (1 << 63) - 1),
        "year_month_interval": st.integers(-(1 << 31), (1 << 31) - 1),
        "calendar_interval": st.tuples(*(st.integers(-(1 << b - 1), (1 << b - 1) - 1) for b in (32, 32, 64))),
    }
    return simple[kind]


ROWS = st.lists(TYPES, max_size=6).flatmap(
    lambda types: st.tuples(st.just(tuple(Field(f"c{i}", t) for i, t in enumerate(types))), st.tuples(*(values(t) for t in types)))
)


@given(ROWS)
@settings(max_examples=examples(400), deadline=None)
def test_a_row_comes_back_as_it_was_written(row: tuple[tuple[Field, ...], tuple[Any, ...]]) -> None:
    fields, content = row
    assert decoder(fields)(encoder(fields)(content)) == content


def test_more_than_64_columns_use_two_words_of_null_bits() -> None:
    fields = tuple(Field(f"c{i}", atomic("long")) for i in range(130))
    content = tuple(None if i % 3 == 0 else i for i in range(130))
    assert decoder(fields)(encoder(fields)(content)) == content


@given(ROWS, st.data())
@settings(max_examples=examples(600), deadline=None)
def test_damaged_bytes_give_a_typed_error_or_a_row(row: tuple[tuple[Field, ...], tuple[Any, ...]], data: st.DataObject) -> None:
    fields, content = row
    damaged = bytearray(encoder(fields)(content))
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        decoded = decoder(fields)(bytes(damaged))
    except CheckpointError as error:
        assert error.condition == "CORRUPT_FILE"
    else:
        assert len(decoded) == len(fields)

"""Rows in Avro, written as its specification says, can be read; damaged ones give a typed error or a row."""

from __future__ import annotations

import struct
from decimal import Context, Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.checkpoint.rows.avro import avro_decoder
from millpond.checkpoint.rows.write_avro import avro_encoder
from millpond.errors import CheckpointError, RequestError
from millpond.schema.types import Field, SparkType, atomic, struct_of
from suite.sizes import examples

INTS = {"integer": 32, "long": 64, "date": 32, "timestamp": 64, "timestamp_ntz": 64}
NESTED = ("struct", "array", "map")


def atomic_types() -> st.SearchStrategy[SparkType]:
    decimals = st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda p: p[1] <= p[0])
    plain = st.sampled_from([*INTS, "boolean", "float", "double", "string", "binary"]).map(atomic)
    return st.one_of(plain, decimals.map(lambda p: atomic(f"decimal({p[0]},{p[1]})")))


def nested(inner: st.SearchStrategy[SparkType]) -> st.SearchStrategy[SparkType]:
    fields = st.lists(inner, max_size=4).map(lambda ts: struct_of(tuple(Field(f"f{i}", t) for i, t in enumerate(ts))))
    arrays = inner.map(lambda t: SparkType("array", "array", element=t))
    maps = inner.map(lambda t: SparkType("map", "map", key=atomic("string"), value=t))
    return st.one_of(fields, arrays, maps)


TYPES = st.recursive(atomic_types(), nested, max_leaves=5)


def values(type_: SparkType, *, null: bool = True) -> st.SearchStrategy[Any]:
    kind = type_.kind
    found: st.SearchStrategy[Any]
    if kind in INTS:
        found = st.integers(-(1 << INTS[kind] - 1), (1 << INTS[kind] - 1) - 1)
    elif kind == "decimal":
        limit = 10**type_.precision - 1
        found = st.integers(-limit, limit).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -type_.scale)))
    elif kind == "struct":
        found = st.tuples(*(values(f.type) for f in type_.fields))
    elif kind == "array":
        assert type_.element is not None
        found = st.lists(values(type_.element, null=type_.element.kind in NESTED), max_size=6)
    elif kind == "map":
        assert type_.value is not None
        found = st.lists(st.tuples(st.text(max_size=8), values(type_.value, null=type_.value.kind in NESTED)), max_size=4)
    else:
        simple: dict[str, st.SearchStrategy[Any]] = {
            "boolean": st.booleans(),
            "float": st.floats(width=32, allow_nan=False),
            "double": st.floats(allow_nan=False),
            "string": st.text(max_size=20),
            "binary": st.binary(max_size=20),
        }
        found = simple[kind]
    return st.one_of(st.none(), found) if null else found


def rows() -> st.SearchStrategy[tuple[tuple[Field, ...], tuple[Any, ...]]]:
    def row(types: list[SparkType]) -> st.SearchStrategy[Any]:
        fields = tuple(Field(f"c{i}", t) for i, t in enumerate(types))
        return st.tuples(st.just(fields), st.tuples(*(values(t) for t in types)))

    return st.lists(TYPES, max_size=5).flatmap(row)


# ---------------------------------------------------------------- a writer, straight from the specification


def number(value: int) -> bytes:
    zigzag, out = (value << 1) ^ (value >> 63), bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def sized(value: bytes) -> bytes:
    return number(len(value)) + value


def member(type_: SparkType, value: Any, random: Random) -> bytes:
    return number(0) if value is None else number(1) + present(type_, value, random)


def element(type_: SparkType, value: Any, random: Random) -> bytes:
    return (member if type_.kind in NESTED else present)(type_, value, random)


def blocks(items: list[bytes], random: Random) -> bytes:
    """Items as blocks: a writer may end a block anywhere, and may leave out its size."""
    out, at = b"", 0
    while at < len(items):
        count = random.randint(1, len(items) - at)
        block = b"".join(items[at : at + count])
        out += number(-count) + number(len(block)) + block if random.random() < 0.5 else number(count) + block
        at += count
    return out + number(0)


def present(type_: SparkType, value: Any, random: Random) -> bytes:
    kind = type_.kind
    if kind in INTS:
        return number(value)
    if kind == "decimal":
        size = next(n for n in range(1, 17) if 2 ** (8 * n - 1) >= 10**type_.precision)
        return int(value.scaleb(type_.scale, Context(prec=80))).to_bytes(size, "big", signed=True)
    if kind == "struct":
        return b"".join(member(f.type, v, random) for f, v in zip(type_.fields, value, strict=True))
    if kind == "array":
        assert type_.element is not None
        return blocks([element(type_.element, v, random) for v in value], random)
    if kind == "map":
        assert type_.value is not None
        return blocks([sized(k.encode()) + element(type_.value, v, random) for k, v in value], random)
    if kind == "boolean":
        return bytes([value])
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    return sized(value.encode() if kind == "string" else value)


@settings(max_examples=examples(150), deadline=None)
@given(row=rows(), seed=st.integers(0, 1000), before=st.binary(max_size=4))
def test_a_row_is_read_back(row: tuple[tuple[Field, ...], tuple[Any, ...]], seed: int, before: bytes) -> None:
    fields, content = row
    random = Random(seed)
    data = before + b"".join(member(f.type, v, random) for f, v in zip(fields, content, strict=True))
    assert avro_decoder(fields, fields)(data, len(before)) == content


class OneBlock(Random):
    """Chooses what Spark does: one block without its size."""

    def randint(self, a: int, b: int) -> int:
        return b

    def random(self) -> float:
        return 1.0


@settings(max_examples=examples(150), deadline=None)
@given(row=rows())
def test_a_row_is_written_as_spark_writes_it(row: tuple[tuple[Field, ...], tuple[Any, ...]]) -> None:
    fields, content = row
    data = avro_encoder(fields)(content)
    assert data == b"".join(member(f.type, v, OneBlock()) for f, v in zip(fields, content, strict=True))
    assert avro_decoder(fields, fields)(data, 0) == content


@pytest.mark.parametrize("content", [([None],), ([1, None],)])
def test_null_in_an_array_is_refused(content: tuple[Any, ...]) -> None:
    fields = (Field("a", SparkType("array", "array", element=atomic("long"))),)
    with pytest.raises(RequestError) as refused:
        avro_encoder(fields)(content)
    assert refused.value.condition == "WRONG_TYPE"


def test_a_type_that_spark_does_not_write_is_refused() -> None:
    with pytest.raises(CheckpointError) as refused:
        avro_encoder((Field("n", atomic("short")),))
    assert refused.value.condition == "UNSUPPORTED"


@settings(max_examples=examples(150), deadline=None)
@given(row=rows(), seed=st.integers(0, 1_000_000))
def test_a_damaged_row_is_an_error_of_ours_or_a_row(row: tuple[tuple[Field, ...], tuple[Any, ...]], seed: int) -> None:
    fields, content = row
    random = Random(seed)
    data = bytearray(b"".join(member(f.type, v, random) for f, v in zip(fields, content, strict=True)))
    for _ in range(random.randint(1, 3)):
        if data and random.random() < 0.7:
            data[random.randrange(len(data))] = random.randrange(256)
        else:
            del data[random.randrange(len(data) + 1) :]
    try:
        found = avro_decoder(fields, fields)(bytes(data), 0)
    except CheckpointError as error:
        assert error.condition == "CORRUPT_FILE"
    else:
        assert len(found) == len(fields)


def test_a_newer_schema_reads_older_rows_by_name() -> None:
    inner = struct_of((Field("x", atomic("integer")), Field("gone", atomic("string"))))
    older = (Field("n", atomic("integer")), Field("s", inner), Field("f", atomic("float")), Field("removed", atomic("long")))
    newer_inner = struct_of((Field("added", atomic("string")), Field("x", atomic("long"))))
    newer = (Field("f", atomic("double")), Field("n", atomic("double")), Field("s", newer_inner), Field("new", atomic("date")))
    content = (7, (3, "old"), 1.5, 9)
    data = b"".join(member(f.type, v, Random(0)) for f, v in zip(older, content, strict=True))
    assert avro_decoder(older, newer)(data, 0) == (1.5, 7.0, (None, 3), None)


def test_a_type_that_became_narrower_is_refused() -> None:
    with pytest.raises(CheckpointError) as refused:
        avro_decoder((Field("n", atomic("long")),), (Field("n", atomic("integer")),))
    assert refused.value.condition == "UNSUPPORTED"

"""State rows in Avro, which transformWithState writes if its settings say so, to tuples in stored form.

A record has no names and no lengths: only the schema says what follows.  Spark maps its types so:

    member of a struct   a union of NULL and the type: branch 0 or 1 as a number, then the value
    struct, array, map   inside an array or map they are such a union too; other elements and values aren't
    number               zigzag base 128; float, double: little-endian; text, binary: length and bytes
    decimal              big-endian two's complement of as many bytes as its precision may need
    array, map           blocks of a count (negative: a size in bytes follows) and items, ended by count 0; a map's keys are text

Rows name the schema of their writer.  A newer schema reads them by name: new members are NULL, and
numbers are widened.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from millpond.checkpoint.files.codecs import corrupt
from millpond.errors import CheckpointError
from millpond.schema.types import Field, SparkType

Stored = Any
_Read = Callable[[bytes, int], tuple[Stored, int]]
_Resolve = Callable[[Stored], Stored]

LONGS = frozenset({"integer", "long", "date", "timestamp", "timestamp_ntz"})
NESTED = frozenset({"struct", "array", "map"})
_WIDENING = {"integer": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
_EXACT = Context(prec=80)
_MAX_VOIDS = 1_000_000


def avro_decoder(writer: tuple[Field, ...], reader: tuple[Field, ...]) -> Callable[[bytes, int], tuple[Stored, ...]]:
    """A function from (bytes, begin of the record) to a tuple of the reader's columns.

    The record ends with the bytes.

    Raises:  UNSUPPORTED for a type that Spark doesn't write in Avro, or a change of type that it
             doesn't make.
    Raises (the function):  CORRUPT_FILE.
    Source:  SchemaConverters, AvroStateEncoder, Spark 4.3; golden checkpoints.
    """
    members = [_member(f.type) for f in writer]
    resolve = None if writer == reader else _resolve_struct(writer, reader)

    def decode(data: bytes, position: int) -> tuple[Stored, ...]:
        values = []
        try:
            for read in members:
                value, position = read(data, position)
                values.append(value)
        except (IndexError, struct.error) as broken:
            raise corrupt("an Avro record ends too early", len(data)) from broken
        if position != len(data):
            raise corrupt(f"{len(data) - position} bytes follow an Avro record", position)
        return tuple(values) if resolve is None else resolve(tuple(values))

    return decode


def _long(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise corrupt("a number has more than 64 bits", position)
    number = (result >> 1) ^ -(result & 1)
    if not -(2**63) <= number < 2**63:
        raise corrupt("a number has more than 64 bits", position)
    return number, position


def _bytes(data: bytes, position: int) -> tuple[bytes, int]:
    size, position = _long(data, position)
    return _take(data, position, size), position + size


def _take(data: bytes, position: int, size: int) -> bytes:
    if size < 0 or position + size > len(data):
        raise corrupt(f"a value claims {size} bytes", position)
    return data[position : position + size]


def _text(data: bytes, position: int) -> tuple[str, int]:
    raw, position = _bytes(data, position)
    return raw.decode("utf-8", "surrogateescape"), position


def _boolean(data: bytes, position: int) -> tuple[bool, int]:
    if data[position] > 1:
        raise corrupt(f"a boolean is {data[position]}", position)
    return data[position] == 1, position + 1


def _float(layout: struct.Struct) -> _Read:
    return lambda data, position: (layout.unpack_from(data, position)[0], position + layout.size)


_READS: dict[str, _Read] = {
    **dict.fromkeys(LONGS, _long),
    "boolean": _boolean,
    "float": _float(struct.Struct("<f")),
    "double": _float(struct.Struct("<d")),
    "string": _text,
    "binary": _bytes,
    "void": lambda _, position: (None, position),
}


def _value(type_: SparkType) -> _Read:
    """A reader for a value that isn't NULL."""
    if type_.kind in _READS:
        return _READS[type_.kind]
    if type_.kind == "decimal":
        return _decimal(type_)
    if type_.kind == "struct":
        members = [_member(f.type) for f in type_.fields]

        def read_struct(data: bytes, position: int) -> tuple[Stored, int]:
            values = []
            for read in members:
                value, position = read(data, position)
                values.append(value)
            return tuple(values), position

        return read_struct
    if type_.kind == "array":
        assert type_.element is not None
        return _blocks(_element(type_.element), is_void=type_.element.kind == "void")
    if type_.kind == "map" and type_.key is not None and type_.key.kind == "string":
        assert type_.value is not None
        read_value = _element(type_.value)

        def read_entry(data: bytes, position: int) -> tuple[Stored, int]:
            key, position = _text(data, position)
            value, position = read_value(data, position)
            return (key, value), position

        return _blocks(read_entry, is_void=False)
    raise unsupported(f"a value of type {type_}")


def _member(type_: SparkType) -> _Read:
    """A reader for a struct's member: a union with NULL."""
    if type_.kind == "void":
        return _READS["void"]
    read = _value(type_)

    def read_member(data: bytes, position: int) -> tuple[Stored, int]:
        branch, position = _long(data, position)
        if branch == 0:
            return None, position
        if branch != 1:
            raise corrupt(f"a union has branch {branch}", position)
        return read(data, position)

    return read_member


def _element(type_: SparkType) -> _Read:
    return _member(type_) if type_.kind in NESTED else _value(type_)


def decimal_size(type_: SparkType) -> int:
    """How many bytes every decimal of this precision has."""
    size = 1
    while 2 ** (8 * size - 1) < 10**type_.precision:
        size += 1
    return size


def _decimal(type_: SparkType) -> _Read:
    size = decimal_size(type_)

    def read(data: bytes, position: int) -> tuple[Stored, int]:
        digits = int.from_bytes(_take(data, position, size), "big", signed=True)
        return _EXACT.scaleb(Decimal(digits), -type_.scale), position + size

    return read


def _blocks(read_item: _Read, *, is_void: bool) -> _Read:
    def read(data: bytes, position: int) -> tuple[Stored, int]:
        items: list[Stored] = []
        while True:
            count, position = _long(data, position)
            if count == 0:
                return items, position
            if count < 0:
                count = -count
                _, position = _long(data, position)
            if len(items) + count > (_MAX_VOIDS if is_void else len(data)):
                raise corrupt(f"a block claims {count} items", position)
            for _ in range(count):
                item, position = read_item(data, position)
                items.append(item)

    return read


# ---------------------------------------------------------------- from the writer's schema to the reader's


def _resolve_struct(writer: tuple[Field, ...], reader: tuple[Field, ...]) -> Callable[[tuple[Stored, ...]], tuple[Stored, ...]]:
    places = {f.name: i for i, f in enumerate(writer)}
    steps: list[tuple[int, _Resolve]] = []
    for field in reader:
        place = places.get(field.name, -1)
        steps.append((place, _resolve(writer[place].type, field.type) if place >= 0 else _same))
    return lambda values: tuple([None if place < 0 else resolve(values[place]) for place, resolve in steps])


def _same(value: Stored) -> Stored:
    return value


def _resolve(writer: SparkType, reader: SparkType) -> _Resolve:
    if writer == reader or (writer.kind == reader.kind and writer.kind not in (*NESTED, "decimal")):
        return _same
    step: _Resolve
    if writer.kind == reader.kind == "struct":
        step = _resolve_struct(writer.fields, reader.fields)
    elif writer.kind == reader.kind == "array":
        assert writer.element is not None
        assert reader.element is not None
        element = _resolve(writer.element, reader.element)

        def step(items: Stored) -> Stored:
            return [element(item) for item in items]
    elif writer.kind == reader.kind == "map":
        assert writer.value is not None
        assert reader.value is not None
        value = _resolve(writer.value, reader.value)

        def step(items: Stored) -> Stored:
            return [(k, value(v)) for k, v in items]
    elif reader.kind in _WIDENING.get(writer.kind, ()):
        step = float if reader.kind in ("float", "double") else int
    else:
        raise unsupported(f"a row written as {writer} and read as {reader}")
    return lambda item: None if item is None else step(item)


def unsupported(what: str) -> CheckpointError:
    """An error for what isn't known to be in Avro."""
    return CheckpointError(
        "UNSUPPORTED",
        f"The state holds {what} in Avro, which Spark isn't known to write.",
        hint="Report this with the job's Spark version and the type.",
    )

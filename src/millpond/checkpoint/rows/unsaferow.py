"""Spark's UnsafeRow, the bytes of every key and value in a state store, to and from tuples.

Values have *stored form*: timestamps are microseconds, dates days, structs tuples, maps lists of
pairs (see STORED below).  So a decoded row loses nothing and needs no time zone.  `schema.convert`
turns stored form into what Python programs expect.

    row    = null bitset (8 bytes for each 64 fields), one 8-byte slot a field, variable part
    slot   = the value, or offset << 32 | size of bytes in the variable part, counted from the row's start
    array  = int64 count, null bitset, elements at their natural width (padded to 8), variable part counted from the array's start
    map    = int64 size of the key array, key array, value array

All numbers are little-endian, except that decimals above 18 digits are big-endian two's complement.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from millpond.errors import CheckpointError
from millpond.schema.types import Field, SparkType

# STORED form, kind by kind: boolean bool; byte..long int; float, double float; decimal Decimal with
# the type's scale; string str (bytes that aren't UTF-8 as surrogate escapes); binary bytes; date
# int days; timestamp, timestamp_ntz, day_time_interval int microseconds; year_month_interval int
# months; time int nanoseconds; timestamp_nanos (microseconds, nanoseconds within);
# calendar_interval (months, days, microseconds); variant (value, metadata); geo (srid, wkb); struct
# tuple; array list; map list of pairs; NULL None.

Stored = Any
Read = Callable[[bytes, Any, int], Stored]
"""(buffer, slot, start of the enclosing row or array) -> value"""

# kind -> (struct code, width in an array)
_FIXED = {
    "boolean": ("?", 1),
    "byte": ("b", 1),
    "short": ("h", 2),
    "integer": ("i", 4),
    "date": ("i", 4),
    "year_month_interval": ("i", 4),
    "float": ("f", 4),
    "long": ("q", 8),
    "double": ("d", 8),
    "timestamp": ("q", 8),
    "timestamp_ntz": ("q", 8),
    "day_time_interval": ("q", 8),
    "time": ("q", 8),
}
_EXACT = Context(prec=80)
_SMALL_DECIMAL = 18
# 38 digits and a sign
_WIDE_DECIMAL_BYTES = 16
# Types whose slot always has 16 bytes in the variable part.
_SIXTEEN = frozenset({"calendar_interval", "timestamp_nanos"})


def decoder(fields: tuple[Field, ...]) -> Callable[[bytes], tuple[Stored, ...]]:
    """A function from the bytes of one row of these fields to a tuple in stored form.

    Raises (the function):  CORRUPT_FILE if a length or an offset points outside the bytes.
    Source:  org.apache.spark.sql.catalyst.expressions.UnsafeRow, Spark 4.3; golden checkpoints.
    """
    read_row = _row_reader(fields)

    def decode(data: bytes) -> tuple[Stored, ...]:
        return read_row(data, 0)

    return decode


def encoder(fields: tuple[Field, ...]) -> Callable[[tuple[Stored, ...]], bytes]:
    """A function from a tuple in stored form to the bytes of Spark's UnsafeRowWriter."""

    def encode(values: tuple[Stored, ...]) -> bytes:
        return _write_row(fields, values)

    return encode


def part_reader(type_: SparkType) -> Callable[[bytes], Stored]:
    """A function from the bytes of a value of variable length to the value.  Raises as `decoder`'s."""
    read = _reader(type_)
    assert read is not None
    return lambda part: read(part, len(part), 0)


# ---------------------------------------------------------------- reading


def _row_reader(fields: tuple[Field, ...]) -> Callable[[bytes, int], tuple[Stored, ...]]:
    count = len(fields)
    words = (count + 63) // 64
    layout = struct.Struct("<" + "Q" * words + "".join(_slot_code(f.type) for f in fields))
    readers = [(i, read) for i, f in enumerate(fields) if (read := _reader(f.type)) is not None]
    unpack = layout.unpack_from

    def read_row(data: bytes, start: int) -> tuple[Stored, ...]:
        try:
            slots = unpack(data, start)
        except struct.error:
            raise _outside(data, start, layout.size) from None
        nulls = slots[0] if words == 1 else sum(word << 64 * i for i, word in enumerate(slots[:words]))
        if not nulls and not readers:
            return slots[words:]
        values: list[Any] = list(slots[words:])
        if nulls:
            for i in range(count):
                if nulls >> i & 1:
                    values[i] = None
        for i, read in readers:
            if values[i] is not None:
                values[i] = read(data, values[i], start)
        return tuple(values)

    return read_row


def _slot_code(type_: SparkType) -> str:
    fixed = _FIXED.get(type_.kind)
    if fixed is not None:
        code, width = fixed
        return code + "x" * (8 - width)
    if type_.kind == "decimal" and type_.precision <= _SMALL_DECIMAL:
        return "q"
    return "Q"


def _reader(type_: SparkType) -> Read | None:
    """A function from a slot to a value; None if the slot is the value."""
    if type_.kind in _FIXED:
        return None
    if type_.kind == "decimal":
        return _decimal_reader(type_)
    if type_.kind == "struct":
        read_row = _row_reader(type_.fields)

        def read_struct(data: bytes, slot: int, start: int) -> Stored:
            _slice(data, slot, start)
            return read_row(data, start + (slot >> 32))

        return read_struct
    if type_.kind == "array":
        assert type_.element is not None
        read_array = _array_reader(type_.element)
        return lambda data, slot, start: read_array(_slice(data, slot, start), 0)
    if type_.kind == "map":
        return _map_reader(type_)
    return _BYTES[type_.kind]


def _slice(data: bytes, slot: int, start: int) -> bytes:
    begin = start + (slot >> 32)
    size = slot & 0xFFFFFFFF
    if begin + size > len(data):
        raise _outside(data, begin, size)
    return data[begin : begin + size]


def _decimal_reader(type_: SparkType) -> Read:
    exponent = -type_.scale
    scaleb = _EXACT.scaleb
    if type_.precision <= _SMALL_DECIMAL:
        return lambda _data, slot, _start: scaleb(Decimal(slot), exponent)

    def read_wide(data: bytes, slot: int, start: int) -> Stored:
        part = _slice(data, slot, start)
        if len(part) > _WIDE_DECIMAL_BYTES:
            raise _outside(data, start, len(part))
        return scaleb(Decimal(int.from_bytes(part, "big", signed=True)), exponent)

    return read_wide


def _read_void(_data: bytes, _slot: int, _start: int) -> Stored:
    return None


def _read_string(data: bytes, slot: int, start: int) -> Stored:
    begin = start + (slot >> 32)
    end = begin + (slot & 0xFFFFFFFF)
    if end > len(data):
        raise _outside(data, begin, end - begin)
    return str(data[begin:end], "utf-8", "surrogateescape")


def _read_struct_of(code: str) -> Read:
    layout = struct.Struct(code)

    def read(data: bytes, slot: int, start: int) -> Stored:
        part = _slice(data, slot, start)
        if len(part) < layout.size:
            raise _outside(part, 0, layout.size)
        return layout.unpack_from(part)

    return read


def _read_geo(data: bytes, slot: int, start: int) -> Stored:
    part = _slice(data, slot, start)
    if len(part) < 4:
        raise _outside(part, 0, 4)
    return int.from_bytes(part[:4], "little", signed=True), part[4:]


def _read_variant(data: bytes, slot: int, start: int) -> Stored:
    part = _slice(data, slot, start)
    size = int.from_bytes(part[:4], "little")
    if len(part) < 4 or size > len(part) - 4:
        raise _outside(part, 4, size)
    return part[4 : 4 + size], part[4 + size :]


_BYTES: dict[str, Read] = {
    "void": _read_void,
    "string": _read_string,
    "binary": _slice,
    "geo": _read_geo,
    "timestamp_nanos": _read_struct_of("<qh"),
    "calendar_interval": _read_struct_of("<iiq"),
    "variant": _read_variant,
}


def _array_reader(element: SparkType) -> Callable[[bytes, int], list[Stored]]:
    code, width = _FIXED.get(element.kind, ("Q", 8))
    if element.kind == "decimal" and element.precision <= _SMALL_DECIMAL:
        code = "q"
    read = _reader(element)

    def read_array(data: bytes, start: int) -> list[Stored]:
        if start + 8 > len(data):
            raise _outside(data, start, 8)
        count = int.from_bytes(data[start : start + 8], "little", signed=True)
        bitset = (count + 63) // 64 * 8
        first = start + 8 + bitset
        if count < 0 or first + count * width > len(data):
            raise _outside(data, start, count * width)
        values: list[Any] = list(struct.unpack_from(f"<{count}{code}", data, first))
        nulls = int.from_bytes(data[start + 8 : first], "little")
        if nulls:
            for i in range(count):
                if nulls >> i & 1:
                    values[i] = None
        if read is not None:
            values = [None if v is None else read(data, v, start) for v in values]
        return values

    return read_array


def _map_reader(type_: SparkType) -> Read:
    assert type_.key is not None
    assert type_.value is not None
    read_keys = _array_reader(type_.key)
    read_values = _array_reader(type_.value)

    def read_map(data: bytes, slot: int, start: int) -> Stored:
        part = _slice(data, slot, start)
        size = int.from_bytes(part[:8], "little", signed=True)
        if len(part) < 8 or not 0 <= size <= len(part) - 8:
            raise _outside(part, 8, size)
        keys = read_keys(part[8 : 8 + size], 0)
        values = read_values(part[8 + size :], 0)
        if len(keys) != len(values):
            raise _outside(part, 8 + size, len(keys))
        return list(zip(keys, values, strict=True))

    return read_map


def _outside(data: bytes, position: int, size: int) -> CheckpointError:
    return CheckpointError(
        "CORRUPT_FILE",
        f"A row of {len(data)} bytes claims {size} bytes at position {position}.",
        hint="Check that the schema file belongs to this checkpoint and that the file is whole.",
        position=position,
        size=size,
        row_bytes=len(data),
    )


# ---------------------------------------------------------------- writing


def _write_row(fields: tuple[Field, ...], values: tuple[Stored, ...]) -> bytes:
    count = len(fields)
    bitset = (count + 63) // 64 * 8
    nulls = 0
    fixed = bytearray(8 * count)
    variable = bytearray()
    base = bitset + 8 * count
    for i, (field, value) in enumerate(zip(fields, values, strict=True)):
        if value is None or field.type.kind == "void":
            nulls |= 1 << i
            reserved = _reserved_when_null(field.type)
            if reserved is not None:
                struct.pack_into("<Q", fixed, 8 * i, (base + len(variable)) << 32 | reserved)
                variable += bytes(16)
            continue
        _write_slot(field.type, value, fixed, 8 * i, variable, base, in_array=False)
    return bytes(nulls.to_bytes(bitset, "little") + fixed + variable)


def _reserved_when_null(type_: SparkType) -> int | None:
    """The size in a NULL's slot for types that reserve 16 bytes; None for other types."""
    if type_.kind in _SIXTEEN:
        return 16
    if type_.kind == "decimal" and type_.precision > _SMALL_DECIMAL:
        return 0
    return None


def _write_slot(
    type_: SparkType, value: Stored, fixed: bytearray, at: int, variable: bytearray, base: int, *, in_array: bool
) -> None:
    kind = type_.kind
    if kind in _FIXED:
        struct.pack_into("<" + _FIXED[kind][0], fixed, at, value)
    elif kind == "decimal" and type_.precision <= _SMALL_DECIMAL:
        struct.pack_into("<q", fixed, at, digits_of(type_, value))
    else:
        part = _variable_bytes(type_, value)
        struct.pack_into("<Q", fixed, at, (base + len(variable)) << 32 | len(part))
        variable += part
        wide = kind == "decimal" and not in_array
        variable += bytes((16 if wide else (len(part) + 7) // 8 * 8) - len(part))


def digits_of(type_: SparkType, value: Decimal) -> int:
    """A decimal's digits as a whole number."""
    return int(_EXACT.scaleb(value, type_.scale))


def _variable_bytes(type_: SparkType, value: Stored) -> bytes:
    kind = type_.kind
    if kind == "string":
        return bytes(value, "utf-8", "surrogateescape")
    if kind == "binary":
        return bytes(value)
    if kind == "decimal":
        unscaled = digits_of(type_, value)
        size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return unscaled.to_bytes(size, "big", signed=True)
    if kind == "struct":
        return _write_row(type_.fields, value)
    if kind == "array":
        assert type_.element is not None
        return _write_array(type_.element, value)
    if kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        keys = _write_array(type_.key, [k for k, _ in value])
        return struct.pack("<q", len(keys)) + keys + _write_array(type_.value, [v for _, v in value])
    if kind == "calendar_interval":
        return struct.pack("<iiq", *value)
    if kind == "timestamp_nanos":
        return struct.pack("<qh6x", *value)
    if kind == "geo":
        return bytes(struct.pack("<i", value[0]) + value[1])
    assert kind == "variant", kind
    return bytes(struct.pack("<i", len(value[0])) + value[0] + value[1])


def _write_array(element: SparkType, values: list[Stored]) -> bytes:
    count = len(values)
    width = _FIXED.get(element.kind, ("Q", 8))[1]
    bitset = (count + 63) // 64 * 8
    fixed = bytearray((count * width + 7) // 8 * 8)
    variable = bytearray()
    base = 8 + bitset + len(fixed)
    nulls = 0
    for i, value in enumerate(values):
        if value is None:
            nulls |= 1 << i
        else:
            _write_slot(element, value, fixed, width * i, variable, base, in_array=True)
    return struct.pack("<q", count) + nulls.to_bytes(bitset, "little") + fixed + variable

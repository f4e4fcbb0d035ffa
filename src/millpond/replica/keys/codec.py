"""Keys as bytes that sort in the order of their columns, so that ranges of keys are ranges of bytes.

    key     = its columns one after the other: those that aren't times in grouping order, then the times, so that "windows of this
              url between two times" is one range
    column  = 00 for NULL (sorts first, as in Spark), else 01 and the value
    value   = whole numbers, dates and times: big-endian, sign bit flipped; floats: the same after flipping negative ones whole;
              decimals: their unscaled number in 8 or 16 bytes; text and binary: bytes with 00 written as 00 FF, ended by 00 01;
              structs: their members as columns; arrays: 01 and the column per element, ended by 00; maps: as arrays of
              entries, sorted

LMDB's keys may have at most 511 bytes.  A longer key is stored as its first 495 bytes and a 16-byte
hash, with the whole key beside the value.  Only long keys have exactly 511 bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from millpond.errors import CheckpointError
from millpond.schema.types import Field, SparkType

Stored = Any
Write = Callable[[Stored], bytes]
Read = Callable[[bytes, int], tuple[Stored, int]]
"""(buffer, position) -> (value, position after it)"""

MAX_KEY_BYTES = 511
PREFIX_BYTES = 495
_HASH_BYTES = MAX_KEY_BYTES - PREFIX_BYTES

NULL, _VALUE = b"\x00", b"\x01"
# The key of the single row of an aggregation without keys: LMDB allows no empty key.
KEYLESS = b"\x01"
INTEGER_BYTES = {
    "byte": 1,
    "short": 2,
    "integer": 4,
    "date": 4,
    "year_month_interval": 4,
    "long": 8,
    "timestamp": 8,
    "timestamp_ntz": 8,
    "day_time_interval": 8,
    "time": 8,
}
"""kind of type -> bytes of its values, which are whole numbers"""
_EXACT = Context(prec=80)


class KeyCodec:
    """Encodes and decodes the keys of one table.

    order:  indexes of the key schema's columns in the order of the bytes
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        times = [i for i, f in enumerate(fields) if f.type.is_time]
        self.order = tuple(i for i in range(len(fields)) if i not in times) + tuple(times)
        self._fields = fields
        self._writers = tuple(column_writer(fields[i].type) for i in self.order)
        self._readers = tuple(_column_reader(fields[i].type) for i in self.order)
        # A loop over one column costs as much as the column.
        self._single = self._writers[0] if len(fields) == 1 else None

    def encode(self, key: tuple[Stored, ...]) -> bytes:
        """The whole ordered key of a key row in stored form."""
        if self._single is not None:
            return self._single(key[0])
        if not self._writers:
            return KEYLESS
        return b"".join([write(key[i]) for write, i in zip(self._writers, self.order, strict=True)])

    def encode_prefix(self, whole: list[Stored], leading: list[Stored]) -> bytes:
        """The first bytes of every key whose first columns have these values.

        whole:    values of the first columns in the order of `order`
        leading:  values of the first members of the column after these, which is a struct
        """
        out = b"".join([write(value) for write, value in zip(self._writers, whole, strict=False)])
        if leading:
            members = self._fields[self.order[len(whole)]].type.fields
            out += _VALUE + b"".join([column_writer(m.type)(v) for m, v in zip(members, leading, strict=False)])
        return out

    def decode(self, data: bytes) -> tuple[Stored, ...]:
        """The key row in stored form.  Raises CORRUPT_FILE if the bytes aren't a key of this table."""
        if data == KEYLESS and not self._fields:
            return ()
        values: list[Stored] = [None] * len(self._fields)
        position = 0
        try:
            for read, i in zip(self._readers, self.order, strict=True):
                values[i], position = read(data, position)
        except (IndexError, ValueError, struct.error) as broken:
            raise _corrupt(data) from broken
        if position != len(data):
            raise _corrupt(data)
        return tuple(values)


def text_key(text: bytes) -> bytes:
    """The whole ordered key of a key that is one text, from the text's bytes."""
    return _VALUE + _escape(text)


def store_key(ordered: bytes) -> bytes:
    """The stored key of a row: the ordered key, cut and hashed if it is too long."""
    if len(ordered) < MAX_KEY_BYTES:
        return ordered
    return ordered[:PREFIX_BYTES] + hashlib.blake2b(ordered, digest_size=_HASH_BYTES).digest()


def is_cut(stored_key: bytes) -> bool:
    """Whether the whole key is stored beside the value."""
    return len(stored_key) == MAX_KEY_BYTES


def join_value(ordered: bytes, row: bytes) -> bytes:
    """The stored value for `store_key(ordered)`."""
    if len(ordered) < MAX_KEY_BYTES:
        return row
    return len(ordered).to_bytes(4, "little") + ordered + row


def split_value(stored_key: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """(ordered key, row) of a stored pair."""
    if not is_cut(stored_key):
        return stored_key, stored
    end = 4 + int.from_bytes(stored[:4], "little")
    return stored[4:end], stored[end:]


# ---------------------------------------------------------------- columns


def column_writer(type_: SparkType) -> Write:
    """A function from a value in stored form (or None) to the bytes of a column."""
    write = _writer(type_)
    if type_.kind in ("string", "binary"):
        return write  # these write their own mark, which saves a call for the most common keys

    def write_column(value: Stored) -> bytes:
        return NULL if value is None else _VALUE + write(value)

    return write_column


def _column_reader(type_: SparkType) -> Read:
    read = _reader(type_)

    def read_column(data: bytes, position: int) -> tuple[Stored, int]:
        mark = data[position]
        if mark == 0:
            return None, position + 1
        if mark != 1:
            raise ValueError(mark)
        return read(data, position + 1)

    return read_column


def _writer(type_: SparkType) -> Write:
    kind = type_.kind
    if kind in INTEGER_BYTES:
        size = INTEGER_BYTES[kind]
        offset = 1 << (8 * size - 1)
        return lambda value: (value + offset).to_bytes(size, "big")
    if kind == "boolean":
        return lambda value: b"\x01" if value else b"\x00"
    if kind == "string":
        return lambda value: NULL if value is None else _VALUE + _escape(value.encode("utf-8", "surrogateescape"))
    if kind == "binary":
        return lambda value: NULL if value is None else _VALUE + _escape(value)
    if kind in ("float", "double"):
        return _float_writer(4 if kind == "float" else 8)
    if kind == "decimal":
        size = _decimal_size(type_)
        offset = 1 << (8 * size - 1)
        return lambda value: (int(_EXACT.scaleb(value, type_.scale)) + offset).to_bytes(size, "big")
    if kind == "struct":
        writers = [column_writer(f.type) for f in type_.fields]
        return lambda value: b"".join([write(v) for write, v in zip(writers, value, strict=True)])
    if kind == "array":
        assert type_.element is not None
        write_element = column_writer(type_.element)
        return lambda value: b"".join([_VALUE + write_element(v) for v in value]) + NULL
    if kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        write_key, write_value = column_writer(type_.key), column_writer(type_.value)
        return lambda value: b"".join(sorted(_VALUE + write_key(k) + write_value(v) for k, v in value)) + NULL
    return _UNORDERED[kind][0]


def _reader(type_: SparkType) -> Read:
    kind = type_.kind
    if kind in INTEGER_BYTES:
        size = INTEGER_BYTES[kind]
        offset = 1 << (8 * size - 1)
        return lambda data, at: (int.from_bytes(_take(data, at, size), "big") - offset, at + size)
    if kind == "boolean":
        return lambda data, at: (data[at] == 1, at + 1)
    if kind == "string":

        def read_string(data: bytes, at: int) -> tuple[Stored, int]:
            raw, after = _unescape(data, at)
            return raw.decode("utf-8", "surrogateescape"), after

        return read_string
    if kind == "binary":
        return _unescape
    if kind in ("float", "double"):
        return _float_reader(4 if kind == "float" else 8)
    if kind == "decimal":
        width, bias, scale = _decimal_size(type_), 1 << (8 * _decimal_size(type_) - 1), -type_.scale
        return lambda data, at: (
            _EXACT.scaleb(Decimal(int.from_bytes(_take(data, at, width), "big") - bias), scale),
            at + width,
        )
    if kind == "struct":
        return _struct_reader(tuple(_column_reader(f.type) for f in type_.fields))
    if kind == "array":
        assert type_.element is not None
        return _list_reader(_column_reader(type_.element))
    if kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        return _list_reader(_struct_reader((_column_reader(type_.key), _column_reader(type_.value))))
    return _UNORDERED[kind][1]


def _take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise IndexError(at)
    return data[at : at + size]


def _escape(raw: bytes) -> bytes:
    return raw.replace(b"\x00", b"\x00\xff") + b"\x00\x01"


def _unescape(data: bytes, at: int) -> tuple[bytes, int]:
    begin = at
    while True:
        at = data.index(b"\x00", at)
        if data[at + 1] == 1:
            return data[begin:at].replace(b"\x00\xff", b"\x00"), at + 2
        at += 2


def _float_writer(size: int) -> Write:
    layout = struct.Struct(">f" if size == 4 else ">d")
    top, mask = 1 << (8 * size - 1), (1 << 8 * size) - 1

    def write(value: float) -> bytes:
        bits = int.from_bytes(layout.pack(value), "big")
        return (bits ^ mask if bits & top else bits | top).to_bytes(size, "big")

    return write


def _float_reader(size: int) -> Read:
    layout = struct.Struct(">f" if size == 4 else ">d")
    top, mask = 1 << (8 * size - 1), (1 << 8 * size) - 1

    def read(data: bytes, at: int) -> tuple[Stored, int]:
        bits = int.from_bytes(_take(data, at, size), "big")
        bits = bits ^ top if bits & top else bits ^ mask
        return layout.unpack(bits.to_bytes(size, "big"))[0], at + size

    return read


def _decimal_size(type_: SparkType) -> int:
    return 8 if type_.precision <= 18 else 16


def _struct_reader(readers: tuple[Read, ...]) -> Read:
    def read(data: bytes, at: int) -> tuple[Stored, int]:
        values = []
        for read_member in readers:
            value, at = read_member(data, at)
            values.append(value)
        return tuple(values), at

    return read


def _list_reader(read_element: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Stored, int]:
        values = []
        while data[at] == 1:
            value, at = read_element(data, at + 1)
            values.append(value)
        if data[at] != 0:
            raise ValueError(data[at])
        return values, at + 1

    return read


def _parts(*codes: tuple[Write, Read]) -> tuple[Write, Read]:
    """A tuple of several values, one after the other."""

    def write(value: Stored) -> bytes:
        return b"".join([code[0](v) for code, v in zip(codes, value, strict=True)])

    return write, _struct_reader(tuple(code[1] for code in codes))


def _plain(name: str) -> tuple[Write, Read]:
    return _writer(SparkType(name, name)), _reader(SparkType(name, name))


_RAW: tuple[Write, Read] = (_escape, _unescape)
# Types that Spark doesn't order: any reversible form is enough, since only equality counts.
_UNORDERED: dict[str, tuple[Write, Read]] = {
    "void": (lambda _value: b"", lambda _data, at: (None, at)),
    "timestamp_nanos": _parts(_plain("long"), _plain("short")),
    "calendar_interval": _parts(_plain("integer"), _plain("integer"), _plain("long")),
    "geo": _parts(_plain("integer"), _RAW),
    "variant": _parts(_RAW, _RAW),
}


def _corrupt(data: bytes) -> CheckpointError:
    return CheckpointError(
        "CORRUPT_FILE",
        f"A key of {len(data)} bytes in the replica isn't a key of its table.",
        hint="Delete the replica's folder; it is built again from the checkpoint.",
        key_bytes=len(data),
    )

"""The reverse of `avro`: tuples in stored form to records as Spark writes them.

An array or map is one block.  Spark writes the entries of a map in the order of Java's hash table
and no reader depends on it, so here they stay in the order in which they come.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal

from millpond.checkpoint.rows.avro import LONGS, NESTED, Stored, decimal_size, unsupported
from millpond.checkpoint.rows.unsaferow import digits_of
from millpond.errors import RequestError
from millpond.schema.types import Field, SparkType

_Write = Callable[[Stored], bytes]
_NULL, _VALUE, _END = b"\x00", b"\x02", b"\x00"


def avro_encoder(fields: tuple[Field, ...]) -> Callable[[tuple[Stored, ...]], bytes]:
    """A function from a tuple of these columns to a record.

    Raises:  UNSUPPORTED for a type that Spark doesn't write in Avro.
    Raises (the function):  WRONG_TYPE for NULL in an array or map, which Spark can't write either.
    Source:  SchemaConverters, AvroSerializer, Spark 4.3; golden checkpoints.
    """
    members = [_member(f.type) for f in fields]

    def encode(values: tuple[Stored, ...]) -> bytes:
        return b"".join([write(value) for write, value in zip(members, values, strict=True)])

    return encode


def _long(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _bytes(value: bytes) -> bytes:
    return _long(len(value)) + value


def _text(value: str) -> bytes:
    return _bytes(value.encode("utf-8", "surrogateescape"))


_WRITES: dict[str, _Write] = {
    **dict.fromkeys(LONGS, _long),
    "boolean": lambda value: b"\x01" if value else b"\x00",
    "float": struct.Struct("<f").pack,
    "double": struct.Struct("<d").pack,
    "string": _text,
    "binary": _bytes,
    "void": lambda _: b"",
}


def _value(type_: SparkType) -> _Write:
    """A writer for a value that isn't NULL."""
    if type_.kind in _WRITES:
        return _WRITES[type_.kind]
    if type_.kind == "decimal":
        return _decimal(type_)
    if type_.kind == "struct":
        return avro_encoder(type_.fields)
    if type_.kind == "array":
        assert type_.element is not None
        return _block(_element(type_.element))
    if type_.kind == "map" and type_.key is not None and type_.key.kind == "string":
        assert type_.value is not None
        write_value = _element(type_.value)
        return _block(lambda entry: _text(entry[0]) + write_value(entry[1]))
    raise unsupported(f"a value of type {type_}")


def _member(type_: SparkType) -> _Write:
    """A writer for a struct's member: a union with NULL."""
    write = _value(type_)
    if type_.kind == "void":
        return write
    return lambda value: _NULL if value is None else _VALUE + write(value)


def _element(type_: SparkType) -> _Write:
    if type_.kind in NESTED:
        return _member(type_)
    write = _value(type_)

    def write_element(value: Stored) -> bytes:
        if value is None and type_.kind != "void":
            raise RequestError(
                "WRONG_TYPE",
                f"An array or map in Avro can't hold NULL in place of {type_}.",
                hint="Leave the element out: Spark itself fails to write it.",
            )
        return write(value)

    return write_element


def _decimal(type_: SparkType) -> _Write:
    size = decimal_size(type_)

    def write(value: Decimal) -> bytes:
        return digits_of(type_, value).to_bytes(size, "big", signed=True)

    return write


def _block(write_item: _Write) -> _Write:
    return lambda items: (_long(len(items)) + b"".join(map(write_item, items)) if items else b"") + _END

"""Spark's hash of a row, and its partition: pmod(murmur3 of its columns, number of partitions).

Spark's Murmur3 isn't the usual one: each byte after the last whole word is a signed word of its
own. Columns are hashed one after the other, each with the hash so far as its seed; NULL leaves the
hash unchanged.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

from millpond.errors import CheckpointError
from millpond.schema.types import Field, SparkType

Stored = Any
"""a value in stored form, see `checkpoint.rows.unsaferow`"""
_SEED = 42
_WORD = 0xFFFFFFFF
_LONG = (1 << 64) - 1
_SMALL_DECIMAL = 18
_EXACT = Context(prec=80)
_INTS = frozenset({"byte", "short", "integer", "date", "year_month_interval"})
_LONGS = frozenset({"long", "timestamp", "timestamp_ntz", "day_time_interval", "time"})
# The bits that stand for every NaN.
_FLOAT_NAN, _DOUBLE_NAN = 0x7FC00000, 0x7FF8000000000000


def partition_of(fields: tuple[Field, ...], values: tuple[Stored, ...], partitions: int) -> int:
    """The partition of a row with these columns, in stored form.

    Raises:  UNSUPPORTED for a type that Spark doesn't hash.
    Source:  HashPartitioning, Murmur3Hash, Murmur3_x86_32, Spark 4.3; every row of every golden
             checkpoint.
    """
    return row_hash(fields, values) % partitions


def row_hash(fields: tuple[Field, ...], values: tuple[Stored, ...]) -> int:
    """Spark's hash of these columns, a signed number of 32 bits, whose remainder is the partition.

    Raises as `partition_of`.
    """
    return row_hasher(fields)(values)


def row_hasher(fields: tuple[Field, ...]) -> Callable[[tuple[Stored, ...]], int]:
    """`row_hash` for many rows.  The function raises as `partition_of`."""
    types = [f.type for f in fields]
    if len(types) == 1 and types[0].kind in _LONGS:
        return _one_long

    def hash_row(values: tuple[Stored, ...]) -> int:
        return _signed(hash_of(types, values, _SEED))

    return hash_row


def _one_long(values: tuple[Stored, ...]) -> int:
    (value,) = values
    return _signed(_SEED if value is None else _hash_long(value, _SEED))


def _signed(hashed: int) -> int:
    return hashed - (hashed >> 31 << 32)


def hash_of(types: Sequence[SparkType], values: Sequence[Stored], seed: int) -> int:
    """Spark's hash of some values in stored form, as an unsigned number of 32 bits.

    Raises as `partition_of`.
    """
    hashed = seed
    for type_, value in zip(types, values, strict=True):
        hashed = _hash(type_, value, hashed)
    return hashed


def _hash(type_: SparkType, value: Stored, seed: int) -> int:
    if value is None:
        return seed
    kind = type_.kind
    if kind in _INTS:
        return _hash_int(value, seed)
    if kind in _LONGS:
        return _hash_long(value, seed)
    if kind == "boolean":
        return _hash_int(int(value), seed)
    if kind in ("float", "double"):
        return _hash_real(kind, value, seed)
    if kind == "decimal":
        return _hash_decimal(type_, value, seed)
    if kind == "string":
        return _hash_bytes(bytes(value, "utf-8", "surrogateescape"), seed)
    if kind == "binary":
        return _hash_bytes(value, seed)
    if kind == "calendar_interval":
        months, days, microseconds = value
        return _hash_int(months, _hash_int(days, _hash_long(microseconds, seed)))
    if kind == "timestamp_nanos":
        microseconds, nanoseconds = value
        return _hash_int(nanoseconds, _hash_long(microseconds, seed))
    if kind == "struct":
        for field, member in zip(type_.fields, value, strict=True):
            seed = _hash(field.type, member, seed)
        return seed
    if kind == "array" and type_.element is not None:
        for element in value:
            seed = _hash(type_.element, element, seed)
        return seed
    if kind == "map" and type_.key is not None and type_.value is not None:
        for key, member in value:
            seed = _hash(type_.value, member, _hash(type_.key, key, seed))
        return seed
    raise CheckpointError(
        "UNSUPPORTED",
        f"The partition of a key of type {type_} can't be computed.",
        hint="Look the key up in a replica instead: `millpond.open`.",
        type=str(type_),
    )


def _hash_real(kind: str, value: float, seed: int) -> int:
    if kind == "float":
        bits = _FLOAT_NAN if math.isnan(value) else struct.unpack("<I", struct.pack("<f", value + 0.0))[0]
        return _hash_int(bits, seed)
    bits = _DOUBLE_NAN if math.isnan(value) else struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
    return _hash_long(bits, seed)


def _hash_decimal(type_: SparkType, value: Decimal, seed: int) -> int:
    unscaled = int(_EXACT.scaleb(value, type_.scale))
    if type_.precision <= _SMALL_DECIMAL:
        return _hash_long(unscaled, seed)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return _hash_bytes(unscaled.to_bytes(size, "big", signed=True), seed)


def _hash_int(value: int, seed: int) -> int:
    return _finish(_mix(seed, value & _WORD), 4)


def _hash_long(value: int, seed: int) -> int:
    value &= _LONG
    return _finish(_mix(_mix(seed, value & _WORD), value >> 32), 8)


def _hash_bytes(value: bytes, seed: int) -> int:
    whole = len(value) & ~3
    for (word,) in struct.iter_unpack("<I", value[:whole]):
        seed = _mix(seed, word)
    for byte in value[whole:]:
        seed = _mix(seed, byte if byte < 0x80 else byte | 0xFFFFFF00)
    return _finish(seed, len(value))


def _mix(hashed: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _WORD
    word = (word << 15 | word >> 17) & _WORD
    hashed ^= word * 0x1B873593 & _WORD
    hashed = (hashed << 13 | hashed >> 19) & _WORD
    return (hashed * 5 + 0xE6546B64) & _WORD


def _finish(hashed: int, size: int) -> int:
    hashed ^= size
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _WORD
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _WORD
    return hashed ^ hashed >> 16

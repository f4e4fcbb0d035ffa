"""The order of iteration of Spark's hash maps and sets: Spark takes the first of equal values.

    hash   Java's hashCode of a value as Spark has it in memory
    place  the hash mixed once more, in a table of a power of two; if taken, the next free place after 1, 3, 6, … steps

A table is filled from the stored bytes, in their order; Spark then merges it into an empty one,
from which it takes the result.  The sets of collect_set are Scala's: Scala's hash, chains sorted by
it, and a table size that follows from the number of elements.

Source:  OpenHashSet and OpenHashMap of org.apache.spark.util.collection, Murmur3_x86_32,
         CollectSet, Spark 4.3; hashCode of Java 17; mutable.HashSet and BigDecimal of Scala
         2.13.18.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from millpond.checkpoint.rows.unsaferow import encoder
from millpond.scalar.number.ranges import single
from millpond.schema.murmur import hash_of
from millpond.schema.types import Field, SparkType, atomic

Stored = Any
Hash = Callable[[Stored], int]
_INT, _LONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_HALF = 1 << 31
_CAPACITY, _LOAD = 64, 0.7
_SET_CAPACITY, _SET_LOAD = 16, 0.75
_SEED = 42
_BINARY, _INTEGER = atomic("binary"), atomic("integer")
_INTS = frozenset({"byte", "short", "integer", "date", "year_month_interval"})
_LONGS = frozenset({"long", "timestamp", "timestamp_ntz", "day_time_interval", "time"})


def hash_order(keys: Sequence[Stored], hash_: Hash) -> list[int]:
    """The indexes of distinct stored keys, in the order in which Spark iterates over them."""
    hashes = [hash_(key) for key in keys]
    return _filled(_filled(range(len(keys)), hashes), hashes)


def set_order(type_: SparkType) -> Callable[[list[Stored]], list[Stored]]:
    """A function that puts the elements of collect_set in the order in which Spark emits them."""
    hash_ = _set_hash(type_)

    def in_order(items: list[Stored]) -> list[Stored]:
        mask = _set_size(len(items)) - 1
        hashes = [0 if item is None else hash_(item) for item in items]
        mixed = [h ^ h >> 16 for h in hashes]
        order = sorted(range(len(items)), key=lambda i: (mixed[i] & mask, (mixed[i] + _HALF) & _INT))
        return [items[i] for i in order]

    return in_order


def _set_size(count: int) -> int:
    """The table size of a merged set, which knows the number of elements before it adds them."""
    wanted = int((count + 1) / _SET_LOAD)
    return max(_SET_CAPACITY, 1 << max(wanted - 1, 4).bit_length())


def _set_hash(type_: SparkType) -> Hash:
    """Scala's `##`, which hashes equal numbers of all widths alike; floats by their bits."""
    if type_.kind in ("double", *_LONGS):
        bits = _bits(type_.kind)
        return lambda value: _whole(bits(value))
    return java_hash(type_)


def _bits(kind: str) -> Callable[[Any], int]:
    if kind == "double":
        return lambda value: 0x7FF8000000000000 if value != value else struct.unpack("<q", struct.pack("<d", value))[0]
    return lambda value: value


def _whole(value: int) -> int:
    return value & _INT if -_HALF <= value < _HALF else _long(value)


def java_hash(type_: SparkType) -> Hash:
    """A function from a value to its hash, an unsigned number of 32 bits.

    The type has an order and no collation.
    """
    kind = type_.kind
    if kind in _INTS:
        return lambda value: value & _INT
    if kind in _LONGS:
        return _long
    if kind == "boolean":
        return lambda value: 1231 if value else 1237
    if kind in ("float", "double"):
        return _float if kind == "float" else _double
    if kind == "string":
        return lambda value: _murmur(value.encode("utf-8", "surrogateescape"))
    if kind == "binary":
        return _binary
    if kind == "decimal":
        return _decimal
    encode = encoder((Field("", type_),))

    def written(value: Stored) -> int:
        row = encode((value,))
        return _murmur(row[16 : 16 + (struct.unpack_from("<Q", row, 8)[0] & _INT)])

    return written


def _murmur(data: bytes) -> int:
    return hash_of((_BINARY,), (data,), _SEED)


def _filled(order: Sequence[int], hashes: Sequence[int]) -> list[int]:
    """The keys, place by place, of a table that was filled in this order."""
    capacity = _CAPACITY
    table: list[int | None] = [None] * capacity
    for count, key in enumerate(order, 1):
        _put(table, key, hashes[key])
        if count > int(_LOAD * capacity):
            capacity *= 2
            before, table = table, [None] * capacity
            for moved in before:
                if moved is not None:
                    _put(table, moved, hashes[moved])
    return [key for key in table if key is not None]


def _put(table: list[int | None], key: int, hash_: int) -> None:
    mask = len(table) - 1
    place, step = hash_of((_INTEGER,), (hash_,), 0) & mask, 1
    while table[place] is not None:
        place, step = (place + step) & mask, step + 1
    table[place] = key


def _long(value: int) -> int:
    value &= _LONG
    return (value ^ value >> 32) & _INT


def _float(value: float) -> int:
    return 0x7FC00000 if value != value else int(struct.unpack("<I", struct.pack("<f", value))[0])


def _double(value: float) -> int:
    return _long(_bits("double")(value))


def _binary(value: bytes) -> int:
    out = 1
    for byte in value:
        out = (31 * out + (byte if byte < 128 else byte - 256)) & _INT
    return out


def _decimal(value: Decimal) -> int:
    """Scala's hash of a decimal.

    It is the hash of the whole number if it is one; else of the double if the decimal equals its
    text; else of digits and scale.
    """
    if value == value.to_integral_value():
        whole = int(value)
        return _whole(whole) if -(1 << 63) <= whole < 1 << 63 else _big_integer(whole)
    as_double = float(value)
    if Decimal(repr(as_double)) == value:
        as_float = single(as_double)
        return _float(as_float) if as_float == as_double else _double(as_double)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)))
    while number % 10 == 0:
        number, exponent = number // 10, exponent + 1
    word = -exponent * 0xCC9E2D51 & _INT
    word = (word << 15 | word >> 17) * 0x1B873593 & _INT
    return _big_integer(-number if sign else number) ^ word


def _big_integer(value: int) -> int:
    magnitude, out = abs(value), 0
    words = -(-magnitude.bit_length() // 32)
    for word in struct.unpack(f">{words}I", magnitude.to_bytes(4 * words, "big")):
        out = (31 * out + word) & _INT
    return (-out if value < 0 else out) & _INT

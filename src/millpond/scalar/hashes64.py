"""Spark's 64 bit hash of any values.

Source:  XxHash64 and XXH64, Spark 4.3; xxHash by Yann Collet.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Context
from typing import Any

from millpond.scalar.function import Evaluate, Row, function
from millpond.scalar.hashes import refuse_hashed
from millpond.schema.definition.expression import Expression
from millpond.schema.types import SparkType

_ALL = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_EXACT = Context(prec=80)
_INTS = frozenset({"byte", "short", "integer", "date", "year_month_interval", "boolean"})
_LONGS = frozenset({"long", "timestamp", "timestamp_ntz", "day_time_interval", "time"})
_FLOAT_NAN, _DOUBLE_NAN = 0x7FC00000, 0x7FF8000000000000
_SMALL_DECIMAL = 18


def _turn(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _ALL


def _finish(value: int) -> int:
    value = (value ^ (value >> 33)) * _P2 & _ALL
    value = (value ^ (value >> 29)) * _P3 & _ALL
    return value ^ (value >> 32)


def _of_int(value: int, seed: int) -> int:
    mixed = (seed + _P5 + 4) ^ ((value & 0xFFFFFFFF) * _P1 & _ALL)
    return _finish((_turn(mixed & _ALL, 23) * _P2 + _P3) & _ALL)


def _round(value: int) -> int:
    return _turn(value * _P2 & _ALL, 31) * _P1 & _ALL


def _of_long(value: int, seed: int) -> int:
    mixed = ((seed + _P5 + 8) & _ALL) ^ _round(value & _ALL)
    return _finish((_turn(mixed, 27) * _P1 + _P4) & _ALL)


def _of_bytes(data: bytes, seed: int) -> int:
    place, size = 0, len(data)
    if size >= 32:
        lanes = [(seed + _P1 + _P2) & _ALL, (seed + _P2) & _ALL, seed & _ALL, (seed - _P1) & _ALL]
        while place <= size - 32:
            words = struct.unpack_from("<4Q", data, place)
            lanes = [_turn((v + w * _P2) & _ALL, 31) * _P1 & _ALL for v, w in zip(lanes, words, strict=True)]
            place += 32
        found = sum(_turn(v, bits) for v, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _ALL
        for lane in lanes:
            found = ((found ^ _round(lane)) * _P1 + _P4) & _ALL
    else:
        found = (seed + _P5) & _ALL
    found = (found + size) & _ALL
    while place <= size - 8:
        (word,) = struct.unpack_from("<Q", data, place)
        found = (_turn(found ^ _round(word), 27) * _P1 + _P4) & _ALL
        place += 8
    if place <= size - 4:
        (word,) = struct.unpack_from("<I", data, place)
        found = (_turn(found ^ (word * _P1 & _ALL), 23) * _P2 + _P3) & _ALL
        place += 4
    for byte in data[place:]:
        found = _turn(found ^ (byte * _P5 & _ALL), 11) * _P1 & _ALL
    return _finish(found)


def _hash(type_: SparkType, value: Any, seed: int) -> int:
    if value is None:
        return seed
    kind = type_.kind
    if kind in _INTS:
        return _of_int(int(value), seed)
    if kind in _LONGS:
        return _of_long(value, seed)
    if kind == "float":
        return _of_int(_FLOAT_NAN if math.isnan(value) else struct.unpack("<I", struct.pack("<f", value + 0.0))[0], seed)
    if kind == "double":
        return _of_long(_DOUBLE_NAN if math.isnan(value) else struct.unpack("<Q", struct.pack("<d", value + 0.0))[0], seed)
    if kind == "decimal":
        whole = int(_EXACT.scaleb(value, type_.scale))
        if type_.precision <= _SMALL_DECIMAL:
            return _of_long(whole, seed)
        size = (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
        return _of_bytes(whole.to_bytes(size, "big", signed=True), seed)
    if kind in ("string", "binary"):
        return _of_bytes(value if kind == "binary" else value.encode("utf-8", "surrogateescape"), seed)
    if kind == "struct":
        for field, member in zip(type_.fields, value, strict=True):
            seed = _hash(field.type, member, seed)
        return seed
    assert type_.element is not None
    for element in value:
        seed = _hash(type_.element, element, seed)
    return seed


def _xxhash(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    types, seed = [a.type for a in e.args], e.options["seed"] & _ALL

    def evaluate(key: Row, buffers: Row) -> int:
        found: int = seed
        for type_, operand in zip(types, operands, strict=True):
            found = _hash(type_, operand(key, buffers), found)
        return found - (1 << 64) if found >> 63 else found

    return evaluate


FUNCTIONS = (function("xxhash64", _xxhash, "XxHash64", refuse=refuse_hashed, reads=("seed",)),)

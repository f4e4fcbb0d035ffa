"""Casts between Spark's types, on stored form.

Source:  org.apache.spark.sql.catalyst.expressions.Cast, Spark 4.3, in its three evaluation modes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from millpond.schema.types import INTEGERS, SparkType
from millpond.tables.finish_decimal import fit, overflow, truncated, wrap

Stored = Any
Convert = Callable[[Stored], Stored]
_MICROS = 1_000_000
_DAY_MICROS = 86_400 * _MICROS


def compile_cast(source: SparkType, target: SparkType, mode: str) -> Convert:
    """A function from a value (not NULL) of one type to another's.

    mode:  ansi, try or legacy; see finish_decimal
    """
    if source == target or source.kind == target.kind == "string" or source.kind == "void":
        return _same
    key = (source.kind, target.kind)
    if key in _TIMES:
        return _TIMES[key]
    if target.kind in INTEGERS:
        return _to_integer(source, target, mode)
    if target.kind in ("float", "double"):
        return _to_float(target)
    if target.kind == "decimal":
        return _to_decimal(source, target, mode)
    if target.kind == "boolean":
        return lambda v: v != 0
    if target.kind == "string":
        return _to_string(source)
    return _same


def single(value: float) -> float:
    """The nearest float of 32 bits; too large ones become infinite."""
    return ctypes.c_float(value).value


def _same(value: Stored) -> Stored:
    return value


_TIMES: dict[tuple[str, str], Convert] = {
    ("timestamp", "long"): lambda v: v // _MICROS,
    ("timestamp", "double"): lambda v: v / 1000000.0,
    # In UTC; other zones aren't translated.
    ("timestamp", "date"): lambda v: v // _DAY_MICROS,
    ("date", "timestamp"): lambda v: v * _DAY_MICROS,
}


def _to_integer(source: SparkType, target: SparkType, mode: str) -> Convert:
    if source.kind == "boolean":
        return int
    if source.kind in INTEGERS:
        return lambda v: wrap(v, target, mode)
    if source.kind == "decimal":
        return lambda v: wrap(truncated(v), target, mode)

    def from_float(value: float) -> int | None:
        if value == value and abs(value) != math.inf:
            whole = math.trunc(value)
            if mode != "legacy":
                return wrap(whole, target, mode)
        elif mode != "legacy":
            if mode == "ansi":
                raise overflow(target)
            return None
        return _java_narrow(value, target)

    return from_float


def _java_narrow(value: float, target: SparkType) -> int | None:
    """Java's cast of a double: NaN is zero, the rest saturates at long or int, and bytes and shorts are cut out of the int."""
    bound = 1 << (63 if target.kind == "long" else 31)
    if value != value:
        return 0
    whole = max(-bound, min(bound - 1, math.trunc(value) if abs(value) != math.inf else (bound if value > 0 else -bound)))
    return wrap(whole, target, "legacy")


def _to_float(target: SparkType) -> Convert:
    if target.kind == "double":
        return float
    return lambda v: single(float(v))


def _to_decimal(source: SparkType, target: SparkType, mode: str) -> Convert:
    if source.kind in ("float", "double"):

        def from_float(value: float) -> Decimal | None:
            if value != value or abs(value) == math.inf:
                if mode == "ansi":
                    raise overflow(target)
                return None
            # Spark goes by the shortest decimal text of the double.
            return fit(Decimal(repr(value)), target, mode)

        return from_float
    return lambda v: fit(Decimal(v), target, mode)


def _to_string(source: SparkType) -> Convert:
    if source.kind == "boolean":
        return lambda v: "true" if v else "false"
    if source.kind == "decimal":
        return lambda v: format(v, "f")
    return str

"""Whether two values of a column are the same.

floats      NaN is NaN, and 0.0 is -0.0, as Spark's grouping has it; also inside other values
numbers     by value, also of two types: 3, 3.0 and the decimal 3.00 are the same
maps        in any order of their entries
lists       in their order
others      by all of their bytes: texts too, whatever their collation
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from millpond.schema.types import INTEGERS, SparkType
from millpond.tables.failed import FailedValue

Stored = Any
Same = Callable[[Stored, Stored], bool]
_Plain = Callable[[Stored], Any]
_NUMBERS = INTEGERS | {"float", "double", "decimal"}
_NAN = "NaN"


def compile_same(left: SparkType, right: SparkType) -> Same | None:
    """The function that compares values in stored form; None if values of these types can't be the same.

    A value that can't be computed isn't the same as any other.
    """
    if not _is_alike(left, right):
        return None
    first, second = _plain(left), _plain(right)

    def same(a: Stored, b: Stored) -> bool:
        if type(a) is FailedValue or type(b) is FailedValue:
            return False
        return bool(first(a) == second(b))

    return same


def _is_alike(left: SparkType, right: SparkType) -> bool:
    kinds = {left.kind, right.kind}
    # A type's text has the names of members, and not whether they may be NULL.
    return kinds <= _NUMBERS or kinds == {"string"} or str(left) == str(right)


def _plain(type_: SparkType) -> _Plain:
    """A function to a value that Python compares as described above."""
    kind = type_.kind
    if kind in ("float", "double"):
        return _plain_float
    if kind == "struct":
        members = [_plain(f.type) for f in type_.fields]
        return lambda value: None if value is None else tuple([m(v) for m, v in zip(members, value, strict=True)])
    if kind == "array":
        assert type_.element is not None
        element = _plain(type_.element)
        return lambda value: None if value is None else tuple([element(v) for v in value])
    if kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        key, of_key = _plain(type_.key), _plain(type_.value)
        return lambda value: None if value is None else (len(value), frozenset([(key(k), of_key(v)) for k, v in value]))
    return _as_it_is


def _plain_float(value: float | None) -> Any:
    return _NAN if value is not None and math.isnan(value) else value


def _as_it_is(value: Stored) -> Stored:
    return value

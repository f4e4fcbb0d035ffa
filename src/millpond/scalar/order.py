"""Spark's order of values in stored form: NaN above all numbers, strings by bytes, inner NULLs first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.schema.types import SparkType

Stored = Any
Rank = Callable[[Stored], Any]


def _same(value: Stored) -> Stored:
    return value


def _float(value: float) -> tuple[int, float]:
    return (1, 0.0) if value != value else (0, value)


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def rank(type_: SparkType) -> Rank:
    """A sort key for values (not NULL) of a type; equal values have equal keys."""
    if type_.kind in ("float", "double"):
        return _float
    if type_.kind == "string":
        return _text
    if type_.kind == "array":
        assert type_.element is not None
        element = nullable_rank(type_.element)
        return lambda v: [element(x) for x in v]
    if type_.kind == "struct":
        members = [nullable_rank(f.type) for f in type_.fields]
        return lambda v: [member(x) for member, x in zip(members, v, strict=True)]
    return _same


def nullable_rank(type_: SparkType) -> Rank:
    """The same for values with NULLs, which come first."""
    inner = rank(type_)
    return lambda v: (0,) if v is None else (1, inner(v))

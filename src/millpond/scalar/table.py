"""All scalar functions, by the name that definitions use and by Spark's classes."""

from __future__ import annotations

from millpond.scalar import (
    arithmetic,
    arrays,
    casts,
    fdlibm,
    formats,
    hashes,
    lambdas,
    logic,
    numbers,
    patterns,
    strict_math,
    text,
    times,
)
from millpond.scalar.function import Function

_MODULES = (arithmetic, logic, casts, numbers, strict_math, text, times, patterns, arrays, lambdas, hashes, formats, fdlibm)
FUNCTIONS: dict[str, Function] = {f.op: f for module in _MODULES for f in module.FUNCTIONS}
BY_CLASS: dict[str, Function] = {name: f for f in FUNCTIONS.values() for name in f.catalyst}

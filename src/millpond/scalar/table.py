"""All scalar functions, by the name that definitions use and by Spark's classes."""

from __future__ import annotations

from millpond.scalar import casts, hashes, logic
from millpond.scalar.collection import functions as arrays
from millpond.scalar.collection import lambdas
from millpond.scalar.function import Function
from millpond.scalar.number import arithmetic, fdlibm, strict_math
from millpond.scalar.number import functions as numbers
from millpond.scalar.text import formats, patterns
from millpond.scalar.text import functions as text
from millpond.scalar.time import functions as times

_MODULES = (arithmetic, logic, casts, numbers, strict_math, text, times, patterns, arrays, lambdas, hashes, formats, fdlibm)
FUNCTIONS: dict[str, Function] = {f.op: f for module in _MODULES for f in module.FUNCTIONS}
BY_CLASS: dict[str, Function] = {name: f for f in FUNCTIONS.values() for name in f.catalyst}

"""All scalar functions, by the name that definitions use and by Spark's classes."""

from __future__ import annotations

from millpond.scalar import casts, hashes, hashes64, logic
from millpond.scalar.collection import functions as arrays
from millpond.scalar.collection import lambdas, vectors
from millpond.scalar.function import Function
from millpond.scalar.number import arithmetic, buckets, fdlibm, strict_math
from millpond.scalar.number import functions as numbers
from millpond.scalar.sketch import functions as sketches
from millpond.scalar.text import encodings, formats, json_text, number_formats, patterns, reading, urls, words
from millpond.scalar.text import functions as text
from millpond.scalar.time import clock
from millpond.scalar.time import functions as times

_MODULES = (
    arithmetic, buckets, fdlibm, numbers, strict_math,
    logic, casts, hashes, hashes64,
    text, encodings, formats, json_text, number_formats, patterns, reading, urls, words,
    times, clock,
    arrays, lambdas, vectors, sketches,
)  # fmt: skip
FUNCTIONS: dict[str, Function] = {f.op: f for module in _MODULES for f in module.FUNCTIONS}
BY_CLASS: dict[str, Function] = {name: f for f in FUNCTIONS.values() for name in f.catalyst}

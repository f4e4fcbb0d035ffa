"""Bins with their weights: the buffers of histogram_numeric.

    buffer  int bins at most, int bins; then each: double center, double weight

Millpond doesn't merge two histograms: if bins are equally near, Spark picks at random which to
join.

Source:  HistogramNumeric and org.apache.spark.sql.util.NumericHistogram, Spark 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from millpond.scalar.casts import Casting, compile_cast
from millpond.schema.definition.expression import Expression
from millpond.schema.types import atomic
from millpond.tables.finish.buffers.buffer_bytes import BufferReader
from millpond.tables.finish.buffers.quantiles import AS_NUMBER

Stored = Any
_HEAD = struct.Struct(">ii")
_BIN = struct.Struct(">dd")


def compile_histogram(expression: Expression) -> Callable[[bytes | None], Stored]:
    """The function from a buffer to its bins, as structs of center and weight; NULL without bins."""
    assert expression.type.element is not None
    of = expression.type.element.fields[0].type
    target = atomic(AS_NUMBER.get(of.kind, of.name))
    convert = compile_cast(atomic("double"), target, Casting("legacy", expression.options.get("java")))

    def finish(data: bytes | None) -> Stored:
        if not data:
            return None
        reader = BufferReader("histogram_numeric", data)
        bins = reader.many(reader.numbers(_HEAD)[1], _BIN)
        return [(convert(center), weight) for center, weight in bins] or None

    return finish

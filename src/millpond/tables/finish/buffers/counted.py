"""Values with their counts: the buffers of percentile, percentile_disc, percentile_cont, median and mode.

    buffer  one entry for each value, in the order of Spark's hash map; then int -1
    entry   int size, UnsafeRow (value, long count)

Source:  TypedAggregateWithHashMapAsBuffer, PercentileBase, PercentileDisc and Mode in
         org.apache.spark.sql.catalyst.expressions.aggregate, Spark 4.3.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from millpond.checkpoint.rows.unsaferow import decoder, encoder
from millpond.scalar.order import rank
from millpond.schema.definition.expression import Expression
from millpond.schema.types import Field, atomic, parse_type
from millpond.tables.finish.buffers.buffer_bytes import BufferReader
from millpond.tables.finish.buffers.java_order import hash_order, java_hash

Stored = Any
Counts = list[tuple[Stored, int]]
COUNTED = frozenset({"percentile", "percentile_disc", "mode"})
_SIZE = struct.Struct(">i")
_END = _SIZE.pack(-1)


class Counted:
    """The counts in the buffers of one such function."""

    def __init__(self, expression: Expression) -> None:
        self.type = parse_type(expression.options["of"])
        self._function: str = expression.options["function"]
        fields = (Field("key", self.type), Field("count", atomic("long")))
        self._decode, self._encode = decoder(fields), encoder(fields)
        self._written = encoder(fields[:1])

    def read(self, data: bytes | None) -> Counts:
        """Each value once, with its count, in the order of the buffer."""
        out: Counts = []
        if not data:
            return out
        reader = BufferReader(self._function, data)
        while (size := reader.numbers(_SIZE)[0]) >= 0:
            value, count = self._decode(reader.bytes(size))
            if value is None or count is None:
                raise reader.damage("counts NULL")
            out.append((value, count))
        return out

    def merge(self, parts: Sequence[Sequence[Stored]]) -> list[Stored]:
        """The buffer of all parts."""
        total: dict[bytes, list[Any]] = {}
        for part in parts:
            for value, count in self.read(part[0]):
                total.setdefault(self._written((value,)), [value, 0])[1] += count
        rows = [self._encode((value, count)) for value, count in total.values()]
        return [b"".join(_SIZE.pack(len(row)) + row for row in rows) + _END]

    def looked_through(self, counts: Counts) -> Counts:
        """The same in the order in which Spark iterates over them."""
        return [counts[i] for i in hash_order([value for value, _ in counts], java_hash(self.type))]


def compile_counted(expression: Expression) -> Callable[[bytes | None], Stored]:
    """The function from a buffer to the final value."""
    counted, options = Counted(expression), expression.options
    if options["function"] == "mode":
        return _mode(counted, options["takes"])
    if options["function"] == "percentile":
        return _percentile(counted, expression, _interpolated)
    return _percentile(counted, expression, _lower if options["legacy"] else _discrete)


# ---------------------------------------------------------------- mode


def _mode(counted: Counted, takes: str) -> Callable[[bytes | None], Stored]:
    """takes:  which of the most frequent values: the lowest, the highest, or "any", Spark's first"""
    order = rank(counted.type)
    choose = {"lowest": min, "highest": max}.get(takes)

    def finish(data: bytes | None) -> Stored:
        counts = counted.read(data)
        most = max((count for _, count in counts), default=0)
        best = [value for value, count in counts if count == most]
        if len(best) < 2:
            return best[0] if best else None
        if choose is not None:
            return choose(best, key=order)
        return next(value for value, count in counted.looked_through(counts) if count == most)

    return finish


# ---------------------------------------------------------------- percentiles

_Quantile = Callable[[list[Stored], list[int], float], float]


def _percentile(counted: Counted, expression: Expression, quantile: _Quantile) -> Callable[[bytes | None], Stored]:
    percentages, is_reversed = expression.options["percentages"], bool(expression.options["reverse"])
    order, as_list = rank(counted.type), expression.type.kind == "array"
    element = expression.type.element if as_list else expression.type
    assert element is not None
    convert = float if element.kind == "double" else _narrowed(32 if element.kind == "year_month_interval" else 64)

    def finish(data: bytes | None) -> Stored:
        counts = counted.read(data)
        if not counts:
            return None
        if _has_both_zeros(counts):
            counts = counted.looked_through(counts)
        counts = sorted(counts, key=lambda pair: order(pair[0]), reverse=is_reversed)
        values, upto = [value for value, _ in counts], list(accumulate(count for _, count in counts))
        found = [convert(quantile(values, upto, percentage)) for percentage in percentages]
        return (found or None) if as_list else found[0]

    return finish


def _has_both_zeros(counts: Counts) -> bool:
    """Whether zeros of both signs occur: no other values differ and yet sort as equal."""
    return len([value for value, _ in counts if isinstance(value, float) and value == 0]) > 1


def _narrowed(bits: int) -> Callable[[float], int]:
    """Java's cast of a double to a whole number."""
    bound = 1 << (bits - 1)
    return lambda value: max(-bound, min(bound - 1, math.trunc(value)))


def _interpolated(values: list[Stored], upto: list[int], percentage: float) -> float:
    position = float(upto[-1] - 1) * percentage
    lower, higher = math.floor(position), math.ceil(position)
    at, above = values[bisect_left(upto, lower + 1)], values[bisect_left(upto, higher + 1)]
    if lower == higher or at == above:
        return float(at)
    return float(at) + (position - lower) * (float(above) - float(at))


def _lower(values: list[Stored], upto: list[int], percentage: float) -> float:
    position = float(upto[-1] - 1) * percentage
    return float(values[bisect_left(upto, math.floor(position) + 1)])


def _discrete(values: list[Stored], upto: list[int], percentage: float) -> float:
    return float(values[bisect_left(upto, math.ceil(float(upto[-1]) * percentage))])

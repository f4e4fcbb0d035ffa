"""The k values that stand highest or lowest by another: what Spark keeps of `max_by(x, y, k)` and `min_by(x, y, k)`.

    values       array of k: the first `size` count
    orderings    array of k: what each is ordered by, never NULL where it counts
    heapIndices  `size`, then the places of the heap: little-endian ints, k of them

Source:  MaxMinByK and MaxMinByKHeap in org.apache.spark.sql.catalyst.expressions.aggregate, Spark 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from millpond.errors import CheckpointError
from millpond.replica.ordered import column_writer
from millpond.schema.expression import Expression
from millpond.schema.types import SparkType, parse_type

Stored = Any
# Function -> whether the highest are kept.
TOP = {"max_by_k": True, "min_by_k": False}
_INT_BYTES = 4


class Top:
    """One such function."""

    def __init__(self, order: Callable[[Stored], Any], *, highest: bool) -> None:
        self._order = order
        self._highest = highest

    def values(self, buffers: Sequence[Stored]) -> list[Stored] | None:
        """The values in their order, NULL where there is none; those that stand equally high as Spark keeps them."""
        return [value for value, _ in self._sorted(_counting(buffers))] or None

    def merge(self, parts: Sequence[Sequence[Stored]]) -> list[Stored]:
        """The buffers of all parts; of values that stand equally high any are kept, as in Spark."""
        k = len(parts[0][2]) // _INT_BYTES - 1
        kept = self._sorted([pair for part in parts for pair in _counting(part)])[:k]
        empty = [None] * (k - len(kept))
        heap = struct.pack(f"<{k + 1}i", len(kept), *range(k))
        return [[value for value, _ in kept] + empty, [by for _, by in kept] + empty, heap]

    def _sorted(self, pairs: list[tuple[Stored, Stored]]) -> list[tuple[Stored, Stored]]:
        return sorted(pairs, key=lambda pair: self._order(pair[1]), reverse=self._highest)


def top(expression: Expression) -> Top:
    """The function of an `aggregate` expression that is one of TOP."""
    return Top(order_of(parse_type(expression.options["ordered_by"])), highest=TOP[expression.options["function"]])


def order_of(type_: SparkType) -> Callable[[Stored], Any]:
    """What stands for a value where values are compared."""
    if type_.kind in ("float", "double"):
        return lambda value: (value != value, value)  # NaN is above all
    return column_writer(type_)


def _counting(buffers: Sequence[Stored]) -> list[tuple[Stored, Stored]]:
    values, orderings, heap = buffers
    size = int.from_bytes(heap[:_INT_BYTES], "little")
    if len(heap) < _INT_BYTES or size > min(len(values), len(orderings)):
        raise CheckpointError(
            "CORRUPT_FILE",
            f"A heap of max_by or min_by claims {size} of {len(values)} values.",
            hint="Compare the job's checkpoint with a backup; report this if Spark can read it.",
        )
    return list(zip(values[:size], orderings[:size], strict=True))

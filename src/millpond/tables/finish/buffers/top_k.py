"""The k values with the highest or lowest sort keys: the buffers of `max_by(x, y, k)` and `min_by`.

    values       array of k: only the first `size` count
    orderings    array of k: their sort keys; those that count are never NULL
    heapIndices  `size`, then the places of the heap: little-endian ints, k of them

The surprising part: values with equal sort keys come in the heap's order, not in that of the
arrays. Before Spark emits a row, it puts the stored heap, place by place, into an empty one, and
sorts that stably.

Source:  MaxMinByK and MaxMinByKHeap in org.apache.spark.sql.catalyst.expressions.aggregate, Spark
         4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millpond.errors import CheckpointError
from millpond.scalar.order import rank
from millpond.schema.definition.expression import Expression
from millpond.schema.types import parse_type

Stored = Any
# Function -> whether it keeps the highest.
TOP = {"max_by_k": True, "min_by_k": False}
_INT_BYTES = 4


class Top:
    """One such function."""

    def __init__(self, order: Callable[[Stored], Any], *, highest: bool) -> None:
        self._order = order
        self._highest = highest

    def values(self, buffers: Sequence[Stored]) -> list[Stored] | None:
        """The values in order; NULL if there are none.  Values with equal sort keys keep the heap's order."""
        pairs = sorted(_in_heap(buffers), key=lambda pair: self._order(pair[1]), reverse=self._highest)
        return [value for value, _ in pairs] or None

    def merge(self, parts: Sequence[Sequence[Stored]]) -> list[Stored]:
        """The buffers of all parts, merged as Spark merges partial ones: heap by heap, place by place."""
        k = len(parts[0][2]) // _INT_BYTES - 1
        heap = _Heap(k, self._order, highest=self._highest)
        for part in parts:
            heap.take(_in_heap(part))
        return heap.buffers()


class _Heap:
    """A heap of the best k; its root is the first to be replaced."""

    def __init__(self, k: int, order: Callable[[Stored], Any], *, highest: bool) -> None:
        self._k = k
        self._order = order
        self._highest = highest
        self._pairs: list[tuple[Stored, Stored]] = []
        self._ranks: list[Any] = []
        self._places: list[int] = []

    def take(self, pairs: Iterable[tuple[Stored, Stored]]) -> None:
        for pair in pairs:
            standing = self._order(pair[1])
            if len(self._pairs) < self._k:
                self._places.append(len(self._pairs))
                self._pairs.append(pair)
                self._ranks.append(standing)
                self._sift_up(len(self._places) - 1)
            elif self._gives_way(self._ranks[self._places[0]], standing):
                place = self._places[0]
                self._pairs[place], self._ranks[place] = pair, standing
                self._sift_down()

    def buffers(self) -> list[Stored]:
        empty = self._k - len(self._pairs)
        heap = struct.pack(f"<{self._k + 1}i", len(self._pairs), *self._places, *[0] * empty)
        return [[value for value, _ in self._pairs] + [None] * empty, [by for _, by in self._pairs] + [None] * empty, heap]

    def _gives_way(self, one: Any, other: Any) -> bool:
        return bool(one < other if self._highest else other < one)

    def _at(self, at: int) -> Any:
        return self._ranks[self._places[at]]

    def _swap(self, a: int, b: int) -> None:
        self._places[a], self._places[b] = self._places[b], self._places[a]

    def _sift_up(self, at: int) -> None:
        while at > 0:
            parent = (at - 1) // 2
            if not self._gives_way(self._at(at), self._at(parent)):
                return
            self._swap(at, parent)
            at = parent

    def _sift_down(self) -> None:
        at = 0
        while (child := 2 * at + 1) < len(self._places):
            if child + 1 < len(self._places) and self._gives_way(self._at(child + 1), self._at(child)):
                child += 1
            if not self._gives_way(self._at(child), self._at(at)):
                return
            self._swap(at, child)
            at = child


def top(expression: Expression) -> Top:
    """The function of an `aggregate` expression that is one of TOP."""
    return Top(rank(parse_type(expression.options["ordered_by"])), highest=TOP[expression.options["function"]])


def _in_heap(buffers: Sequence[Stored]) -> list[tuple[Stored, Stored]]:
    """The values that count, with their sort keys, in the order of the heap."""
    values, orderings, heap = buffers
    ints = struct.unpack_from(f"<{len(heap) // _INT_BYTES}i", heap)
    size, places = (ints[0], ints[1:]) if ints else (1, ())
    within = range(min(len(values), len(orderings)))
    if not 0 <= size <= len(places) or any(place not in within for place in places[:size]):
        raise CheckpointError(
            "CORRUPT_FILE",
            f"A heap of max_by or min_by claims {size} of {len(values)} values.",
            hint="Compare the job's checkpoint with a backup; report this if Spark can read it.",
        )
    return [(values[place], orderings[place]) for place in places[:size]]

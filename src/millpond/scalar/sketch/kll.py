"""KLL sketches of numbers: quantiles and ranks, and their union.

A sketch has items in levels; an item of level n stands for 2**n values.

    preamble  5 ints: bytes of ints, version, family 15, flags, u16 k, u8 m, u8; i64 n; u16 least k, u8 levels, u16
    empty     the first 8 bytes; of one item: these, and the item
    levels    u32 for each: where its items begin in an array whose end is that of the bytes
    min, max  items; then the items

The surprising part: two sketches are merged without the library that reads HLL sketches.  It drops
items by chance, so that two reads of one batch would differ.  (So does Spark when it emits a sketch that
is full.)  Here the union has the items of both,
level by level: nothing is lost, and it needs no more memory than what is merged.

Source:  KllPreambleUtil, IncludeMinMax and QuantilesUtil of Java's DataSketches 6.2; tests compare
         with Spark.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from millpond.scalar.sketch.damage import damaged

CONFIDENCE = 0.99
"""How sure the bounds of a quantile are: the constants of `rank_error` were measured for it."""
ITEMS = {"bigint": "<i8", "double": "<f8", "float": "<f4"}
"""The last part of the names of Spark's functions -> the items of their sketches, as numpy has them."""
_FAMILY = 15
_HEADER = struct.Struct("<BBBBHBx")
_COUNTS = struct.Struct("<QHBx")
_EMPTY, _ONE_ITEM = 1, 4
_EXACT_BELOW = 1e7
Array = Any


class Kll(NamedTuple):
    """A sketch.

    k:             its size; of merged sketches the least
    n:             how many values it has seen
    least, most:   the extremes of these; None without values
    levels:        items of each level, in no order
    """

    k: int
    n: int
    least: Any
    most: Any
    levels: tuple[Array, ...]


def rank_error(k: int) -> float:
    """How far the rank of a quantile may be from the one that was asked for.

    Source:  KllHelper.getNormalizedRankError of one side.
    """
    return float(2.296 / k**0.9021)


@lru_cache(maxsize=64)
def read_kll(data: bytes, kind: str) -> Kll:
    """A sketch from its bytes.

    kind:    one of ITEMS
    Raises:  CORRUPT_FILE.
    """
    import numpy as np

    if len(data) < _HEADER.size:
        raise damaged("KLL", data, "its header isn't whole")
    ints, version, family, flags, k, m = _HEADER.unpack_from(data)
    if family != _FAMILY or version not in (1, 2) or ints not in (2, 5) or k < 2 or m < 2:
        raise damaged("KLL", data, "it has no such header")
    dtype = np.dtype(ITEMS[kind])
    if flags & _EMPTY:
        return Kll(k, 0, None, None, ())
    if flags & _ONE_ITEM:
        items = _items(data, _HEADER.size, dtype)
        if len(items) != 1:
            raise damaged("KLL", data, "it should have one item")
        return Kll(k, 1, items[0], items[0], (items,))
    if len(data) < _HEADER.size + _COUNTS.size:
        raise damaged("KLL", data, "its header isn't whole")
    n, least_k, count = _COUNTS.unpack_from(data, _HEADER.size)
    at = _HEADER.size + _COUNTS.size
    if not count or len(data) < at + 4 * count:
        raise damaged("KLL", data, "it has fewer items than it claims")
    begins = struct.unpack_from(f"<{count}I", data, at)
    items = _items(data, at + 4 * count, dtype)
    if len(items) < 2:
        raise damaged("KLL", data, "it has fewer items than it claims")
    least, most, items = items[0], items[1], items[2:]
    bounds = [0, *(begin - begins[0] for begin in begins[1:]), len(items)]
    sizes = [end - begin for begin, end in pairwise(bounds)]
    if min(sizes) < 0 or sum(size << level for level, size in enumerate(sizes)) != n:
        raise damaged("KLL", data, "its levels don't have the values that it has seen")
    return Kll(min(k, least_k), n, least, most, tuple(items[begin:end] for begin, end in pairwise(bounds)))


def merge_kll(parts: Sequence[bytes], kind: str) -> bytes:
    """The union of sketches, with all their items.  Raises CORRUPT_FILE.

    It is too large for the size that it claims, and only `read_kll` reads it.
    """
    import numpy as np

    each = [read_kll(data, kind) for data in parts]
    filled = [(data, sketch) for data, sketch in zip(parts, each, strict=True) if sketch.n]
    if len(filled) <= 1:
        return filled[0][0] if filled else parts[0]
    sketches = [sketch for _, sketch in filled]
    k, n = min(s.k for s in sketches), sum(s.n for s in sketches)
    count = max(len(s.levels) for s in sketches)
    levels = [np.concatenate([s.levels[level] for s in sketches if level < len(s.levels)]) for level in range(count)]
    begins = np.cumsum([0, *(len(level) for level in levels[:-1])])
    extremes = [min(s.least for s in sketches), max(s.most for s in sketches)]
    items = np.concatenate([np.array(extremes, ITEMS[kind]), *levels])
    header = _HEADER.pack(5, 1, _FAMILY, 0, k, 8) + _COUNTS.pack(n, k, count)
    return b"".join([header, begins.astype("<u4").tobytes(), items.astype(ITEMS[kind]).tobytes()])


@lru_cache(maxsize=1)
def sorted_items(data: bytes, kind: str) -> SortedItems:
    """The items of a sketch that isn't empty: those of one answer are asked for its value and for its bounds.

    Raises:  CORRUPT_FILE.
    """
    return SortedItems(read_kll(data, kind))


class SortedItems:
    """The items of a sketch that isn't empty, in order, each with the number of values up to it."""

    def __init__(self, sketch: Kll) -> None:
        import numpy as np

        items = np.concatenate(sketch.levels)
        weights: Array = np.repeat([1 << level for level in range(len(sketch.levels))], [len(level) for level in sketch.levels])
        # Java sorts -0.0 before 0.0, as their bits do, which are numbers with a sign of their own.
        keys = items if items.dtype.kind == "i" else items.view(f"i{items.dtype.itemsize}")
        if keys is not items:
            keys = np.where(keys < 0, keys ^ np.iinfo(keys.dtype).max, keys)
        order = np.argsort(keys)
        items, upto = items[order], np.cumsum(weights[order])
        if items[0] != sketch.least:
            items, upto = np.concatenate([[sketch.least], items]), np.concatenate([[1], upto])
        if items[-1] != sketch.most:
            items, upto = np.concatenate([items, [sketch.most]]), np.concatenate([upto, [upto[-1]]])
            upto[-2] -= 1
        self._items, self._upto, self._n = items, upto, sketch.n

    def quantile(self, rank: float) -> Any:
        """The least item up to which there are so many values, as a share of all."""
        import numpy as np

        natural = rank * self._n
        if self._n <= _EXACT_BELOW:
            natural = math.floor(natural * _EXACT_BELOW + 0.5) / _EXACT_BELOW
        place = int(np.searchsorted(self._upto, math.ceil(natural)))
        return self._items[min(place, len(self._items) - 1)].item()

    def rank(self, value: Any) -> float:
        """The share of values up to this one."""
        import numpy as np

        place = int(np.searchsorted(self._items, value, side="right"))
        return float(self._upto[place - 1] / self._n) if place else 0.0


def _items(data: bytes, at: int, dtype: Any) -> Array:
    import numpy as np

    if at > len(data) or (len(data) - at) % dtype.itemsize:
        raise damaged("KLL", data, "its items aren't whole")
    return np.frombuffer(data, dtype, offset=at)

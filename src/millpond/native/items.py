"""Sketches of frequent items, merged and read by the compiled library: the bytes and answers of `tables/finish/buffers/items.py`.

Each function returns None without the library, or if the library rejects a sketch.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from millpond.native.library import library

KINDS = {
    "string": 0,
    **dict.fromkeys(("long", "timestamp", "timestamp_ntz", "time"), 1),
    "double": 2,
    "byte": 3,
    "short": 4,
    **dict.fromkeys(("integer", "date"), 5),
    "float": 6,
}
"""Kind of Spark type -> how its items are written and hashed, as in items.c"""
# What a union has beside counts and items.
_REST_BYTES = 40
_LEAST_ITEM_BYTES = 10
_MOST_SORTED = 1024
_SEED = secrets.randbits(63)


class Top(NamedTuple):
    """The most frequent items of a sketch, the most frequent first.

    items:   as they are written
    counts:  how often each came at least
    offset:  how much more often each may have come
    nulls:   how many NULLs there are
    """

    items: list[bytes]
    counts: list[int]
    offset: int
    nulls: int


def merge_items(sketches: Sequence[bytes], kind: int) -> bytes | None:
    """The union of several sketches."""
    native = library()
    if native is None:
        return None
    data, size = (ctypes.c_char_p * len(sketches))(*sketches), (ctypes.c_int64 * len(sketches))(*map(len, sketches))
    out: bytes = native.new_bytes(None, sum(size) + _REST_BYTES)
    written = native.c.merge_items(len(sketches), ctypes.addressof(data), ctypes.addressof(size), kind, _SEED, out)
    return None if written < 0 else out[:written]


def top_items(sketch: bytes, kind: int, most: int) -> Top | None:
    """Of a sketch, at most so many items."""
    return None if library() is None else _top_items(sketch, kind, min(most, len(sketch) // _LEAST_ITEM_BYTES))


@lru_cache(maxsize=1)
def _top_items(sketch: bytes, kind: int, room: int) -> Top | None:
    """An answer asks for them twice: for its value, and for its bounds."""
    native = library()
    if native is None or room > _MOST_SORTED:
        return None
    begins, sizes, counts = ((ctypes.c_int64 * room)() for _ in range(3))
    sums = (ctypes.c_int64 * 2)()
    at = [ctypes.addressof(array) for array in (begins, sizes, counts, sums)]
    found = native.c.top_items(sketch, len(sketch), kind, _SEED, room, *at)
    if found < 0:
        return None
    items = [sketch[begins[i] : begins[i] + sizes[i]] for i in range(found)]
    return Top(items, counts[:found], *sums)

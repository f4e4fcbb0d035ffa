"""Memory for what is large.  Most of what fresh memory costs are its pages, which the system hands out one by one.

So what is soon gone is used again, and pages are asked for many at once.  Large pages, for which numpy asks where an
array has 4 MiB, were measured: they cost a fifth where the system has just got them back, and five times as much where it hasn't,
which is what a reader that comes once meets.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

from millpond.native.library import library

Array = Any
"""A numpy array"""
_SLAB_BYTES = 16 << 20
_ALIGNED = 64
# Partitions aren't all of one size.
_SPARE = 8


class Memory:
    """Buffers of one thread."""

    def __init__(self) -> None:
        self._buffers: list[Array] = []
        self._slab: Array = None
        self._used = 0

    def take(self, size_bytes: int) -> memoryview:
        """So many bytes, which are used again as soon as nobody looks into them any more; what stands in them means nothing.

        Whatever looks into a buffer (a view, an array, Arrow) holds a reference to it, and CPython counts those: one that is still
        looked into is never given out again.
        """
        free = [i for i in range(len(self._buffers)) if sys.getrefcount(self._buffers[i]) == _ALONE]
        fitting = [i for i in free if len(self._buffers[i]) >= size_bytes]
        if fitting:
            at = min(fitting, key=lambda i: len(self._buffers[i]))
        else:
            if free:  # too small: the next partition is about as large as this one
                del self._buffers[max(free, key=lambda i: len(self._buffers[i]))]
            at = len(self._buffers)
            self._buffers.append(_fresh(size_bytes + size_bytes // _SPARE))
            _get_pages(self._buffers[at], size_bytes)
        return memoryview(self._buffers[at])[:size_bytes]

    def numbers(self, arrays: int, count: int) -> Array:
        """So many arrays of so many int64, as `take`."""
        import numpy as np

        return np.frombuffer(self.take(8 * arrays * count), np.int64).reshape(arrays, count)

    def keep(self, size_bytes: int) -> Array:
        """So many bytes, as an array, that stay."""
        if size_bytes > _SLAB_BYTES // 2:
            return _get_pages(_fresh(size_bytes), size_bytes)
        if self._slab is None or self._used + size_bytes > _SLAB_BYTES:
            self._slab, self._used = _fresh(_SLAB_BYTES), 0
        found = self._slab[self._used : self._used + size_bytes]
        self._used += -(-size_bytes // _ALIGNED) * _ALIGNED
        return _get_pages(found, size_bytes)


def _fresh(size_bytes: int) -> Array:
    """Pages of the system's own, of which those that nobody touches cost nothing."""
    import numpy as np

    pages = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.uint8)


def _get_pages(array: Array, size_bytes: int) -> Array:
    """So much of the array, with its pages."""
    native = library()
    if native is not None and size_bytes:
        native.c.get_pages(array.ctypes.data, size_bytes)
    return array[:size_bytes]


# How many references a buffer has that only the list holds.
_ALONE = (lambda held: sys.getrefcount(held[0]))([object()])

"""Large buffers, used again: fresh memory costs a page fault for every 4 KiB.

Rejected: large pages, which numpy asks for above 4 MiB.  They cost a fifth of that if the system
has some, but five times as much if it must make them, which is the usual case for a process that
reads once.  Also rejected: asking for many pages in one call (`MADV_POPULATE_WRITE`), which changed
a whole read by less than a tenth.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

Array = Any
"""A numpy array"""
_SLAB_BYTES = 16 << 20
_ALIGNED = 64
# A buffer is an eighth larger than asked for, since partitions differ in size.
_SPARE = 8


class Memory:
    """The buffers of one thread."""

    def __init__(self) -> None:
        self._buffers: list[Array] = []
        self._slab: Array = None
        self._used = 0

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of so many bytes with arbitrary content.  It is used again when no view of it is left.

        Every view (a memoryview, an array, Arrow) holds a reference to the buffer, and CPython
        counts references.  So a buffer that is still in use is never returned again.
        """
        free = [i for i in range(len(self._buffers)) if sys.getrefcount(self._buffers[i]) == _ALONE]
        fitting = [i for i in free if len(self._buffers[i]) >= size_bytes]
        if fitting:
            at = min(fitting, key=lambda i: len(self._buffers[i]))
        else:
            if free:  # too small: the next partition is about as large as this one, so drop one
                del self._buffers[max(free, key=lambda i: len(self._buffers[i]))]
            at = len(self._buffers)
            self._buffers.append(_fresh(size_bytes + size_bytes // _SPARE))
        return memoryview(self._buffers[at])[:size_bytes]

    def numbers(self, arrays: int, count: int) -> Array:
        """So many arrays of so many int64 each, as `take`."""
        import numpy as np

        return np.frombuffer(self.take(8 * arrays * count), np.int64).reshape(arrays, count)

    def keep(self, size_bytes: int) -> Array:
        """An array of so many bytes, which isn't used again."""
        if size_bytes > _SLAB_BYTES // 2:
            return _fresh(size_bytes)[:size_bytes]
        if self._slab is None or self._used + size_bytes > _SLAB_BYTES:
            self._slab, self._used = _fresh(_SLAB_BYTES), 0
        found = self._slab[self._used : self._used + size_bytes]
        self._used += -(-size_bytes // _ALIGNED) * _ALIGNED
        return found


def _fresh(size_bytes: int) -> Array:
    """Memory from the system; pages that nobody touches cost nothing."""
    import numpy as np

    pages = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.uint8)


# The reference count of a buffer that only the list refers to.
_ALONE = (lambda buffers: sys.getrefcount(buffers[0]))([object()])

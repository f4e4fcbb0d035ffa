"""The rate of each client, counted by all doors of a server in a shared table of fixed size.

A client's bucket is one number: the time when it would be full again without further requests (the
generic cell rate algorithm).  A request moves that time on by the interval of one request.  It is
refused if the time would be further ahead than a full bucket.

1. A hash of a client's name picks a few slots.  If the client has none of them, it takes the one
   that is full soonest.
2. There is no lock, with which a stopped door would stop the others.  Two requests at the very same
   moment may count as one.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from pathlib import Path

# How many clients are known at one time; 16 bytes each.
_SLOTS = 16_384
_WAYS = 8
_WIDTH = 8


class Rates:
    """The buckets of all clients.

    per_second:  requests of one client, on average
    burst:       how many may come at once
    folder:      shared by the processes that count together; None for a single process
    name:        of the file there
    """

    def __init__(self, per_second: float, burst: float, folder: Path | None = None, *, name: str = "rates") -> None:
        self._seconds = 1.0 / per_second
        self._ahead = (burst - 1) * self._seconds
        size = 2 * _SLOTS * _WIDTH
        memory = memoryview(mmap.mmap(-1, size) if folder is None else _shared(folder / name, size))
        self._names = memory[: _SLOTS * _WIDTH].cast("Q")
        self._full_at = memory[_SLOTS * _WIDTH :].cast("d")

    def take(self, client: str) -> float:
        """Count one more request: 0.0 if it is allowed, else the seconds until one is.

        Refused requests don't count.
        """
        slot, now = self._slot(client), time.monotonic()  # the machine's clock, the same for all doors
        full_at = max(self._full_at[slot], now)
        wait = full_at - now - self._ahead
        if wait > 0:
            return wait
        self._full_at[slot] = full_at + self._seconds
        return 0.0

    def _slot(self, client: str) -> int:
        name = int.from_bytes(hashlib.blake2b(client.encode("utf-8", "surrogateescape"), digest_size=_WIDTH).digest())
        first = name % (_SLOTS // _WAYS) * _WAYS
        slots = range(first, first + _WAYS)
        for slot in slots:
            if self._names[slot] == name:
                return slot
        free = min(slots, key=self._full_at.__getitem__)
        self._names[free], self._full_at[free] = name, 0.0
        return free


def _shared(path: Path, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)  # every door does it; the contents stay
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)

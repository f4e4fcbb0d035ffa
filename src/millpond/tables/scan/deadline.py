"""By when a read must end: an open read keeps old pages of the replica from reuse."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from millpond.errors import ReplicaError

Item = TypeVar("Item")
_CHECK_EVERY = 4096


class Deadline:
    """The end of a read of a table, so many seconds from now."""

    def __init__(self, table: str, seconds: float) -> None:
        self._table = table
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    def check(self) -> None:
        """Raise READ_TOO_LONG if the time is over."""
        if time.monotonic() > self._ends:
            raise too_long(self._table, self._seconds)

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, as long as there is time.  The iterator raises READ_TOO_LONG."""
        for number, item in enumerate(items):
            if number % _CHECK_EVERY == 0:
                self.check()
            yield item


def too_long(table: str, seconds: float) -> ReplicaError:
    """A read that kept its view open for too long."""
    return ReplicaError(
        "READ_TOO_LONG",
        f"The read of {table} was ended after {seconds:g} seconds, since an open read keeps old pages from reuse.",
        hint="Narrow it with key columns or a limit.",
        table=table,
    )

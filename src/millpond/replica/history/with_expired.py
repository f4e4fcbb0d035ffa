"""The rows of a table together with its expired rows, in key order, marked final.

If a key is in the state again, its expired row doesn't count.  Scans leave out an expired row whose
last value was never seen; `get` returns an empty row for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter

from millpond.replica.backends.base import Snapshot
from millpond.replica.history.keeper import closed_table
from millpond.replica.keys.codec import split_value
from millpond.replica.record import ReplicaRecord
from millpond.replica.row_stamp import without_stamp

Pairs = Iterator[tuple[bytes, bytes]]
_key = itemgetter(0)


class SnapshotWithClosed:
    """See `backends.base.Snapshot`."""

    def __init__(self, rows: Snapshot) -> None:
        self.rows = rows

    def __enter__(self) -> SnapshotWithClosed:
        return self

    def __exit__(self, *error: object) -> None:
        self.rows.__exit__(*error)

    def record(self) -> ReplicaRecord:
        return self.rows.record()

    def get(self, table: str, key: bytes) -> bytes | None:
        found = self.rows.get(table, key)
        return self.rows.get(closed_table(table), key) if found is None else found

    def iterate(self, table: str, start: bytes) -> Pairs:
        closed = self.rows.iterate(closed_table(table), start)
        return _merged(self.rows.iterate(table, start), closed)

    def iterate_back(self, table: str, below: bytes | None) -> Pairs:
        closed = self.rows.iterate_back(closed_table(table), below)
        return _merged(self.rows.iterate_back(table, below), closed, reverse=True)

    def count(self, table: str) -> int:
        closed = self.rows.iterate(closed_table(table), b"\x00")
        more = sum(1 for key, value in closed if is_known(key, value) and self.rows.get(table, key) is None)
        return self.rows.count(table) + more


def is_known(key: bytes, stored: bytes) -> bool:
    """Whether the last value of an expired row was seen."""
    return split_value(key, without_stamp(stored))[1] != b""


def _merged(live: Pairs, closed: Pairs, *, reverse: bool = False) -> Pairs:
    """Both in key order; of two rows with one key, the live one."""
    before: bytes | None = None
    for pair in merge(live, (pair for pair in closed if is_known(*pair)), key=_key, reverse=reverse):
        if pair[0] != before:
            yield pair
        before = pair[0]

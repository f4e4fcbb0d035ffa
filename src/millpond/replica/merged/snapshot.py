"""A store whose rows lie in parts as one table: keys without their first column, parts merged.

A part's rows are one range of the store, since the column of the part is the first of the key.

1. A lookup of one key asks each part.
2. A scan reads the ranges of all parts side by side, in key order, and merges rows with equal keys.
3. Once per batch, check that only known parts follow each other, since rows of an unknown part
   would be missing.

Expired rows are merged too, but only of batches of which none was removed: a row that lacks a part
would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter

from millpond.errors import DefinitionError
from millpond.replica.backends.base import Snapshot
from millpond.replica.history.keeper import closed_table
from millpond.replica.keys.codec import KEYLESS, PREFIX_BYTES, is_cut, join_value, split_value, store_key
from millpond.replica.record import ReplicaRecord
from millpond.replica.row_stamp import newest_stamp, stamp_batch, without_stamp
from millpond.replica.scan import after_prefix, iter_prefix, iter_range

Pairs = Iterator[tuple[bytes, bytes]]
Merge = Callable[[bytes, Sequence[bytes | None]], bytes]
"""(ordered key without the part, row of each part or None) -> the merged row; may raise errors"""
_key = itemgetter(0)


@dataclass(slots=True)
class StoreParts:
    """A store in parts.

    store:     its name in the replica
    prefixes:  the first bytes of the ordered keys of each part, ascending
    is_single: whether a key is only its part, so that there is at most one row
    are_copies: whether all parts should have the same rows
    merge:     merges the rows of a key
    checked:   the last batch that passed `check_parts`
    """

    store: str
    prefixes: tuple[bytes, ...]
    is_single: bool
    are_copies: bool
    merge: Merge
    checked: int | None = None

    def split(self, ordered: bytes) -> tuple[int, bytes]:
        """The part of a key of the store, and the rest of the key.

        Raises:  DEFINITION_MISMATCH without one.
        """
        for number, prefix in enumerate(self.prefixes):
            if ordered.startswith(prefix):
                return number, KEYLESS if self.is_single else ordered[len(prefix) :]
        raise DefinitionError(
            "DEFINITION_MISMATCH",
            f"The store {self.store} has rows in a part that its definition doesn't list.",
            hint="Define the table again with the DataFrame that the job runs.",
            store=self.store,
        )

    def join(self, number: int, key: bytes) -> bytes:
        """The ordered key in the store, or a prefix of keys, for a key without its part."""
        return self.prefixes[number] if self.is_single else self.prefixes[number] + key


def check_parts(rows: Snapshot, parts: StoreParts, *, may_expire: bool) -> None:  # 3
    """Raise DEFINITION_MISMATCH if the store has rows in an unknown part.

    may_expire:  whether to check expired rows as well
    """
    for table in (parts.store, closed_table(parts.store)) if may_expire else (parts.store,):
        beside = [next(rows.iterate_back(table, parts.prefixes[0]), None)]
        ends = [end for prefix in parts.prefixes if (end := after_prefix(prefix)) is not None]
        beside += [next(rows.iterate(table, end), None) for end in ends]
        for pair in beside:
            if pair is not None:
                parts.split(split_value(*pair)[0])


class SnapshotOfParts:
    """See `backends.base.Snapshot`."""

    def __init__(self, rows: Snapshot, parts: StoreParts, closed_forgotten: int | None) -> None:
        """The rows of a store in parts.

        closed_forgotten:  the newest batch of whose expired rows some were removed
        """
        self.rows = rows
        self._parts = parts
        self._closed = closed_table(parts.store)
        self._forgotten = -1 if closed_forgotten is None else closed_forgotten

    def __enter__(self) -> SnapshotOfParts:
        return self

    def __exit__(self, *error: object) -> None:
        self.rows.__exit__(*error)

    def record(self) -> ReplicaRecord:
        return self.rows.record()

    def get(self, table: str, key: bytes) -> bytes | None:  # 1
        if table not in (self._parts.store, self._closed):
            return self.rows.get(table, key)
        ordered = key
        found: list[bytes | None] = []
        for number in range(len(self._parts.prefixes)):
            stored = self._cut_in(table, number, key) if is_cut(key) else self._in(table, number, key)
            if stored is None:
                found.append(None)
            else:
                ordered, value = stored
                found.append(value)
        merged = self._merged(table, ordered, found)
        return merged and join_value(ordered, merged)

    def iterate(self, table: str, start: bytes) -> Pairs:
        if table not in (self._parts.store, self._closed):
            return self.rows.iterate(table, start)
        return _stored(self._iterate(table, start, None, reverse=False), reverse=False)

    def iterate_back(self, table: str, below: bytes | None) -> Pairs:
        if table not in (self._parts.store, self._closed):
            return self.rows.iterate_back(table, below)
        return _stored(self._iterate(table, b"", below, reverse=True), reverse=True)

    def count(self, table: str) -> int:
        if table not in (self._parts.store, self._closed):
            return self.rows.count(table)
        if self._parts.are_copies:
            return sum(1 for _ in self.iterate(table, b""))
        return sum(1 for _ in self._groups(table, b"", None, reverse=False))

    def _in(self, table: str, number: int, key: bytes) -> tuple[bytes, bytes] | None:
        """(key without its part, row and stamp) of a whole key in one part."""
        wanted = self._parts.join(number, key)
        stored_key = store_key(wanted)
        stored = self.rows.get(table, stored_key)
        if stored is None:
            return None
        found, value = split_value(stored_key, stored)
        return (key, value) if found == wanted else None

    def _cut_in(self, table: str, number: int, key: bytes) -> tuple[bytes, bytes] | None:
        """The same for a cut and hashed key, which is cut and hashed differently in the store."""
        for ordered, value in iter_prefix(self.rows, table, self._parts.join(number, key[:PREFIX_BYTES])):
            _, rest = self._parts.split(ordered)
            if store_key(rest) == key:
                return rest, value
        return None

    def _iterate(self, table: str, start: bytes, below: bytes | None, *, reverse: bool) -> Pairs:
        """(key without its part, merged row and stamp)."""
        for ordered, found in self._groups(table, start, below, reverse=reverse):
            merged = self._merged(table, ordered, found)
            if merged is not None:
                yield ordered, merged

    def _groups(  # 2
        self, table: str, start: bytes, below: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, list[bytes | None]]]:
        """(key without its part, row and stamp of each part)."""
        if self._parts.is_single and (start > KEYLESS or (below is not None and below <= KEYLESS)):
            return
        count = len(self._parts.prefixes)
        stretches = [self._stretch(table, number, start, below, reverse=reverse) for number in range(count)]
        for ordered, group in groupby(merge(*stretches, key=_key, reverse=reverse), key=_key):
            found: list[bytes | None] = [None] * count
            for _, number, value in group:
                found[number] = value
            yield ordered, found

    def _stretch(
        self, table: str, number: int, start: bytes, below: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, int, bytes]]:
        prefix = self._parts.prefixes[number]
        low = self._parts.join(number, start)
        whole = below is None or self._parts.is_single
        high = after_prefix(prefix) if whole else self._parts.join(number, below or b"")
        size = len(prefix)
        for ordered, value in iter_range(self.rows, table, low, high, reverse=reverse):
            yield ordered[size:] or KEYLESS, number, value

    def _merged(self, table: str, ordered: bytes, found: Sequence[bytes | None]) -> bytes | None:
        """The merged row and its stamp; None if an expired row of a part isn't known."""
        there = [value for value in found if value is not None]
        if not there:
            return None
        stamp = newest_stamp(there)
        rows = [None if value is None else without_stamp(value) for value in found]
        if table == self._closed and (stamp_batch(stamp) <= self._forgotten or b"" in rows):
            return stamp
        return self._parts.merge(ordered, rows) + stamp


def _stored(pairs: Iterable[tuple[bytes, bytes]], *, reverse: bool) -> Pairs:
    """(stored key, stored value) in the order of stored keys.

    Long keys with equal first bytes are in the order of their hashes.
    """
    for shared, group in groupby(pairs, key=lambda pair: pair[0][:PREFIX_BYTES]):
        stored = ((store_key(ordered), join_value(ordered, value)) for ordered, value in group)
        yield from stored if len(shared) < PREFIX_BYTES else sorted(stored, key=_key, reverse=reverse)

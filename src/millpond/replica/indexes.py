"""Indexes: rows of a store in the order of their values, as readers see them.

An index is two more tables, of rows in the state and of expired rows:

    index/<number>/<table>    values of the index's columns, ordered key -> how many bytes the values have

Their keys are encoded, cut and hashed as those of rows (`keys.codec`).  They change in the
transaction that changes the rows, whoever changes them: `IndexedWrite` looks at every put and
delete.  Only the layer above knows what a row's values are, so it gives the function.

A generation's indexes never change.  If others are wanted, it is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter

from millpond.errors import ReplicaError
from millpond.replica.backends.base import Snapshot, WriteBatch
from millpond.replica.backends.table_names import index_table
from millpond.replica.history.keeper import closed_table
from millpond.replica.keys.codec import MAX_KEY_BYTES, is_cut, join_value, split_value, store_key
from millpond.replica.record import IndexRecord, IndexRecords, ReplicaRecord, StoresRecord
from millpond.replica.row_stamp import STAMP_BYTES
from millpond.replica.scan import iter_range

_SIZE_BYTES = 4
_entry = itemgetter(0)
Heads = Callable[[list[bytes], list[bytes]], list[list[bytes | None]]]
"""(ordered keys, rows) -> for each index of the store, the bytes of its columns in each row

None stands for a row that readers don't see.
"""
Pairs = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class StoreIndexes:
    """The indexes of one store, and how to compute the entries of rows."""

    records: tuple[IndexRecord, ...]
    heads: Heads

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        """Those of each."""
        return tuple(record.columns for record in self.records)

    def first(self, count: int) -> StoreIndexes:
        """The first so many of them."""
        if count == len(self.records):
            return self
        heads = self.heads
        return StoreIndexes(self.records[:count], lambda ordered, rows: heads(ordered, rows)[:count])

    def heads_of(self, keys: list[bytes], stored: list[bytes | None]) -> tuple[list[bytes], list[list[bytes | None]]]:
        """The ordered keys of stored rows, and for each index the bytes of its columns in each row.

        keys:    stored keys
        stored:  their rows; None for none.  Those have no entry, as expired rows whose last value was never seen
        """
        if any(map(is_cut, keys)):
            pairs = [
                (key, b"") if row is None else split_value(key, row[:-STAMP_BYTES]) for key, row in zip(keys, stored, strict=True)
            ]
            ordered, rows = [key for key, _ in pairs], [row for _, row in pairs]
        else:
            ordered, rows = keys, [b"" if row is None else row[:-STAMP_BYTES] for row in stored]
        if all(rows):
            return ordered, self.heads(ordered, rows)
        there = [place for place, row in enumerate(rows) if row]
        found = self.heads([ordered[place] for place in there], [rows[place] for place in there])
        out: list[list[bytes | None]] = [[None] * len(rows) for _ in self.records]
        for each, heads in zip(out, found, strict=True):
            for place, head in zip(there, heads, strict=True):
                each[place] = head
        return ordered, out


def entry_of(head: bytes, ordered: bytes) -> tuple[bytes, bytes]:
    """The pair in an index's table for a row with these values."""
    whole = head + ordered
    size = len(head).to_bytes(_SIZE_BYTES, "little")
    return (whole, size) if len(whole) < MAX_KEY_BYTES else (store_key(whole), join_value(whole, size))


Indexes = Mapping[str, StoreIndexes]
"""by store"""
WantedIndexes = Callable[[StoresRecord], Indexes]
"""a replica's stores -> those that were asked for, and those that it has"""


def records_of(indexes: Indexes) -> IndexRecords:
    """What a generation's record says of its indexes."""
    return {store: these.records for store, these in indexes.items() if these.records}


def kept_indexes(stores: StoresRecord, wanted: Indexes) -> Indexes | None:
    """The indexes that a replica has, with how to compute their entries now; None if one has another meaning by now.

    wanted:  for these stores: those that it has, then others
    """
    out: dict[str, StoreIndexes] = {}
    for store, records in stores.indexes.items():
        these = wanted.get(store)
        if these is None or these.records[: len(records)] != records:
            return None
        out[store] = these.first(len(records))
    return out


class IndexedWrite:
    """A write that also writes the indexes.  See `backends.base.WriteBatch`."""

    def __init__(self, write: WriteBatch, indexes: Indexes) -> None:
        self._write = write
        self._of = {table: these for store, these in indexes.items() for table in (store, closed_table(store))}

    def put(self, table: str, items: Pairs) -> None:
        these = self._of.get(table)
        if these is None:
            self._write.put(table, items)
            return
        new = dict(items)  # of two with one key, the last counts
        self._change(table, these, new)
        self._write.put(table, new.items())

    def append(self, table: str, items: Pairs) -> None:
        if table in self._of:
            self.put(table, items)
        else:
            self._write.append(table, items)

    def delete(self, table: str, keys: Iterable[bytes]) -> None:
        these = self._of.get(table)
        if these is not None:
            keys = list(keys)
            self._change(table, these, dict.fromkeys(keys))
        self._write.delete(table, keys)

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._write.get(table, key)

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._write.iterate(table, start)

    def set_record(self, record: ReplicaRecord) -> None:
        self._write.set_record(record)

    def _change(self, table: str, these: StoreIndexes, new: Mapping[bytes, bytes | None]) -> None:
        """Write the entries of rows that change; None for a row that goes."""
        get = self._write.get
        keys: list[bytes] = []
        before: list[bytes | None] = []
        after: list[bytes | None] = []
        for key, stored in new.items():
            old = get(table, key)
            if old is None or stored is None or old[:-STAMP_BYTES] != stored[:-STAMP_BYTES]:
                keys.append(key)
                before.append(old)
                after.append(stored)
        # A long key is stored beside its row.
        old_keys, was = these.heads_of(keys, before)
        new_keys, now = these.heads_of(keys, after)
        for number in range(len(these.records)):
            gone: list[bytes] = []
            come: list[tuple[bytes, bytes]] = []
            for old_key, new_key, old_head, head in zip(old_keys, new_keys, was[number], now[number], strict=True):
                if old_head != head:
                    if old_head is not None:
                        gone.append(store_key(old_head + old_key))
                    if head is not None:
                        come.append(entry_of(head, new_key))
            self._write.delete(index_table(table, number), sorted(gone))
            self._write.put(index_table(table, number), sorted(come))


def iter_by_index(
    rows: Snapshot, store: str, number: int, low: bytes, high: bytes | None, *, reverse: bool, with_closed: bool
) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(entry, ordered key, stored row) of the entries from `low` on and below `high`, in their order or against it.

    with_closed:  with expired rows, unless their key is in the state again
    """
    live = _iter_table(rows, store, number, low, high, reverse=reverse)
    if not with_closed:
        return live
    closed = _iter_table(rows, closed_table(store), number, low, high, reverse=reverse)
    return merge(live, (each for each in closed if rows.get(store, store_key(each[1])) is None), key=_entry, reverse=reverse)


def _iter_table(
    rows: Snapshot, table: str, number: int, low: bytes, high: bytes | None, *, reverse: bool
) -> Iterator[tuple[bytes, bytes, bytes]]:
    for entry, size in iter_range(rows, index_table(table, number), low, high, reverse=reverse):
        ordered = entry[int.from_bytes(size, "little") :]
        stored = rows.get(table, store_key(ordered))
        if stored is None:
            raise ReplicaError(
                "FOLLOWER_FAILED",
                "An index of the replica names a row that isn't there.",
                hint="Report this.  Delete the replica's folder: it is built again from the checkpoint.",
            )
        yield entry, ordered, stored

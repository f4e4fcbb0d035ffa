"""Fills the indexes of a generation that was just built, from all its rows, in the order of their entries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from millpond.checkpoint.rows.columns import span
from millpond.native.library import library
from millpond.replica.backends.base import Backend, Snapshot
from millpond.replica.backends.table_names import index_table
from millpond.replica.external_sort import RowSorter
from millpond.replica.history.keeper import closed_table
from millpond.replica.indexes import Indexes, StoreIndexes, entry_of

_FIRST = b"\x00"


def fill_indexes(backend: Backend, indexes: Indexes, *, chunk_rows: int, on_chunk: Callable[[], None]) -> None:
    """Fill the empty indexes of a generation that nobody reads yet, from its rows.

    on_chunk:  called before every chunk; may raise to end it
    Raises:    DISK_FULL, REPLICA_NOT_WRITABLE.
    """
    with backend.snapshot() as rows:
        for store, these in indexes.items():
            for table in (store, closed_table(store)):
                _fill(backend, rows, table, these, chunk_rows, on_chunk)


def _fill(backend: Backend, rows: Snapshot, table: str, these: StoreIndexes, chunk_rows: int, on_chunk: Callable[[], None]) -> None:
    names = [index_table(table, number) for number in range(len(these.records))]
    pairs = rows.iterate(table, _FIRST)

    def next_chunk() -> list[tuple[bytes, bytes]]:
        on_chunk()
        return list(islice(pairs, chunk_rows))

    chunks = iter(next_chunk, [])
    if library() is None:
        for chunk in chunks:
            with backend.write() as write:
                for name, entries in zip(names, _entries(these, chunk), strict=True):
                    write.put(name, sorted(entries))
        return
    with RowSorter(backend.folder) as sorter:
        for chunk in chunks:
            for name, entries in zip(names, _entries(these, chunk), strict=True):
                sorter.add(name, span(key for key, _ in entries), span(value for _, value in entries), None)
        for name in names:
            for keys, values in sorter.iter_rows(name):
                on_chunk()
                with backend.write() as write:
                    write.append(name, zip(keys.tolist(), values.tolist(), strict=True))


def _entries(these: StoreIndexes, chunk: list[tuple[bytes, bytes]]) -> list[list[tuple[bytes, bytes]]]:
    keys, heads = these.heads_of([key for key, _ in chunk], [stored for _, stored in chunk])
    return [[entry_of(head, key) for head, key in zip(each, keys, strict=True) if head is not None] for each in heads]

"""Builds a replica from the whole state of a batch.

1. Read the newest snapshot of every store and partition, and the changes after it; several files at
   the same time.
2. Sort the rows of each table (`external_sort`), and write them from first to last.  Rows that
   can't be sorted (lists, and all rows without the compiled library) are written as they come.
   Nobody reads this generation yet, so its transactions are small.
3. Check that commits/N is still the one that was read.
4. Write the record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import msgspec

from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.bulk.stream import iter_state
from millpond.checkpoint.files.records import Record
from millpond.checkpoint.log import CommittedBatch, check_still_committed
from millpond.checkpoint.rows.columns import Array, Spans, span
from millpond.checkpoint.state import StateReader
from millpond.native.library import library
from millpond.replica.apply import ReplicaTable, collect, files_of, plan_tables
from millpond.replica.backends.base import Backend
from millpond.replica.backends.table_names import table_names
from millpond.replica.external_sort import RowSorter
from millpond.replica.history.keeper import GONE, Changes, Gone, Keeper, put_rows, write_position
from millpond.replica.record import StoresRecord, make_record
from millpond.replica.row_stamp import stamp_at_most
from millpond.schema.shard import Shard
from millpond.schema.store import StoreSchema

Item = TypeVar("Item")
Progress = Callable[[int, int, int], None]
"""(partitions done, partitions in all, rows so far); may raise to end the build"""


def build(
    reader: StateReader,
    backend: Backend,
    batch: CommittedBatch,
    stores: StoresRecord,
    keeper: Keeper,
    *,
    chunk_rows: int,
    reads: int,
    progress: Progress,
    shard: Shard | None = None,
) -> int:
    """Fill an empty backend with the whole state of `batch`; returns how many records were read.

    chunk_rows:  rows of a transaction
    reads:       how many partitions to read at the same time
    shard:       which partitions to read; None for all
    Raises:      FILE_GONE if Spark cleaned a file up meanwhile: begin again with a newer batch, in
                 a new backend.
    """
    tables = plan_tables(stores.stores)
    backend.create(table_names(stores))
    build_ = _Build(reader, backend, batch, chunk_rows, progress)
    build_.read(files_of(batch, tables, shard), reads)  # 1
    check_still_committed(reader.storage, batch)  # 3
    backend.set_stores(stores)
    with backend.write() as write:  # 4
        reached = make_record(batch)
        write_position(write, reached)
        write.set_record(msgspec.structs.replace(reached, kept=keeper.begin(batch.batch)))
    return build_.records


def can_sort(store: StoreSchema) -> bool:
    """Whether the rows of a store can be sorted before they are written; lists, which grow, can't."""
    return library() is not None and not store.many


class _Build:
    """One build, by several threads."""

    def __init__(self, reader: StateReader, backend: Backend, batch: CommittedBatch, chunk_rows: int, progress: Progress) -> None:
        self._reader = reader
        self._backend = backend
        self._batch = batch
        self._mark = stamp_at_most(batch.batch)
        # In memory, a transaction costs as much as all existing rows, so a single one is best.
        self._chunk_rows = chunk_rows if backend.folder is not None else None
        self._progress = progress
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._done = self._of = 0
        self.records = 0

    def read(self, files: list[tuple[int, list[ReplicaTable]]], reads: int) -> None:
        """Read and write all rows.

        files:  partitions, with the tables whose rows are in their files
        """
        self._of = sum(len(tables) for _, tables in files)
        if library() is None:
            self._read_all(files, reads, None)
            return
        with RowSorter(self._backend.folder) as sorter:
            self._read_all(files, reads, sorter)
            names = {table.name for _, tables in files for table in tables}
            for name in sorted(names):
                self._write_sorted(name, sorter)  # 2

    def _read_all(self, files: list[tuple[int, list[ReplicaTable]]], reads: int, sorter: RowSorter | None) -> None:
        with ThreadPoolExecutor(max(1, min(reads, len(files))), thread_name_prefix="millpond-build") as pool:
            try:
                for read in as_completed([pool.submit(self._read_files, *some, sorter) for some in files]):
                    read.result()
            finally:
                self._ended.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _read_files(self, partition: int, tables: list[ReplicaTable], sorter: RowSorter | None) -> None:
        for table in tables:
            changes: Changes = {}
            for rows in iter_state(self._reader, self._batch, table.schema, partition):
                sorted_ = stored_rows(table, rows) if sorter is not None and can_sort(table.schema) else None
                with self._lock:
                    if self._ended.is_set():
                        return
                    self.records += len(rows)
                    if sorter is not None and sorted_ is not None:
                        sorter.add(table.name, *sorted_)
                    else:
                        collect(table, rows, changes, GONE)
                        if self._chunk_rows is not None and len(changes) >= self._chunk_rows:
                            self._write(table, changes)
                            changes = {}
                    self._progress(self._done, self._of, self.records)
            with self._lock:
                if changes:
                    self._write(table, changes)
                self._done += 1
                self._progress(self._done, self._of, self.records)

    def _write(self, table: ReplicaTable, changes: Changes) -> None:
        with self._backend.write() as write:
            write.delete(table.name, put_rows(write, table.name, changes, self._mark))

    def _write_sorted(self, name: str, sorter: RowSorter) -> None:
        for keys, values in ahead(sorter.iter_rows(name)):
            step = self._chunk_rows or max(1, len(keys.begin))
            for first in range(0, len(keys.begin), step):
                some = keys.slice(first, first + step).tolist(), values.slice(first, first + step).tolist(self._mark)
                with self._backend.write() as write:
                    write.append(name, zip(*some, strict=True))
                self._progress(self._done, self._of, self.records)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; a thread makes the next one while the caller uses one."""
    with ThreadPoolExecutor(1, thread_name_prefix="millpond-merge") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def stored_rows(table: ReplicaTable, rows: RowChunk | list[Record]) -> tuple[Spans, Spans, Array | None]:
    """Stored rows without stamps: keys, values, mask of deleted ones."""
    import numpy as np

    if isinstance(rows, RowChunk) and (keys := table.keys.spans(rows.keys)) is not None:
        return keys, rows.values, rows.gone
    changes: Changes = {}
    collect(table, rows, changes, GONE)
    gone = np.fromiter((isinstance(value, Gone) for value in changes.values()), bool, len(changes))
    return span(changes), span(value if isinstance(value, bytes) else b"" for value in changes.values()), gone

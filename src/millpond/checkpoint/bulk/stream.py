"""The records of `state.StateReader`, many at a time, for builds and for the follower: a file, or a window of a snapshot.

Without the compiled library, and for rows whose encoding must be removed row by row, they are lists
of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from millpond.checkpoint.bulk.partition import RowChunk, bare_rows, begins_with, chunk_of, locate_file
from millpond.checkpoint.encoding import RowEncoding
from millpond.checkpoint.files.codecs import naming
from millpond.checkpoint.files.record_spans import find_whole_records
from millpond.checkpoint.files.records import END_MARK, Record
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rocksdb.snapshot import iter_spans, snapshot_at
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.native.library import library
from millpond.schema.store import StoreSchema

# How many bytes of a file are unpacked at a time.
_WINDOW_BYTES = 1 << 20
# The length of a list of records.
_RECORDS = 1000


def read_changes(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int
) -> tuple[RowChunk | Iterable[Record], bool]:
    """The puts, appends and deletes of a batch in one partition, in write order; and whether the batch wrote no others.

    The difference between two snapshots lacks rows that were put and deleted in between.  Raises as
    `StateReader.iter_changes`.
    """
    path = reader.change_file(batch, store, partition)
    if path is None:
        return reader.iter_changes(batch, store, partition), False
    return _read_file(reader, path, batch, store, partition), True


def iter_state(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[RowChunk | list[Record]]:
    """The records that build the whole state of a batch in one partition, in order.  Raises as `StateReader.iter_state`."""
    before = RowEncoding(store, batch.settings).before
    if library() is None or before is None or store.many:
        yield from _sliced(reader.iter_state(batch, store, partition))
        return
    base, changes = reader.files(batch, store, partition)
    if base is not None and batch.settings.provider == "rocksdb":
        yield from _iter_snapshot(reader, base, batch, store, partition, before)
    elif base is not None:
        changes = [base, *changes]
    for path in changes:
        yield from _iter_file(reader, path, batch, store, partition)


def _iter_file(
    reader: StateReader, path: str, batch: CommittedBatch, store: StoreSchema, partition: int
) -> Iterator[RowChunk | list[Record]]:
    """The records of a file, window by window; as a whole if the file has more than records.

    The next window begins with the record that the window before cut.  If a window can't be read
    so, give all records of the file again, one by one.  That raises the error, or puts the same
    rows a second time.
    """
    before = RowEncoding(store, batch.settings).before
    if before is None or store.family or store.many or batch.settings.provider != "hdfs":
        found = _read_file(reader, path, batch, store, partition)
        yield from (found,) if isinstance(found, RowChunk) else _sliced(iter(found))
        return
    left = b""
    for number, window in enumerate(reader.iter_unpacked(path, batch, _WINDOW_BYTES)):
        if not number and library(len(window)) is None:  # a small file: this is all of it
            yield from _sliced(reader.iter_file(path, window, batch, store, partition))
            return
        data = left + window
        rows = find_whole_records(data)
        chunk = None if rows is None else chunk_of(rows[0], before)
        if rows is None or chunk is None or not rows[1]:
            left = data
            break
        yield chunk
        left = data[rows[1] :]
    if left != END_MARK:
        yield from _sliced(reader.iter_file(path, reader.unpacked(path, batch, store), batch, store, partition))


def _read_file(
    reader: StateReader, path: str, batch: CommittedBatch, store: StoreSchema, partition: int
) -> RowChunk | Iterable[Record]:
    data, before = reader.unpacked(path, batch, store), RowEncoding(store, batch.settings).before
    if library(len(data)) is not None and before is not None and not store.many:
        hdfs = batch.settings.provider == "hdfs"
        family = reader.family(batch, store, partition) if store.family else b""
        chunk = locate_file(path, data, before, hdfs=hdfs, family=family)
        if chunk is not None:
            return chunk
    return reader.iter_file(path, data, batch, store, partition)


def _iter_snapshot(
    reader: StateReader, path: str, batch: CommittedBatch, store: StoreSchema, partition: int, before: tuple[int, int]
) -> Iterator[RowChunk]:
    snapshot = snapshot_at(reader.storage, path)
    family = reader.family(batch, store, partition) if store.family else b""
    for keys, values in iter_spans(reader.storage, snapshot, batch.settings.merge_delimiter):
        try:
            if family:
                mine = begins_with(keys, family)
                keys, values = keys.select(mine), values.select(mine)
            yield RowChunk(keys=bare_rows(keys, before[0], None), values=bare_rows(values, before[1], None), unique=True)
        except CheckpointError as error:
            raise naming(error, path) from error


def _sliced(records: Iterator[Record]) -> Iterator[list[Record]]:
    while some := list(islice(records, _RECORDS)):
        yield some

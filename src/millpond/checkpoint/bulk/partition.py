"""The whole state of one partition for those who want all of it at once: where its rows lie, file by file.

1. The files are those that `state.StateReader.iter_state` reads.  Each is unpacked, and its rows are found in it (`spans`, `sst`);
   nothing is taken out of it.
2. Of a key that is there several times the newest one counts; that is left to the caller (`RowChunk` says what is newest).
3. Rows in wrappings that differ by row (lists, checksums, Avro, keys that sort) are unwrapped one by one: they are one chunk.

Takes as much memory as the partition's files unpacked, and 32 bytes for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat

from millpond.checkpoint.encoding import RowEncoding, iter_elements, unknown_row
from millpond.checkpoint.files.codecs import naming
from millpond.checkpoint.files.record_spans import RecordSpans, locate_changelog, locate_records
from millpond.checkpoint.files.records import DELETE, PUT, Record
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rocksdb.blocks import DELETION, MERGE, SINGLE_DELETION
from millpond.checkpoint.rocksdb.snapshot import iter_windows, read_spans, snapshot_at
from millpond.checkpoint.rows.columns import Array, Spans, join_spans, span
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.native import calls
from millpond.native.library import library
from millpond.schema.store import StoreSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunk:
    """Rows of one file, or of all SSTs of a snapshot; a later chunk is newer than those before it.

    keys, values:  bare UnsafeRows
    gone:          mask of deletes, whose values mean nothing; None where there are none
    unique:        whether no key is there twice
    sequence:      greater numbers are newer; None where later rows are
    places:        of lists: each row's place in the list of its key
    """

    keys: Spans
    values: Spans
    gone: Array | None = None
    unique: bool = False
    sequence: Array | None = None
    places: Array | None = None

    def __len__(self) -> int:
        return len(self.keys.begin)

    def records(self, keys: list[bytes] | None = None) -> Iterator[Record]:
        """Row by row.

        keys:  what stands for each key; None: its row
        """
        values = self.values.tolist()
        kinds = repeat(PUT, len(values)) if self.gone is None else (DELETE if gone else PUT for gone in self.gone.tolist())
        yield from zip(kinds, self.keys.tolist() if keys is None else keys, values, strict=True)


def read_chunks(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> list[RowChunk]:
    """All rows of a partition, oldest chunk first.

    Raises:  as `StateReader.iter_state`.
    """
    before, chunks = RowEncoding(store, batch.settings).before, None
    if before is not None:
        read = _read_lists if store.many else _read_located
        chunks = read(reader, batch, store, partition, before)
    return [_read_rows(reader, batch, store, partition)] if chunks is None else chunks


def _read_rows(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> RowChunk:  # 3
    rows: dict[bytes, bytes] = {}
    for kind, key, value in reader.iter_state(batch, store, partition):
        if kind == PUT:
            rows[key] = value
        elif kind == DELETE:
            rows.pop(key, None)
        else:
            rows[key] = rows.get(key, b"") + value
    if not store.many:
        return RowChunk(keys=span(rows), values=span(rows.values()), unique=True)
    import numpy as np

    lists = [list(iter_elements(value)) for value in rows.values()]
    counts = np.fromiter(map(len, lists), np.int64, len(lists))
    return _of_elements(span(rows), counts, span([element for elements in lists for element in elements]))


def _read_located(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, before: tuple[int, int]
) -> list[RowChunk] | None:
    """None where there is something that has to be taken apart row by row."""
    base, changes = reader.files(batch, store, partition)
    hdfs = batch.settings.provider == "hdfs"
    family = reader.family(batch, store, partition) if store.family else b""
    chunks: list[RowChunk] = []
    delimiter = batch.settings.merge_delimiter
    if base is not None:
        if hdfs:
            chunk = locate_file(base, reader.unpacked(base, batch, store), before, hdfs=True)
        else:
            chunk = _snapshot(reader, base, family, before, delimiter)
        if chunk is None:
            return None
        chunks.append(chunk)
    for path in changes:
        chunk = locate_file(path, reader.unpacked(path, batch, store), before, hdfs=hdfs, family=family)
        if chunk is None:
            return None
        chunks.append(chunk)
    return chunks


def _read_lists(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, before: tuple[int, int]
) -> list[RowChunk] | None:
    """Lists of a snapshot on which no changes lie; None where there is something else."""
    base, changes = reader.files(batch, store, partition)
    if base is None or changes or library() is None:
        return None
    family = reader.family(batch, store, partition) if store.family else b""
    delimiter = batch.settings.merge_delimiter
    keys, values = _merged(reader, base, family, before[0], delimiter)
    found = calls.find_elements(*values[:3], delimiter)
    if found is None:
        return None
    counts, begin, size = found
    return [_of_elements(keys, counts, Spans(values.data, begin, size))]


def _of_elements(keys: Spans, counts: Array, elements: Spans) -> RowChunk:
    """A row for each element of each key's list."""
    import numpy as np

    owner: Array = np.repeat(np.arange(len(counts)), counts)
    places = (np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]).astype(np.int32)
    return RowChunk(keys=keys.select(owner), values=elements, unique=True, places=places)


def locate_file(path: str, data: bytes, before: tuple[int, int], *, hdfs: bool, family: bytes = b"") -> RowChunk | None:
    """The rows of an unpacked change file or HDFS-backed snapshot; None where something has to be taken apart row by row.

    before:  as `RowEncoding.before`
    family:  what keys of the store begin with
    Raises:  CORRUPT_FILE, INCOMPLETE_FILE, UNKNOWN_FORMAT, naming the file.
    """
    try:
        chunk = chunk_of(locate_records(data) if hdfs else locate_changelog(data), before, family)
    except CheckpointError as error:
        raise naming(error, path) from error
    # A snapshot is a map written out.
    return chunk if chunk is None or chunk.gone is not None or not path.endswith(".snapshot") else replace(chunk, unique=True)


def chunk_of(found: RecordSpans, before: tuple[int, int], family: bytes = b"") -> RowChunk | None:
    """The rows of records; None where they append.  Raises as `locate_file`, without the file's name."""
    keys, values, kinds = _of_family(found, family)
    gone = kinds == DELETE
    if not (gone | (kinds == PUT)).all():
        return None
    some = bool(gone.any())
    keys, values = bare_rows(keys, before[0], None), bare_rows(values, before[1], gone if some else None)
    return RowChunk(keys=keys, values=values, gone=gone if some else None)


def _merged(reader: StateReader, path: str, family: bytes, before: int, delimiter: bytes) -> tuple[Spans, Spans]:
    """The keys of a snapshot, without what stands before them, each once, and their values."""
    snapshot = snapshot_at(reader.storage, path)
    keys, values = read_spans(reader.storage, snapshot, delimiter)
    if family:
        mine = begins_with(keys, family)
        keys, values = keys.select(mine), values.select(mine)
    try:
        return bare_rows(keys, before, None), values
    except CheckpointError as error:
        raise naming(error, path) from error


def _snapshot(reader: StateReader, path: str, family: bytes, before: tuple[int, int], delimiter: bytes) -> RowChunk | None:
    if library() is not None:
        keys, values = _merged(reader, path, family, before[0], delimiter)
        try:
            return RowChunk(keys=keys, values=bare_rows(values, before[1], None), unique=True)
        except CheckpointError as error:
            raise naming(error, path) from error
    import numpy as np

    snapshot = snapshot_at(reader.storage, path)
    try:
        windows = list(iter_windows(reader.storage, snapshot))
        keys, values = join_spans([w.keys for w in windows]), join_spans([w.values for w in windows])
        tags = np.concatenate([w.tags for w in windows]) if windows else np.empty(0, np.uint64)
        if family:
            mine = begins_with(keys, family)
            keys, values, tags = keys.select(mine), values.select(mine), tags[mine]
        kinds = (tags & np.uint64(0xFF)).astype(np.uint8)
        if (kinds == MERGE).any():
            return None
        gone = (kinds == DELETION) | (kinds == SINGLE_DELETION)
        some = bool(gone.any())
        keys, values = bare_rows(keys, before[0], None), bare_rows(values, before[1], gone if some else None)
    except CheckpointError as error:
        raise error if "path" in error.context else naming(error, path) from error
    return RowChunk(keys=keys, values=values, gone=gone if some else None, sequence=tags >> np.uint64(8))


def _of_family(found: RecordSpans, family: bytes) -> tuple[Spans, Spans, Array]:
    if not family:
        return found.keys, found.values, found.kinds
    mine = begins_with(found.keys, family)
    return found.keys.select(mine), found.values.select(mine), found.kinds[mine]


def begins_with(keys: Spans, prefix: bytes) -> Array:
    """Which pieces begin with these bytes."""
    import numpy as np

    data = np.frombuffer(keys.data, np.uint8)
    mine = keys.size >= len(prefix)
    for place, byte in enumerate(prefix):
        at = np.where(mine, keys.begin + place, 0)
        mine &= (data[at] if len(data) else np.zeros(len(at), np.uint8)) == byte
    return mine


def bare_rows(rows: Spans, before: int, gone: Array | None) -> Spans:
    """The rows without what stands before them.  Raises UNKNOWN_FORMAT."""
    import numpy as np

    if not before or not len(rows.begin):
        return rows
    wanted = rows.size >= before if gone is None else (rows.size >= before) | gone
    if wanted.all():
        at = rows.begin + (before - 1)
        if gone is not None:
            at = at[~gone]
        wrong = np.frombuffer(rows.data, np.uint8)[at] if len(at) else at
        if not wrong.any():
            return rows.shift(before) if gone is None else Spans(rows.data, rows.begin + before, np.maximum(rows.size - before, 0))
        raise unknown_row(bytes((int(wrong[np.flatnonzero(wrong)[0]]),)))
    raise unknown_row(b"")

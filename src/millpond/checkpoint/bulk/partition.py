"""The whole state of one partition as positions of rows in its unpacked files, file by file.

1. Read the files that `state.StateReader.iter_state` reads.  Unpack each, and find its rows (`record_spans`, `snapshot`) without
   copying them.
2. `iter_newest` keeps the newest row of each key.
3. Without the compiled library, and for rows whose encoding isn't the same number of bytes before each row (checksums, Avro, keys
   that sort, most lists), collect the rows one by one in a dict.  They are one chunk.

This takes as much memory as the partition's unpacked files, and 32 bytes for each row.
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
from millpond.checkpoint.rocksdb.snapshot import read_spans, snapshot_at
from millpond.checkpoint.rows.columns import Array, Spans, span
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.native import calls
from millpond.native.library import library
from millpond.schema.store import StoreSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunk:
    """Rows of one file, or of all SSTs of a snapshot; a later chunk is newer than those before it.

    keys, values:  bare UnsafeRows
    gone:          mask of deletes, whose values mean nothing; None if there are none
    unique:        whether all keys differ
    places:        for lists: each row's place in the list of its key
    """

    keys: Spans
    values: Spans
    gone: Array | None = None
    unique: bool = False
    places: Array | None = None

    def __len__(self) -> int:
        return len(self.keys.begin)

    def records(self, keys: list[bytes] | None = None) -> Iterator[Record]:
        """Row by row.

        keys:  what to give as each row's key; None for its key row
        """
        values = self.values.tolist()
        kinds = repeat(PUT, len(values)) if self.gone is None else (DELETE if gone else PUT for gone in self.gone.tolist())
        yield from zip(kinds, self.keys.tolist() if keys is None else keys, values, strict=True)


def read_chunks(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> list[RowChunk]:
    """All rows of a partition, oldest chunk first.

    Raises:  as `StateReader.iter_state`.
    """
    before, chunks = RowEncoding(store, batch.settings).before, None
    if before is not None and library() is not None:
        read = _read_lists if store.many else _read_located
        chunks = read(reader, batch, store, partition, before)
    return [_read_rows(reader, batch, store, partition)] if chunks is None else chunks


def iter_newest(chunks: list[RowChunk]) -> Iterator[RowChunk]:  # 2
    """The newest row of each key, without deleted keys, from chunks in order of age."""
    if len(chunks) == 1 and chunks[0].unique and chunks[0].gone is None:
        yield chunks[0]
        return
    keys = [chunk.keys for chunk in chunks]
    masks = calls.mark_newest(keys, unique=bool(chunks) and chunks[0].unique)
    yield from map(_select_newest, chunks, _mark_newest(keys) if masks is None else masks)


def _mark_newest(parts: list[Spans]) -> list[Array]:
    """The same masks as `calls.mark_newest`."""
    import numpy as np

    masks: list[Array] = []
    newer: set[bytes] = set()
    for part in reversed(parts):
        keys = part.tolist()
        mask: Array = np.zeros(len(keys), bool)
        for place in range(len(keys) - 1, -1, -1):
            mask[place] = keys[place] not in newer
            newer.add(keys[place])
        masks.append(mask)
    return masks[::-1]


def _select_newest(chunk: RowChunk, newest: Array) -> RowChunk:
    mask = newest if chunk.gone is None else newest & ~chunk.gone
    if mask.all():
        return chunk
    chosen = mask.nonzero()[0]
    places = None if chunk.places is None else chunk.places[chosen]
    return RowChunk(keys=chunk.keys.select(chosen), values=chunk.values.select(chosen), places=places)


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
    """The rows, not copied; None if a file needs the way row by row."""
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
    """Lists of a snapshot without later changes; None for other files."""
    base, changes = reader.files(batch, store, partition)
    if base is None or changes:
        return None
    family = reader.family(batch, store, partition) if store.family else b""
    delimiter = batch.settings.merge_delimiter
    keys, values = _merged(reader, base, family, before[0], delimiter)
    found = calls.find_elements(*values, delimiter)
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
    """The rows of an unpacked change file or HDFS-backed snapshot; None if the file needs the way row by row.

    before:  as `RowEncoding.before`
    family:  the first bytes of the store's keys
    Raises:  CORRUPT_FILE, INCOMPLETE_FILE, UNKNOWN_FORMAT, naming the file.
    """
    try:
        chunk = chunk_of(locate_records(data) if hdfs else locate_changelog(data), before, family)
    except CheckpointError as error:
        raise naming(error, path) from error
    # A snapshot has each key once.
    return chunk if chunk is None or chunk.gone is not None or not path.endswith(".snapshot") else replace(chunk, unique=True)


def chunk_of(found: RecordSpans, before: tuple[int, int], family: bytes = b"") -> RowChunk | None:
    """The rows of records; None if some append.  Raises as `locate_file`, without the file's name."""
    keys, values, kinds = _of_family(found, family)
    gone = kinds == DELETE
    if not (gone | (kinds == PUT)).all():
        return None
    some = bool(gone.any())
    keys, values = bare_rows(keys, before[0], None), bare_rows(values, before[1], gone if some else None)
    return RowChunk(keys=keys, values=values, gone=gone if some else None)


def _merged(reader: StateReader, path: str, family: bytes, before: int, delimiter: bytes) -> tuple[Spans, Spans]:
    """The bare keys of a snapshot, each once, and their values.  Only with the compiled library."""
    snapshot = snapshot_at(reader.storage, path)
    keys, values = read_spans(reader.storage, snapshot, delimiter)
    if family:
        mine = begins_with(keys, family)
        keys, values = keys.select(mine), values.select(mine)
    try:
        return bare_rows(keys, before, None), values
    except CheckpointError as error:
        raise naming(error, path) from error


def _snapshot(reader: StateReader, path: str, family: bytes, before: tuple[int, int], delimiter: bytes) -> RowChunk:
    keys, values = _merged(reader, path, family, before[0], delimiter)
    try:
        return RowChunk(keys=keys, values=bare_rows(values, before[1], None), unique=True)
    except CheckpointError as error:
        raise naming(error, path) from error


def _of_family(found: RecordSpans, family: bytes) -> tuple[Spans, Spans, Array]:
    if not family:
        return found.keys, found.values, found.kinds
    mine = begins_with(found.keys, family)
    return found.keys.select(mine), found.values.select(mine), found.kinds[mine]


def begins_with(keys: Spans, prefix: bytes) -> Array:
    """A mask of the pieces that begin with these bytes."""
    import numpy as np

    data = np.frombuffer(keys.data, np.uint8)
    mine = keys.size >= len(prefix)
    for place, byte in enumerate(prefix):
        at = np.where(mine, keys.begin + place, 0)
        mine &= (data[at] if len(data) else np.zeros(len(at), np.uint8)) == byte
    return mine


def bare_rows(rows: Spans, before: int, gone: Array | None) -> Spans:
    """The rows without the first `before` bytes, of which the last must be 0.  Raises UNKNOWN_FORMAT."""
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

"""The newest row of each key in a partition, in one pass by the compiled library.

The rows are those of `partition.read_chunks` followed by `iter_newest`; None if the library
declines.

1. Read the same files, and unpack them one after the other into memory that the next partition uses again.
2. Keep the last record of each key, in write order; of SSTs' entries, the one with the greatest sequence number.
3. If the library rejects the input, damage among others, `partition` reads it and raises the error.
"""

from __future__ import annotations

from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.encoding import RowEncoding
from millpond.checkpoint.files.codecs import LZ4_MAGIC, incomplete
from millpond.checkpoint.files.partial import open_parts
from millpond.checkpoint.files.records import parse_changelog_header
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rocksdb.snapshot import WHOLE_BYTES, iter_windows, snapshot_at
from millpond.checkpoint.rows.columns import Spans
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.native import calls
from millpond.native.library import library
from millpond.native.memory import Memory
from millpond.schema.store import StoreSchema
from millpond.storage import Storage


def read_newest(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, memory: Memory
) -> list[RowChunk] | None:
    """The rows of a partition, each key once, in no order; None if `partition.read_chunks` must read it.

    memory:  where the rows are written; it is used again when no view of them is left
    Raises:  no CheckpointError; `partition.read_chunks` raises it.
    """
    try:
        return _read(reader, batch, store, partition, memory)
    except CheckpointError:
        return None


def _read(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, memory: Memory) -> list[RowChunk] | None:
    before = RowEncoding(store, batch.settings).before
    if before is None or store.many or library() is None:
        return None
    base, changes = reader.files(batch, store, partition)
    family = reader.family(batch, store, partition) if store.family else b""
    if base is not None and batch.settings.provider == "rocksdb":
        return None if changes else _read_snapshot(reader, base, family, before, memory)
    if batch.settings.codec != "lz4":
        return None
    return _read_records(reader, changes if base is None else [base, *changes], batch, family, before, memory)


def _read_records(
    reader: StateReader, paths: list[str], batch: CommittedBatch, family: bytes, before: tuple[int, int], memory: Memory
) -> list[RowChunk] | None:
    unpacked = calls.unpack_streams([_packed(reader.storage, path, memory) for path in paths], memory)
    if unpacked is None:
        return None
    data, ends = unpacked
    files = []
    for begin, end in zip([0, *ends], ends, strict=False):
        hdfs = batch.settings.provider == "hdfs"
        start, typed = (0, False) if hdfs else _start_of_records(bytes(data[begin : min(end, begin + _HEADER_BYTES)]))
        files.append((begin + start, end, typed))
    found = calls.newest_records(data, files, family, before, memory)
    if found is None:
        return None
    key_begin, key_size, value_begin, value_size = found
    return [RowChunk(keys=Spans(data, key_begin, key_size), values=Spans(data, value_begin, value_size), unique=True)]


def _packed(storage: Storage, path: str, memory: Memory) -> bytes | memoryview:
    file = open_parts(storage, path)
    try:
        # Look at both ends first, so as not to read a large file that isn't such a stream.
        head, tail = bytes(file.read(0, _MARK)), bytes(file.read(max(0, file.size - _MARK), _MARK))
        if not head.startswith(LZ4_MAGIC) or not tail.startswith(LZ4_MAGIC) or any(tail[-12:]):
            raise incomplete("the LZ4 end mark", file.size)
        return file.read(0, file.size, memory)
    finally:
        file.close()


def _read_snapshot(reader: StateReader, path: str, family: bytes, before: tuple[int, int], memory: Memory) -> list[RowChunk] | None:
    snapshot = snapshot_at(reader.storage, path)
    windows = list(iter_windows(reader.storage, snapshot, WHOLE_BYTES, memory))
    if len(windows) > _MOST_WINDOWS:
        return None
    found = calls.newest_entries([(keys, tags, values) for keys, tags, values in windows], family, before)
    return None if found is None else [RowChunk(keys=Spans(*keys), values=Spans(*values), unique=True) for keys, values in found]


# The size of the empty block that ends a whole stream.
_MARK = 21
# `merge_windows` merges more windows faster.
_MOST_WINDOWS = 64
# More than a change log's header, whose lineage has up to 64 KiB.
_HEADER_BYTES = 128 << 10


def _start_of_records(data: bytes) -> tuple[int, bool]:
    header = parse_changelog_header(data)
    return header.start, header.version in (2, 4)

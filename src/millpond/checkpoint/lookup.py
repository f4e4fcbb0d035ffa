"""One key of one committed batch, straight from the checkpoint: no replica, no pass over the state.

1. The key's columns determine its partition; only the files of that partition are read.  For lists,
   timers, join format 4, Avro and row checksums, all its rows are decoded; for other stores the
   key's bytes are known.
2. Change files, newest first: the newest one with the key has the answer.
3. Else the snapshot below them.  An HDFS-backed one is read whole; of RocksDB's SSTs, only the
   index and the block that may have the key.

The cost depends on the number of change files above the snapshot, some ten by default.  To ask
often, use a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from millpond.checkpoint.encoding import bare_row, iter_elements, key_writer
from millpond.checkpoint.files.codecs import naming
from millpond.checkpoint.files.records import (
    DELETE,
    MERGE,
    PUT,
    Record,
    iter_changelog,
    iter_records,
    parse_changelog_header,
)
from millpond.checkpoint.log import CommittedBatch, check_still_committed
from millpond.checkpoint.partition import may_lie_anywhere, partition_of_key
from millpond.checkpoint.position import Version, version_of
from millpond.checkpoint.rocksdb.snapshot import find, read_snapshot
from millpond.checkpoint.rows.unsaferow import Stored, decoder, encoder
from millpond.checkpoint.state import HDFS_SNAPSHOT, StateReader, newest_snapshot, partitions_of, unpack
from millpond.errors import CheckpointError
from millpond.native import calls
from millpond.schema.store import StoreSchema
from millpond.schema.types import SparkType
from millpond.storage import Storage

# Types whose NULL leaves arbitrary bytes of Spark's memory in the row.
_STALE_NULLS = frozenset({"calendar_interval", "timestamp_nanos"})


def find_row(storage: Storage, batch: CommittedBatch, store: StoreSchema, key: tuple[Stored, ...]) -> tuple[Stored, ...] | None:
    """The value of one key after a committed batch; None if the key isn't there.

    key:     all columns of the store's key, in stored form, as Spark keeps them: no -0.0, maps in
             their key's order
    Returns: for a store of lists, the values of the elements, in order
    Raises:  FILE_GONE if a file was cleaned up meanwhile: ask again with a newer batch.
             INCOMPLETE_FILE, CORRUPT_FILE, UNKNOWN_FORMAT, each naming the file.  UNSUPPORTED for
             NULL of types that Spark doesn't write the same way twice, for NULL in a key of
             transformWithStateInPandas, which may lie in any partition, and as `state.iter_state`.
    Source:  golden checkpoints: each key of each batch.
    """
    settings = batch.settings
    if may_lie_anywhere(store, key):
        raise _unsupported("rows whose key has a NULL may lie in any partition")
    if any(_has_stale_null(field.type, value) for field, value in zip(store.key, key, strict=True)):
        raise _unsupported("Spark writes NULL of this key's types in more than one way")
    row, reader = encoder(store.key)(key), StateReader(storage)
    partitions: Iterable[int] = partitions_of(batch, store)
    if settings.is_strict and not store.single:
        partitions = (partition_of_key(store, key, settings.partitions),)  # 1
    found = next((value for n in partitions if (value := _find(reader, batch, store, n, key, row)) is not None), None)
    check_still_committed(storage, batch)
    if found is None:
        return None
    decode = decoder(store.value)
    return tuple(map(decode, iter_elements(found))) if store.many else decode(found)


def _find(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, key: tuple[Stored, ...], row: bytes
) -> bytes | None:
    """The value of a key in a partition.

    row:  the key as a row
    """
    settings = batch.settings
    if settings.encoding != "unsaferow" or settings.row_checksum or store.many:
        return _find_among_all(reader, batch, store, partition, row)
    if settings.provider == "hdfs":
        return _find_hdfs(reader, batch, store, partition, row)
    if store.encoder in ("plain", "prefix") and store.variable != "timer":  # a timer's time is stored in another unit
        return _find_rocksdb(reader, batch, store, partition, _rocksdb_key(reader, batch, store, partition, key))
    return _find_among_all(reader, batch, store, partition, row)


def _find_among_all(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, row: bytes) -> bytes | None:
    found: bytes | None = None
    for kind, key, value in reader.iter_state(batch, store, partition):
        if key == row:
            found = value if kind == PUT else (found or b"") + value if kind == MERGE else None
    return found


def _find_hdfs(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, row: bytes) -> bytes | None:
    folder, version = store.folder(partition), version_of(batch.batch)
    base = newest_snapshot(reader.storage, folder, HDFS_SNAPSHOT, version)
    if base:
        reader.check_age(f"{folder}/{base}.snapshot", base)
    names = [f"{v}.delta" for v in range(version, base, -1)] + ([f"{base}.snapshot"] if base else [])
    for name in names:  # 2, 3
        path = f"{folder}/{name}"
        try:
            data = unpack(reader.storage, path, batch.settings.codec)
            last = _last(data, 0, iter_records, row, typed=False) if _may_hold(batch, data, row) else None
        except CheckpointError as error:
            raise _named(error, path) from error
        if last is not None:
            return last[2] if last[0] == PUT else None
    return None


def _rocksdb_key(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, key: tuple[Stored, ...]) -> bytes:
    """A key in RocksDB's form, see `encoding`.

    It has the column family's number, then one row, or a prefix with its size and the rest.
    """
    family = reader.family(batch, store, partition)
    return family + key_writer(store.key, store.encoder, store.ordinals)(key)


def _find_rocksdb(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, key: bytes) -> bytes | None:
    folder = store.folder(partition)
    snapshot, changelogs = reader.rocksdb_files(batch, store, partition)
    for name in reversed(changelogs):  # 2
        path = f"{folder}/{name}.changelog"
        try:
            data = unpack(reader.storage, path, batch.settings.codec)
            # A range of deleted keys needn't contain the key's bytes; only typed change logs have
            # ranges.
            header = parse_changelog_header(data)
            typed = header.version in (2, 4)
            last = _last(data, header.start, iter_changelog, key, typed=typed) if typed or _may_hold(batch, data, key) else None
        except CheckpointError as error:
            raise _named(error, path) from error
        if last is not None:
            return _bare(last[2], path) if last[0] == PUT else None
    if snapshot is None:
        return None
    if not batch.state_ids:
        reader.check_age(f"{folder}/{snapshot}.zip", Version(int(snapshot)))
    opened = read_snapshot(reader.storage, folder, snapshot)
    value = find(reader.storage, opened, key, batch.settings.merge_delimiter)  # 3
    return None if value is None else _bare(value, opened.path)


def _bare(value: bytes, path: str) -> bytes:
    try:
        return bare_row(value)
    except CheckpointError as error:
        raise naming(error, path) from error


def _may_hold(batch: CommittedBatch, data: bytes, key: bytes) -> bool:
    """Whether the records must be read.  Only LZ4 streams show by themselves that they are complete."""
    return batch.settings.codec != "lz4" or key in data


def _last(data: bytes, start: int, records: Callable[[bytes], Iterator[Record]], key: bytes, *, typed: bool) -> Record | None:
    """The last record of a key.  This reads all records, since a file that ends early has no end mark."""
    at_once = calls.find_last(data, start, key, typed=typed)
    if at_once is not None:
        return (at_once[0], key, at_once[1]) if at_once[0] else None
    found = None
    for record in records(data):
        if record[0] == MERGE and record[1] == key:
            raise _unsupported(f"a record of type {record[0]:#04x} can't be applied yet")
        if record[1] == key:
            found = record
    assert found is None or found[0] in (PUT, DELETE)
    return found


def _has_stale_null(type_: SparkType, value: Stored) -> bool:
    if value is None:
        return type_.kind in _STALE_NULLS
    if type_.kind == "struct":
        return any(_has_stale_null(field.type, member) for field, member in zip(type_.fields, value, strict=True))
    return False


def _named(error: CheckpointError, path: str) -> CheckpointError:
    return error if "path" in error.context else naming(error, path)


def _unsupported(what: str) -> CheckpointError:
    return CheckpointError("UNSUPPORTED", f"The key can't be looked up: {what}.", hint="Use a replica instead: `millpond.open`.")

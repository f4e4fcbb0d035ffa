"""The content of one store in one partition: what a batch changed, and all of it from the newest snapshot on.

1. A batch's changes are one file: `<version>.delta` (HDFS-backed) or `<version>.changelog` (RocksDB).  A RocksDB job without change
   logs writes a snapshot with each batch instead: then they are what differs from the snapshot before.
2. The whole state of a version is the newest snapshot at or below it (`.snapshot`, or `.zip` with its SST files), then the changes
   of every version after it, in order.

Rows come out as (PUT or DELETE, key row, value row), bare UnsafeRow bytes, whatever the provider wrapped around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from millpond.checkpoint.codecs import decompress, naming
from millpond.checkpoint.log import CommittedBatch, read_batch
from millpond.checkpoint.operators import StoreSchema
from millpond.checkpoint.position import Batch, Version, version_of
from millpond.checkpoint.records import DELETE, PUT, Record, iter_changelog, iter_records, parse_changelog_header
from millpond.checkpoint.rocksdb import iter_snapshot
from millpond.checkpoint.snapshot_changes import iter_snapshot_changes
from millpond.errors import CheckpointError
from millpond.storage import Storage

_HDFS_SNAPSHOT = re.compile(r"(\d+)\.snapshot")
_ROCKSDB_SNAPSHOT = re.compile(r"(\d+)\.zip")


def iter_changes(storage: Storage, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
    """What a batch put and deleted in one partition, in write order.

    Raises:  FILE_GONE where the change file isn't there, nor the snapshots of this batch and the one before.
             INCOMPLETE_FILE, CORRUPT_FILE, UNKNOWN_FORMAT, UNSUPPORTED, each naming the file.
    """
    check_supported(batch)
    version = version_of(batch.batch)
    if batch.settings.provider == "hdfs":
        yield from _hdfs_file(storage, f"{store.folder(partition)}/{version}.delta", batch.settings.codec)
    else:
        folder, name = store.folder(partition), _rocksdb_name(batch, store, partition, version)
        changelog, snapshot = f"{folder}/{name}.changelog", f"{folder}/{name}.zip"
        if storage.stamp(changelog) is None and storage.stamp(snapshot) is not None:
            yield from _between_snapshots(storage, batch, store, partition)
        else:
            yield from _rocksdb_changelog(storage, changelog, batch.settings.codec)


def iter_state(storage: Storage, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
    """Puts and deletes that build the whole state of a batch in one partition from nothing, in order.

    Raises:  as `iter_changes`.
    """
    check_supported(batch)
    folder, version = store.folder(partition), version_of(batch.batch)
    if batch.settings.provider == "hdfs":
        base = _newest_snapshot(storage, folder, _HDFS_SNAPSHOT, version)
        if base:
            yield from _hdfs_file(storage, f"{folder}/{base}.snapshot", batch.settings.codec)
        for later in range(base + 1, version + 1):
            yield from _hdfs_file(storage, f"{folder}/{later}.delta", batch.settings.codec)
        return
    snapshot, changelogs = _rocksdb_files(storage, batch, store, partition)
    if snapshot:
        for key, value in iter_snapshot(storage, folder, snapshot):
            yield PUT, _bare(key, snapshot), _bare(value, snapshot)
    for name in changelogs:
        yield from _rocksdb_changelog(storage, f"{folder}/{name}.changelog", batch.settings.codec)


def partitions_of(batch: CommittedBatch, store: StoreSchema) -> range:
    """The partitions in which a store has files."""
    return range(1 if store.single else batch.settings.partitions)


def check_supported(batch: CommittedBatch) -> None:
    """Raise UNSUPPORTED for settings under which state files can't be read yet."""
    settings = batch.settings
    what = None
    if settings.row_checksum:
        what = "with row checksums (spark.sql.streaming.stateStore.rowChecksum.enabled)"
    elif settings.encoding != "unsaferow":
        what = f"in the {settings.encoding} encoding (spark.sql.streaming.stateStore.encodingFormat)"
    if what:
        raise CheckpointError(
            "UNSUPPORTED",
            f"The state is written {what}, which can't be read yet.",
            hint="Leave that setting at its default for jobs whose state is to be read.",
            batch=batch.batch,
        )


def _newest_snapshot(storage: Storage, folder: str, pattern: re.Pattern[str], version: Version) -> int:
    found = (pattern.fullmatch(name) for name in storage.names(folder))
    return max((v for m in found if m and (v := int(m[1])) <= version), default=0)


def _hdfs_file(storage: Storage, path: str, codec: str) -> Iterator[Record]:
    data = storage.read(path)
    try:
        yield from iter_records(decompress(codec, data))
    except CheckpointError as error:
        raise naming(error, path) from error


def _rocksdb_changelog(storage: Storage, path: str, codec: str) -> Iterator[Record]:
    data = storage.read(path)
    try:
        for kind, key, value in iter_changelog(decompress(codec, data)):
            if kind == PUT:
                yield PUT, _bare(key, path), _bare(value, path)
            elif kind == DELETE:
                yield DELETE, _bare(key, path), b""
            else:
                raise CheckpointError(
                    "UNSUPPORTED",
                    f"The change log has a record of type {kind:#04x}, which can't be applied yet.",
                    hint="Read aggregations and deduplications; support for lists is planned.",
                )
    except CheckpointError as error:
        raise naming(error, path) from error


def _between_snapshots(storage: Storage, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
    folder, version = store.folder(partition), version_of(batch.batch)
    new, old = _rocksdb_name(batch, store, partition, version), None
    if batch.batch > 0:
        # In checkpoint format 2 only the commit before names the snapshot before.
        before = read_batch(storage, Batch(batch.batch - 1)) if batch.state_ids else replace(batch, batch=Batch(batch.batch - 1))
        old = _rocksdb_name(before, store, partition, version_of(before.batch))
    path = f"{folder}/{new}.zip"
    for key, value in iter_snapshot_changes(storage, folder, old, new):
        if value is None:
            yield DELETE, _bare(key, path), b""
        else:
            yield PUT, _bare(key, path), _bare(value, path)


def _bare(data: bytes, path: str) -> bytes:
    """The row inside RocksDB's bytes: one byte of encoding version, always 0, then the row."""
    if data[:1] != b"\x00":
        raise CheckpointError(
            "UNKNOWN_FORMAT",
            f"A row in {path} begins with byte {data[:1].hex() or 'none'}, not with encoding version 0.",
            hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
            path=path,
        )
    return data[1:]


def _rocksdb_name(batch: CommittedBatch, store: StoreSchema, partition: int, version: int) -> str:
    """Name of a version's files without their ending: the version, in checkpoint format 2 with the id that was committed."""
    if not batch.state_ids:
        return str(version)
    try:
        return f"{version}_{batch.state_ids[store.operator][partition][store.index]}"
    except (KeyError, IndexError) as missing:
        raise CheckpointError(
            "CORRUPT_FILE",
            f"commits/{batch.batch} names no state id for operator {store.operator}, partition {partition}.",
            hint="Restore the file from a copy.",
            path=f"commits/{batch.batch}",
        ) from missing


def _rocksdb_files(storage: Storage, batch: CommittedBatch, store: StoreSchema, partition: int) -> tuple[str | None, list[str]]:
    """The snapshot to begin with (None: from nothing) and the change logs to go on with, names without their endings."""
    folder, version = store.folder(partition), version_of(batch.batch)
    newest = _rocksdb_name(batch, store, partition, version)
    if not batch.state_ids:
        base = _newest_snapshot(storage, folder, _ROCKSDB_SNAPSHOT, version)
        return (str(base) if base else None), [str(v) for v in range(base + 1, version + 1)]
    names = set(storage.names(folder))
    if f"{newest}.zip" in names:
        return newest, []
    # Format 2: only the files on the committed line count.  The change log names the ids back to the last snapshot.
    path = f"{folder}/{newest}.changelog"
    lineage = dict(parse_changelog_header(decompress(batch.settings.codec, storage.read(path))).lineage)
    lineage[version] = newest.split("_", 1)[1]
    changelogs: list[str] = []
    for v in range(version, 0, -1):
        if v not in lineage:
            raise CheckpointError(
                "FILE_GONE",
                f"{folder}: version {v} is on no line that leads to version {version}.",
                hint="Wait for the job's next snapshot.",
                path=folder,
            )
        name = f"{v}_{lineage[v]}"
        if f"{name}.zip" in names:
            return name, changelogs[::-1]
        changelogs.append(name)
    return None, changelogs[::-1]

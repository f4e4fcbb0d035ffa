"""The content of one store in one partition: the changes of a batch, and the whole state.

1. A batch's changes are one file: `<version>.delta` (HDFS-backed) or `<version>.changelog`
   (RocksDB).  A RocksDB job without change logs writes a snapshot with each batch instead.  Its
   changes are then the differences from the previous snapshot.
2. The whole state of a version is the newest snapshot at or below it (`.snapshot`, or `.zip` with
   its SST files), then the changes of every version after it, in order.
3. A store with column families has all of them in the same files: each key begins with its family's
   number.  Only the snapshot's metadata says which family a number belongs to; Spark writes a
   snapshot whenever the set of families changes.
4. Don't use a snapshot that is older than its own batch.  If somebody deleted commits and started
   the job again in the same folder, checkpoint format 1 still has snapshots of the deleted batches,
   and Spark itself would load them.

Rows come out as (PUT, MERGE or DELETE, key row, value row), bare UnsafeRow bytes for all providers.
The value of a store of lists is its rows for `encoding.iter_elements`; MERGE appends to it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace

from millpond.checkpoint.encoding import RowEncoding
from millpond.checkpoint.files.codecs import iter_unpacked, naming
from millpond.checkpoint.files.records import DELETE, MERGE, PUT, Record, iter_changelog, iter_records, parse_changelog_header
from millpond.checkpoint.log import CommittedBatch, read_batch, read_planned_ms
from millpond.checkpoint.position import Batch, Version, batch_of, version_of
from millpond.checkpoint.rocksdb.changes import iter_snapshot_changes
from millpond.checkpoint.rocksdb.snapshot import folder_and_name, iter_snapshot, read_snapshot_metadata
from millpond.errors import CheckpointError
from millpond.schema.store import StoreSchema
from millpond.settings import CheckpointSettings, FileBounds
from millpond.storage import Storage
from millpond.storage.names import NUMBER

HDFS_SNAPSHOT = re.compile(rf"({NUMBER})\.snapshot")
_ROCKSDB_SNAPSHOT = re.compile(rf"({NUMBER})\.zip")
_LIMITS = CheckpointSettings()
_BOUNDS = FileBounds()
_PIECE_BYTES = 8 << 20


class _LastRead(threading.local):
    path = ""
    data = b""


class StateReader:
    """Reads the state of one job.  Its cache is valid as long as the job's column families stay the same."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._planned_ms: dict[Version, int] = {}
        self._families: dict[str, dict[str, int]] = {}
        # The file that a thread read last: the families of a store share files.
        self._read = _LastRead()

    def on(self, storage: Storage) -> StateReader:
        """A reader of files of the same job in another place.

        Both share what they know: a column family that one has read, the other knows too.
        """
        reader = StateReader(storage)
        reader._families = self._families
        return reader

    def iter_changes(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
        """The puts, appends and deletes of a batch in one partition, in write order.

        Raises:  FILE_GONE if neither the change file nor the snapshots of this batch and the one
                 before exist.  INCOMPLETE_FILE, CORRUPT_FILE, UNKNOWN_FORMAT, UNSUPPORTED, each
                 naming the file.
        """
        path = self.change_file(batch, store, partition)
        if path is None:
            yield from self._between_snapshots(batch, store, partition)
        else:
            yield from self.iter_file(path, self.unpacked(path, batch, store), batch, store, partition)

    def change_file(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> str | None:
        """A batch's change file; None if its changes are the differences between snapshots.

        Raises as `iter_changes`.
        """
        path = change_path(batch, store, partition)
        if batch.settings.provider == "hdfs" or self._has_changelog(path.removesuffix(".changelog"), batch):
            return path
        return None

    def iter_state(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
        """The records that build the whole state of a batch in one partition, in order.

        Raises:  as `iter_changes`.
        """
        base, changes = self.files(batch, store, partition)
        if base is not None and batch.settings.provider == "rocksdb":
            yield from self._snapshot(*folder_and_name(base), batch, store, partition)
        elif base is not None:
            yield from self.iter_file(base, self.unpacked(base, batch, store), batch, store, partition)
        for path in changes:
            yield from self.iter_file(path, self.unpacked(path, batch, store), batch, store, partition)

    def check_age(self, path: str, version: Version) -> None:  # 4
        """Raise REWOUND_IN_PLACE if a snapshot is older than its batch."""
        if version not in self._planned_ms:
            try:
                self._planned_ms[version] = read_planned_ms(self.storage, batch_of(version))
            except CheckpointError as error:
                if error.condition != "FILE_GONE":
                    raise
                self._planned_ms[version] = 0  # its log was cleaned up
        planned_ms = self._planned_ms[version]
        if self._is_older(path, planned_ms) and not self._is_older(f"offsets/{batch_of(version)}", planned_ms):
            raise CheckpointError(
                "REWOUND_IN_PLACE",
                f"{path} is older than its batch, {batch_of(version)}: the job was rewound in its own "
                "folder and started again, and this file is of the batches that were deleted.",
                hint=f"Stop the job and delete the state files above the version that it was rewound to, {path} among them; Spark "
                "itself would load them when it starts again.",
                path=path,
                batch=batch_of(version),
            )

    def _is_older(self, path: str, planned_ms: int) -> bool:
        """Whether a file is there, and older than the batch.

        So is the batch's own plan in a checkpoint that was copied with other times.
        """
        stamp = self.storage.stamp(path)
        return stamp is not None and stamp.modified_ns // 1_000_000 + _LIMITS.clock_tolerance_ms < planned_ms

    def files(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> tuple[str | None, list[str]]:
        """The files of `iter_state`: the snapshot's path, None without one, and those of later changes."""
        folder, version = store.folder(partition), version_of(batch.batch)
        if batch.settings.provider == "hdfs":
            base = newest_snapshot(self.storage, folder, HDFS_SNAPSHOT, version)
            if base:
                self.check_age(f"{folder}/{base}.snapshot", base)
            changes = [f"{folder}/{later}.delta" for later in range(base + 1, version + 1)]
            return (f"{folder}/{base}.snapshot" if base else None), changes
        snapshot, changelogs = self.rocksdb_files(batch, store, partition)
        if snapshot and not batch.state_ids:
            self.check_age(f"{folder}/{snapshot}.zip", Version(int(snapshot)))
        return (f"{folder}/{snapshot}.zip" if snapshot else None), [f"{folder}/{name}.changelog" for name in changelogs]

    def family(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> bytes:
        """The first bytes of the store's keys in RocksDB; empty if it has no column family."""
        return self._family(batch, store, partition)

    def unpacked(self, path: str, batch: CommittedBatch, store: StoreSchema) -> bytes:
        """The content of a change file, or of an HDFS-backed snapshot.

        Raises as `iter_state`, naming the file.
        """
        return self._unpacked(path, batch.settings.codec, keep=bool(store.family))

    def iter_unpacked(self, path: str, batch: CommittedBatch, window_bytes: int) -> Iterator[bytes]:
        """The same in pieces of about so many bytes."""
        pieces = self.storage.iter_pieces(path, window_bytes, _BOUNDS.state_bytes)
        try:
            yield from iter_unpacked(batch.settings.codec, pieces, window_bytes)
        except CheckpointError as error:
            raise (error if "path" in error.context else naming(error, path)) from error

    def iter_file(self, path: str, data: bytes, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
        """The records in the content from `unpacked`.  Raises as `iter_changes`."""
        hdfs = batch.settings.provider == "hdfs"
        family = b"" if hdfs else self._family(batch, store, partition)
        rows = RowEncoding(store, batch.settings)
        try:
            records = iter_records(data) if hdfs else iter_changelog(data)
            if rows.is_bare:
                yield from records
                return
            for kind, found, value in records:
                key = rows.deleted(found) if kind == DELETE else found
                if family and not key.startswith(family):
                    continue
                if kind == PUT:
                    yield PUT, *rows.put(key, value)
                elif kind == DELETE:
                    yield DELETE, rows.key(key), b""
                elif kind == MERGE and store.many:
                    yield MERGE, *rows.put(key, value)
                else:
                    raise CheckpointError(
                        "UNSUPPORTED",
                        f"The change log has a record of type {kind:#04x}, which operators of this kind aren't known to write.",
                        hint="Report this with the job's Spark version.",
                    )
        except CheckpointError as error:
            raise naming(error, path) from error

    def _snapshot(self, folder: str, name: str, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
        family = self._family(batch, store, partition, snapshot=name)
        rows = RowEncoding(store, batch.settings)
        try:
            for key, value in iter_snapshot(self.storage, folder, name, batch.settings.merge_delimiter):
                if not family or key.startswith(family):
                    yield PUT, *rows.put(key, value)
        except CheckpointError as error:
            raise (error if "path" in error.context else naming(error, f"{folder}/{name}.zip")) from error

    def _has_changelog(self, path: str, batch: CommittedBatch) -> bool:
        """Whether a version has a change log.  Raises FILE_GONE if it has no snapshot either."""
        try:
            self._unpacked(f"{path}.changelog", batch.settings.codec, keep=True)
        except CheckpointError as error:
            if error.condition != "FILE_GONE" or self.storage.stamp(f"{path}.zip") is None:
                raise
            return False
        return True

    def _between_snapshots(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
        folder, version = store.folder(partition), version_of(batch.batch)
        new, old = rocksdb_name(batch, store, partition, version), None
        if batch.batch > 0:
            before = replace(batch, batch=Batch(batch.batch - 1))
            if batch.state_ids:  # only the previous commit names its snapshot
                before = read_batch(self.storage, before.batch)
            old = rocksdb_name(before, store, partition, version_of(before.batch))
        family = self._family(batch, store, partition)
        rows = RowEncoding(store, batch.settings)
        try:
            for key, value in iter_snapshot_changes(self.storage, folder, old, new, batch.settings.merge_delimiter):
                if family and not key.startswith(family):
                    continue
                if value is None:
                    yield DELETE, rows.key(key), b""
                else:
                    yield PUT, *rows.put(key, value)
        except CheckpointError as error:
            raise (error if "path" in error.context else naming(error, f"{folder}/{new}.zip")) from error

    def _unpacked(self, path: str, codec: str, *, keep: bool) -> bytes:
        if self._read.path == path:
            return self._read.data
        unpacked = unpack(self.storage, path, codec)
        self._read.path, self._read.data = (path, unpacked) if keep else ("", b"")
        return unpacked

    def _family(self, batch: CommittedBatch, store: StoreSchema, partition: int, snapshot: str | None = None) -> bytes:
        """The first bytes of the store's keys; empty if it has no column family."""
        if not store.family:
            return b""
        folder = store.folder(partition)
        if folder not in self._families:
            if snapshot is None:
                snapshot, _ = self.rocksdb_files(batch, store, partition)
            if snapshot is None:
                raise CheckpointError(
                    "FILE_GONE",
                    f"{folder} has no snapshot that names its column families.",
                    hint="Wait for the job's next snapshot.",
                    path=folder,
                )
            self._families[folder] = read_snapshot_metadata(self.storage, folder, snapshot).column_families
        number = self._families[folder].get(store.family)
        if number is None:
            raise CheckpointError(
                "CORRUPT_FILE",
                f"{store.schema_file or 'The schema'} has a column family {store.family!r:.100}, but {folder} doesn't have it.",
                hint="Restore the file from a copy, or let the job write a new snapshot and delete the replica.",
                path=store.schema_file or folder,
            )
        return number.to_bytes(2, "little")

    def rocksdb_files(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> tuple[str | None, list[str]]:
        """The snapshot, None without one, and the change logs after it; names without their endings."""
        folder, version = store.folder(partition), version_of(batch.batch)
        newest = rocksdb_name(batch, store, partition, version)
        if not batch.state_ids:
            base = newest_snapshot(self.storage, folder, _ROCKSDB_SNAPSHOT, version)
            return (str(base) if base else None), [str(v) for v in range(base + 1, version + 1)]
        names = set(self.storage.names(folder))
        if f"{newest}.zip" in names:
            return newest, []
        # Format 2: only the files of the committed lineage count. The change log names its ids back
        # to the last snapshot.
        path = f"{folder}/{newest}.changelog"
        lineage = dict(parse_changelog_header(unpack(self.storage, path, batch.settings.codec)).lineage)
        lineage[version] = newest.split("_", 1)[1]
        changelogs: list[str] = []
        for v in range(version, 0, -1):
            if v not in lineage:
                raise CheckpointError(
                    "FILE_GONE",
                    f"{folder}: version {v} isn't in the lineage of version {version}.",
                    hint="Wait for the job's next snapshot.",
                    path=folder,
                )
            name = f"{v}_{lineage[v]}"
            if f"{name}.zip" in names:
                return name, changelogs[::-1]
            changelogs.append(name)
        return None, changelogs[::-1]


def unpack(storage: Storage, path: str, codec: str) -> bytes:
    """The content of a state file, which is read in pieces.

    Raises as `StateReader.iter_changes`, naming the file.
    """
    pieces = storage.iter_pieces(path, _PIECE_BYTES, _BOUNDS.state_bytes)
    try:
        return b"".join(iter_unpacked(codec, pieces, _PIECE_BYTES))
    except CheckpointError as error:
        raise (error if "path" in error.context else naming(error, path)) from error


def partitions_of(batch: CommittedBatch, store: StoreSchema) -> range:
    """The partitions in which a store has files."""
    return range(1 if store.single else batch.settings.partitions)


def change_path(batch: CommittedBatch, store: StoreSchema, partition: int) -> str:
    """Where a batch's changes are, if they have a file of their own."""
    folder, version = store.folder(partition), version_of(batch.batch)
    if batch.settings.provider == "hdfs":
        return f"{folder}/{version}.delta"
    return f"{folder}/{rocksdb_name(batch, store, partition, version)}.changelog"


def newest_snapshot(storage: Storage, folder: str, pattern: re.Pattern[str], version: Version) -> Version:
    """The newest snapshot up to a version; 0 if there is none."""
    found = (pattern.fullmatch(name) for name in storage.names(folder))
    return max((Version(v) for m in found if m and (v := int(m[1])) <= version), default=Version(0))


def rocksdb_name(batch: CommittedBatch, store: StoreSchema, partition: int, version: int) -> str:
    """Name of a version's files without their ending: the version, in format 2 with the committed id."""
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

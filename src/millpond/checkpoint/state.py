"""The content of one store in one partition: what a batch changed, and all of it from the newest snapshot on.

1. A batch's changes are one file: `<version>.delta` (HDFS-backed) or `<version>.changelog` (RocksDB).
2. The whole state of a version is the newest snapshot at or below it (`.snapshot`, or `.zip` with its SST files), then the changes
   of every version after it, in order.
3. A store with column families keeps all of them in the same files: the family's number begins each key.  Which number is whose
   stands in the snapshot's metadata only; Spark writes a snapshot whenever the set of families changes.

Rows come out as (PUT, MERGE or DELETE, key row, value row), bare UnsafeRow bytes, whatever the provider wrapped around them.  The
value of a store of lists is its rows as `encoding.iter_elements` takes them apart; MERGE appends to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from millpond.checkpoint.codecs import corrupt, decompress, naming
from millpond.checkpoint.encoding import RowEncoding
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import StoreSchema
from millpond.checkpoint.position import Version, version_of
from millpond.checkpoint.records import DELETE, MERGE, PUT, Record, iter_changelog, iter_records, parse_changelog_header
from millpond.checkpoint.rocksdb import iter_snapshot, read_snapshot_metadata
from millpond.errors import CheckpointError
from millpond.storage import Storage

_HDFS_SNAPSHOT = re.compile(r"(\d+)\.snapshot")
_ROCKSDB_SNAPSHOT = re.compile(r"(\d+)\.zip")


class StateReader:
    """Reads the state of one job.  What it remembers holds as long as the job's column families stay the same."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._families: dict[str, dict[str, int]] = {}
        # The file that was read last: the families of a store lie in the same ones.
        self._last: tuple[str, bytes] = ("", b"")

    def iter_changes(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
        """What a batch put, appended and deleted in one partition, in write order.

        Raises:  FILE_GONE where the change file isn't there: cleaned up, or a RocksDB job without change logs.
                 INCOMPLETE_FILE, CORRUPT_FILE, UNKNOWN_FORMAT, UNSUPPORTED, each naming the file.
        """
        folder, version = store.folder(partition), version_of(batch.batch)
        if batch.settings.provider == "hdfs":
            yield from self._hdfs_file(f"{folder}/{version}.delta", batch, store)
        else:
            name = _rocksdb_name(batch, store, partition, version)
            yield from self._changelog(f"{folder}/{name}.changelog", batch, store, partition)

    def iter_state(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
        """What builds the whole state of a batch in one partition from nothing, in order.

        Raises:  as `iter_changes`.
        """
        folder, version = store.folder(partition), version_of(batch.batch)
        if batch.settings.provider == "hdfs":
            base = _newest_snapshot(self.storage, folder, _HDFS_SNAPSHOT, version)
            if base:
                yield from self._hdfs_file(f"{folder}/{base}.snapshot", batch, store)
            for later in range(base + 1, version + 1):
                yield from self._hdfs_file(f"{folder}/{later}.delta", batch, store)
            return
        snapshot, changelogs = self._rocksdb_files(batch, store, partition)
        if snapshot:
            yield from self._snapshot(folder, snapshot, batch, store, partition)
        for name in changelogs:
            yield from self._changelog(f"{folder}/{name}.changelog", batch, store, partition)

    def files(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> tuple[str | None, list[str]]:
        """What `iter_state` reads: paths of the snapshot (None: it begins with nothing) and of the changes after it, in order."""
        folder, version = store.folder(partition), version_of(batch.batch)
        if batch.settings.provider == "hdfs":
            base = _newest_snapshot(self.storage, folder, _HDFS_SNAPSHOT, version)
            changes = [f"{folder}/{later}.delta" for later in range(base + 1, version + 1)]
            return (f"{folder}/{base}.snapshot" if base else None), changes
        snapshot, changelogs = self._rocksdb_files(batch, store, partition)
        return (f"{folder}/{snapshot}.zip" if snapshot else None), [f"{folder}/{name}.changelog" for name in changelogs]

    def family(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> bytes:
        """What the store's keys begin with in RocksDB; empty where it has no column family."""
        return self._family(batch, store, partition)

    def unpacked(self, path: str, batch: CommittedBatch) -> bytes:
        """The content of a change file or of a snapshot of the HDFS-backed provider.  Raises as `iter_state`, naming the file."""
        try:
            return self._unpacked(path, batch.settings.codec, keep=False)
        except CheckpointError as error:
            raise error if "path" in error.context else naming(error, path) from error

    def _hdfs_file(self, path: str, batch: CommittedBatch, store: StoreSchema) -> Iterator[Record]:
        data = self.storage.read(path)
        rows = RowEncoding(store, batch.settings)
        try:
            records = iter_records(decompress(batch.settings.codec, data))
            if rows.is_bare:
                yield from records
                return
            for kind, key, value in records:
                if kind == PUT:
                    yield PUT, *rows.put(key, value)
                else:
                    yield DELETE, rows.delete(key), b""
        except CheckpointError as error:
            raise naming(error, path) from error

    def _changelog(self, path: str, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[Record]:
        family = self._family(batch, store, partition)
        rows = RowEncoding(store, batch.settings)
        try:
            for kind, key, value in iter_changelog(self._unpacked(path, batch.settings.codec, keep=bool(family))):
                if family and not key.startswith(family):
                    continue
                if kind == PUT:
                    yield PUT, *rows.put(key, value)
                elif kind == DELETE:
                    yield DELETE, rows.delete(key), b""
                elif kind == MERGE and store.many:
                    yield MERGE, *rows.put(key, value)
                else:
                    raise CheckpointError(
                        "UNSUPPORTED",
                        f"The change log has a record of type {kind:#04x}, which no operator of this kind is known to write.",
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

    def _unpacked(self, path: str, codec: str, *, keep: bool) -> bytes:
        if self._last[0] == path:
            return self._last[1]
        data = decompress(codec, self.storage.read(path))
        if keep:
            self._last = (path, data)
        return data

    def _family(self, batch: CommittedBatch, store: StoreSchema, partition: int, snapshot: str | None = None) -> bytes:
        """What the store's keys begin with; empty where it has no column family."""
        if not store.family:
            return b""
        folder = store.folder(partition)
        if folder not in self._families:
            if snapshot is None:
                snapshot, _ = self._rocksdb_files(batch, store, partition)
            if snapshot is None:
                raise CheckpointError(
                    "FILE_GONE",
                    f"{folder} has no snapshot that tells its column families apart.",
                    hint="Wait for the job's next snapshot.",
                    path=folder,
                )
            self._families[folder] = read_snapshot_metadata(self.storage, folder, snapshot).column_families
        number = self._families[folder].get(store.family)
        if number is None:
            raise naming(corrupt(f"the snapshot's metadata doesn't name the column family {store.family!r:.100}", 0), folder)
        return number.to_bytes(2, "little")

    def _rocksdb_files(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> tuple[str | None, list[str]]:
        """The snapshot to begin with (None: from nothing) and the change logs to go on with, names without their endings."""
        folder, version = store.folder(partition), version_of(batch.batch)
        newest = _rocksdb_name(batch, store, partition, version)
        if not batch.state_ids:
            base = _newest_snapshot(self.storage, folder, _ROCKSDB_SNAPSHOT, version)
            return (str(base) if base else None), [str(v) for v in range(base + 1, version + 1)]
        names = set(self.storage.names(folder))
        if f"{newest}.zip" in names:
            return newest, []
        # Format 2: only the files on the committed line count.  The change log names the ids back to the last snapshot.
        path = f"{folder}/{newest}.changelog"
        lineage = dict(parse_changelog_header(decompress(batch.settings.codec, self.storage.read(path))).lineage)
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


def partitions_of(batch: CommittedBatch, store: StoreSchema) -> range:
    """The partitions in which a store has files."""
    return range(1 if store.single else batch.settings.partitions)


def _newest_snapshot(storage: Storage, folder: str, pattern: re.Pattern[str], version: Version) -> int:
    found = (pattern.fullmatch(name) for name in storage.names(folder))
    return max((v for m in found if m and (v := int(m[1])) <= version), default=0)


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

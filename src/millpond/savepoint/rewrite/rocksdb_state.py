"""The rows of a store in RocksDB, partition by partition: read with all column families, and written as snapshots.

A row is a key as RocksDB has it, with the number of its column family in front, and its value
without checksums.  So no row is decoded but for its partition, and what only Spark needs comes
along: timers, expiry, counts.

1. Spark loads the newest snapshot up to a version, and then the change logs after it.  A snapshot
   of the version itself is enough, whether or not the job writes change logs.
2. The numbers of column families are in snapshots only; all partitions must have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from millpond.checkpoint.encoding import checked_parts, list_parts, with_checksums, without_checksum
from millpond.checkpoint.files.codecs import naming
from millpond.checkpoint.files.records import DELETE, MERGE, iter_changelog
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.position import version_of
from millpond.checkpoint.rocksdb.snapshot import SnapshotMetadata, iter_chunks, iter_spans, snapshot_at
from millpond.checkpoint.rocksdb.write_snapshot import write_snapshot, write_snapshot_of_records
from millpond.checkpoint.rows.columns import span
from millpond.checkpoint.state import StateReader, partitions_of, rocksdb_name, unpack
from millpond.checkpoint.whole.store import WholeStore
from millpond.errors import CheckpointError
from millpond.native.calls import Pieces
from millpond.native.rewrite import Chunk
from millpond.savepoint.rewrite.form import unsupported
from millpond.storage import Storage

_FAMILY_BYTES = 2
_CHUNK_ROWS = 10_000
_REPORT = "Report this with the job's Spark version; the savepoint can be restored as it is."
_NO_FAMILIES = SnapshotMetadata(sst_names={}, column_families={})
Row = tuple[bytes, bytes]
_Later = dict[bytes, tuple[bool, bytes | None]]
"""key -> (whether this is its value whatever the snapshot has, the value or what is appended to it)"""


class RocksDbState:
    """One store.

    families:          of the files that are written; None: as those that are there
    Raises (reading):  CORRUPT_FILE and the like, naming the file.
    """

    def __init__(
        self, storage: Storage, batch: CommittedBatch, store: WholeStore, families: SnapshotMetadata | None = None
    ) -> None:
        self._storage = storage
        self._batch = batch
        self._store = store
        self._delimiter = batch.settings.merge_delimiter
        self._checked = batch.settings.row_checksum
        if not store.has_families:
            families = _NO_FAMILIES
        self.families = self._read_families() if families is None else families
        self._names = {number.to_bytes(_FAMILY_BYTES, "little"): name for name, number in self.families.column_families.items()}

    @property
    def numbers(self) -> Mapping[str, int]:
        """Column family -> its number in keys."""
        return self.families.column_families

    def hasher(self) -> Callable[[bytes], int]:
        """A function from a key to Spark's hash.

        Raises (the function):  UNSUPPORTED for a family that no schema file describes.
        """
        avro = self._batch.settings.encoding == "avro"
        if not self._store.has_families:
            return self._store.key_hasher(self._store.families[self._store.name], avro=avro)
        hashers: dict[bytes, Callable[[bytes], int]] = {}

        def hash_key(key: bytes) -> int:
            family = key[:_FAMILY_BYTES]
            if family not in hashers:
                name = self._family(key)
                if name not in self._store.families:
                    raise unsupported(f"{self._rows_of(name)}, which no schema file describes.", _REPORT)
                hashers[family] = self._store.key_hasher(self._store.families[name], avro=avro)
            return hashers[family](key[_FAMILY_BYTES:])

        return hash_key

    def iter_rows(self, partition: int) -> Iterator[Row]:
        """The rows of a partition, in order of the keys' bytes.  What changed since the snapshot is in memory."""
        base, later = self._changes(partition)
        newest = self._with_changes(base, later)
        if not self._checked:
            yield from newest
            return
        folder = self._store.files.folder(partition)
        for key, value in newest:
            try:
                yield key, self._delimiter.join(checked_parts(key, value, self._delimiter))
            except CheckpointError as error:
                raise naming(error, base or folder) from error

    def changed_keys(self, partition: int) -> Iterable[bytes]:
        """The keys of all changes since the snapshot, also of rows that are deleted."""
        return self._changes(partition)[1]

    def iter_chunks(self, partition: int) -> Iterator[Chunk]:
        """The same rows, many at a time.  Only with the compiled library, without checksums."""
        base, changes = StateReader(self._storage).files(self._batch, self._store.files, partition)
        if base is not None and not changes:
            for keys, values in iter_spans(self._storage, snapshot_at(self._storage, base), self._delimiter):
                yield Chunk(keys, values)
            return
        rows = self.iter_rows(partition)
        while some := list(islice(rows, _CHUNK_ROWS)):
            yield Chunk(span(key for key, _ in some), span(value for _, value in some))

    def iter_key_chunks(self, partition: int) -> Iterator[Pieces]:
        """The keys of all that Spark reads, also of rows that are deleted, many at a time; as `iter_chunks`."""
        base, later = self._changes(partition)
        if later:
            yield span(later)
        if base is not None:
            for keys, _ in iter_spans(self._storage, snapshot_at(self._storage, base), self._delimiter):
                yield keys

    def write_pieces(self, partition: int, pieces: Iterable[bytes]) -> None:
        """Write a partition's snapshot, of a store without column families.

        pieces:  of records, in order of the keys' bytes
        """
        folder = self._store.files.folder(partition)
        name = rocksdb_name(self._batch, self._store.files, partition, version_of(self._batch.batch))
        write_snapshot_of_records(self._storage, folder, name, pieces, self.families)

    def write(self, partition: int, rows: Iterable[Row]) -> None:  # 1
        """Write a partition's snapshot.

        rows:  in order of the keys' bytes
        """
        folder = self._store.files.folder(partition)
        name = rocksdb_name(self._batch, self._store.files, partition, version_of(self._batch.batch))
        stored = ((key, self._with_checksum(key, value)) for key, value in rows) if self._checked else rows
        write_snapshot(self._storage, folder, name, stored, self.families)

    def _with_checksum(self, key: bytes, value: bytes) -> bytes:
        name = self._family(key) if self._store.has_families else self._store.name
        is_list = self._store.is_list(name)
        if is_list is None:
            raise unsupported(
                f"{self._rows_of(name)}, a state variable that the query has dropped: whether it was a list is unknown.",
                "Restore the savepoint without adding row checksums.",
            )
        return with_checksums(key, list_parts(value, self._delimiter) if is_list else [value], self._delimiter)

    def _rows_of(self, family: str) -> str:
        return f"Store {self._store.id} has rows in the column family {family!r:.80}"

    def _family(self, key: bytes) -> str:
        name = self._names.get(key[:_FAMILY_BYTES])
        if name is None:
            raise CheckpointError(
                "CORRUPT_FILE",
                f"Store {self._store.id} has a row of column family {key[:_FAMILY_BYTES].hex()}, which no snapshot names.",
                hint="Restore the savepoint's files from a copy.",
            )
        return name

    def _changes(self, partition: int) -> tuple[str | None, _Later]:
        """The snapshot, and what changed since."""
        base, changes = StateReader(self._storage).files(self._batch, self._store.files, partition)
        later: _Later = {}
        for path in changes:
            self._replay(path, later)
        return base, later

    def _with_changes(self, base: str | None, later: _Later) -> Iterator[Row]:
        """The snapshot's rows and those of later changes, in order."""
        names, at = sorted(later), 0
        chunks = () if base is None else iter_chunks(self._storage, snapshot_at(self._storage, base), self._delimiter)
        for keys, values in chunks:
            for key, value in zip(keys, values, strict=True):
                while at < len(names) and names[at] < key:
                    yield from self._new(names[at], later)
                    at += 1
                if at == len(names) or names[at] != key:
                    yield key, value
                    continue
                at += 1
                is_whole, change = later[key]
                if not is_whole and change is not None:
                    yield key, value + self._delimiter + change
                elif change is not None:
                    yield key, change
        for key in names[at:]:
            yield from self._new(key, later)

    def _new(self, key: bytes, later: _Later) -> Iterator[Row]:
        _, value = later[key]
        if value is not None:
            yield key, value

    def _replay(self, path: str, later: _Later) -> None:
        try:
            for kind, key, value in iter_changelog(unpack(self._storage, path, self._batch.settings.codec)):
                if kind == DELETE:
                    later[without_checksum(key) if self._checked else key] = True, None
                elif kind == MERGE:
                    is_whole, before = later.get(key, (False, None))
                    later[key] = is_whole, value if before is None else before + self._delimiter + value
                else:
                    later[key] = True, value
        except CheckpointError as error:
            raise (error if "path" in error.context else naming(error, path)) from error

    def _read_families(self) -> SnapshotMetadata:  # 2
        reader = StateReader(self._storage)
        found: SnapshotMetadata | None = None
        for partition in partitions_of(self._batch, self._store.files):
            base, _ = reader.files(self._batch, self._store.files, partition)
            if base is None:
                raise CheckpointError(
                    "FILE_GONE",
                    f"{self._store.files.folder(partition)} has no snapshot that names its column families.",
                    hint="Make a savepoint of a newer batch.",
                )
            metadata = snapshot_at(self._storage, base).metadata
            if found is not None and (metadata.column_families, metadata.internal) != (found.column_families, found.internal):
                raise unsupported(f"The partitions of store {self._store.id} number their column families differently.", _REPORT)
            largest = max(metadata.largest_family, found.largest_family if found else 0)
            found = replace(metadata, largest_family=largest)
        assert found is not None
        return found

"""The rows of a store of the HDFS-backed provider, partition by partition: read, and written as snapshots."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from millpond.checkpoint.encoding import without_checksum
from millpond.checkpoint.files.checksums import crc32c
from millpond.checkpoint.files.codecs import corrupt, iter_unpacked, naming
from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.files.partial import open_parts
from millpond.checkpoint.files.records import DELETE, END_MARK, encode_record, iter_piecewise, iter_records
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.position import version_of
from millpond.checkpoint.state import StateReader
from millpond.checkpoint.whole.store import WholeStore
from millpond.errors import CheckpointError
from millpond.native.calls import Pieces, find_whole_records
from millpond.native.rewrite import Chunk
from millpond.settings import FileBounds
from millpond.storage import Storage

_BOUNDS = FileBounds()
_WINDOW_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
_CRC = struct.Struct("<I")


class HdfsState:
    """One store; its rows are Spark's, without checksums.

    Raises (reading):  CORRUPT_FILE and the like, naming the file.
    """

    numbers: Mapping[str, int] = {}

    def __init__(self, storage: Storage, batch: CommittedBatch, store: WholeStore) -> None:
        self._storage = storage
        self._batch = batch
        self._store = store
        self._checked = batch.settings.row_checksum

    def hasher(self) -> Callable[[bytes], int]:
        """A function from a key to Spark's hash."""
        return self._store.row_hasher()

    def iter_rows(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a partition, in no order.  What the deltas changed is in memory, the snapshot isn't."""
        base, deltas = StateReader(self._storage).files(self._batch, self._store.files, partition)
        newest: dict[bytes, bytes | None] = {}
        for path in deltas:
            newest.update(self._iter_file(path))
        if base is not None:
            for key, value in self._iter_file(base):
                if value is None:
                    raise naming(corrupt("a snapshot deletes a key", 0), base)
                if key not in newest:
                    yield key, value
        yield from ((key, value) for key, value in newest.items() if value is not None)

    def changed_keys(self, partition: int) -> Iterable[bytes]:
        """The keys of all changes since the snapshot, also of rows that are deleted."""
        _, deltas = StateReader(self._storage).files(self._batch, self._store.files, partition)
        return (key for path in deltas for key, _ in self._iter_file(path))

    def iter_chunks(self, partition: int) -> Iterator[Chunk]:
        """All records of a partition's files, the oldest file first.  Only with the compiled library, without checksums."""
        base, deltas = StateReader(self._storage).files(self._batch, self._store.files, partition)
        for path in deltas if base is None else [base, *deltas]:
            yield from self._chunks_of(path, is_base=path == base)

    def iter_key_chunks(self, partition: int) -> Iterator[Pieces]:
        """The keys of all that Spark reads, also of rows that are deleted, many at a time; as `iter_chunks`."""
        return (chunk.keys for chunk in self.iter_chunks(partition))

    def packed_bytes(self, partition: int) -> int:
        """How large a partition's files are."""
        base, deltas = StateReader(self._storage).files(self._batch, self._store.files, partition)
        total = 0
        for path in deltas if base is None else [base, *deltas]:
            with contextlib.closing(open_parts(self._storage, path)) as file:
                total += file.size
        return total

    def write_pieces(self, partition: int, pieces: Iterable[bytes]) -> None:
        """Write a partition's snapshot.

        pieces:  of records, each key once
        """
        self._write(partition, chain(pieces, [END_MARK]))

    def write(self, partition: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Write a partition's snapshot."""
        self._write(partition, self._pieces(rows))

    def _write(self, partition: int, pieces: Iterable[bytes]) -> None:
        path = f"{self._store.files.folder(partition)}/{version_of(self._batch.batch)}.snapshot"
        self._storage.write_pieces(path, pack(self._batch.settings.codec, pieces))

    def _pieces(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
        records: list[bytes] = []
        size = 0
        for key, value in rows:
            record = encode_record(key, _CRC.pack(crc32c(key + value)) + value if self._checked else value)
            records.append(record)
            size += len(record)
            if size >= _PIECE_BYTES:
                yield b"".join(records)
                records.clear()
                size = 0
        yield b"".join(records) + END_MARK

    def _chunks_of(self, path: str, *, is_base: bool) -> Iterator[Chunk]:
        pieces = self._storage.iter_pieces(path, _WINDOW_BYTES, _BOUNDS.state_bytes)
        rest, before = b"", 0
        try:
            for piece in iter_unpacked(self._batch.settings.codec, pieces, _WINDOW_BYTES):
                data = rest + piece
                found = find_whole_records(data, typed=False)
                assert found is not None
                (kinds, key_begin, key_size, begin, size), end = found
                if len(kinds):
                    gone = kinds == DELETE
                    some = bool(gone.any())
                    if some and is_base:
                        raise corrupt("a snapshot deletes a key", 0)
                    yield Chunk((data, key_begin, key_size), (data, begin, size), gone if some else None)
                rest, before = data[end:], before + end
            for _ in iter_records(rest):  # there is the end mark only, or what is wrong
                raise corrupt("a record isn't whole", before)
        except CheckpointError as error:
            raise (error if "path" in error.context else naming(error, path)) from error

    def _iter_file(self, path: str) -> Iterator[tuple[bytes, bytes | None]]:
        """The records of a file; the value of a deleted key is None."""
        pieces = self._storage.iter_pieces(path, _WINDOW_BYTES, _BOUNDS.state_bytes)
        try:
            for kind, key, value in iter_piecewise(iter_unpacked(self._batch.settings.codec, pieces, _WINDOW_BYTES)):
                if kind == DELETE:
                    yield without_checksum(key) if self._checked else key, None
                else:
                    yield key, without_checksum(value, key) if self._checked else value
        except CheckpointError as error:
            raise (error if "path" in error.context else naming(error, path)) from error

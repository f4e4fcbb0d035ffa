"""The rows of a store of the HDFS-backed provider, partition by partition: read, and written as snapshots."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping

from millpond.checkpoint.encoding import without_checksum
from millpond.checkpoint.files.checksums import crc32c
from millpond.checkpoint.files.codecs import iter_unpacked, naming
from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.files.records import DELETE, END_MARK, encode_record, iter_records
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.position import version_of
from millpond.checkpoint.state import StateReader
from millpond.checkpoint.whole_store import WholeStore
from millpond.errors import CheckpointError
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
        """The rows of a partition, in no order.  They are all in memory."""
        base, changes = StateReader(self._storage).files(self._batch, self._store.files, partition)
        rows: dict[bytes, bytes] = {}
        for path in changes if base is None else [base, *changes]:
            self._replay(path, rows)
        yield from rows.items()

    def write(self, partition: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Write a partition's snapshot."""
        path = f"{self._store.files.folder(partition)}/{version_of(self._batch.batch)}.snapshot"
        self._storage.write_pieces(path, pack(self._batch.settings.codec, self._pieces(rows)))

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

    def _replay(self, path: str, rows: dict[bytes, bytes]) -> None:
        """Bring rows to the state after a file's records."""
        pieces = self._storage.iter_pieces(path, _WINDOW_BYTES, _BOUNDS.state_bytes)
        try:
            for kind, key, value in iter_records(b"".join(iter_unpacked(self._batch.settings.codec, pieces, _WINDOW_BYTES))):
                if kind == DELETE:
                    rows.pop(without_checksum(key) if self._checked else key, None)
                else:
                    rows[key] = without_checksum(value, key) if self._checked else value
        except CheckpointError as error:
            raise (error if "path" in error.context else naming(error, path)) from error

"""The checksum files beside a checkpoint's files.

    .<name>.crc   Hadoop's, on local disks and HDFS: "crc\\0", int32 bytes a block (512), CRC-32 of each block; big-endian
    <name>.crc    Spark's, of state files in checkpoint format 2: JSON with algorithm CRC32C, value (signed) and mainFileSize

Spark itself checks few of them, and either may be missing: only a checksum that doesn't match is an
error.
"""

from __future__ import annotations

import zlib
from typing import Protocol

from millpond.checkpoint.files.checksums import crc32c
from millpond.checkpoint.files.codecs import corrupt, naming
from millpond.errors import CheckpointError
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage

_MAGIC = b"crc\0"
_MAX_BLOCK = 1 << 20
_PIECE_BYTES = 8 << 20
_BOUNDS = FileBounds()


def verify_file(storage: Storage, path: str, *, hadoop: bool = True) -> bool:
    """Compare a file with the checksums beside it; returns whether there were any.

    hadoop:  also with Hadoop's, not only with Spark's
    Raises:  CORRUPT_FILE, with the position of the first block that doesn't match; FILE_GONE if the
             file itself is missing.
    """
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/" if folder else ""
    stamp = storage.stamp(path)
    size_bytes = 0 if stamp is None else stamp.size_bytes
    blocks = _read(storage, f"{beside}.{name}.crc", _BOUNDS.checksum_bytes(size_bytes)) if hadoop else None
    spark = _read(storage, f"{path}.crc", _BOUNDS.note_bytes)
    if blocks is None and spark is None:
        return False
    try:
        # If a checksum file gives another length, the file needn't be read.
        checks: list[_Check] = [_Blocks(blocks, size_bytes)] if blocks is not None else []
        checks += [_Whole(spark, size_bytes)] if spark is not None else []
        for piece in storage.iter_pieces(path, _PIECE_BYTES, _BOUNDS.state_bytes):
            for check in checks:
                check.take(piece)
        for check in checks:
            check.end()
    except CheckpointError as error:
        raise (error if "path" in error.context else naming(error, path)) from error
    return True


def _read(storage: Storage, path: str, most_bytes: int) -> bytes | None:
    try:
        return storage.read(path, most_bytes)
    except CheckpointError as error:
        if error.condition != "FILE_GONE":
            raise
        return None


class _Check(Protocol):
    def take(self, piece: bytes) -> None:
        """Check the next piece of the file."""

    def end(self) -> None:
        """Check the end of the file.  Raises CORRUPT_FILE, as `take` may."""


class _Blocks:
    """Hadoop's checksums."""

    def __init__(self, sums: bytes, size_bytes: int) -> None:
        self._size = int.from_bytes(sums[4:8], "big", signed=True)
        if sums[:4] != _MAGIC or not 0 < self._size <= _MAX_BLOCK:
            raise corrupt("its .crc file isn't one", 0)
        self._sums = sums[8:]
        if len(self._sums) != 4 * (blocks := -(-size_bytes // self._size)):
            raise corrupt(f"its .crc file covers {len(self._sums) // 4} blocks, the file has {blocks}", size_bytes)
        self._left = b""
        self._block = 0

    def take(self, piece: bytes) -> None:
        data = self._left + piece
        whole = len(data) // self._size * self._size
        for begin in range(0, whole, self._size):
            self._check(data[begin : begin + self._size])
        self._left = data[whole:]

    def end(self) -> None:
        if self._left:
            self._check(self._left)
        if len(self._sums) != 4 * self._block:
            raise corrupt("the file has changed while it was read", self._block * self._size)

    def _check(self, block: bytes) -> None:
        expected = self._sums[4 * self._block : 4 * self._block + 4]
        if zlib.crc32(block) != int.from_bytes(expected, "big"):
            raise corrupt(f"a block of {self._size} bytes doesn't match its checksum", self._block * self._size)
        self._block += 1


class _Whole:
    """Spark's checksum."""

    def __init__(self, text: bytes, size_bytes: int) -> None:
        try:
            found = parse_json(text)
            algorithm, self._value = found["algorithm"], int(found["value"]) & 0xFFFFFFFF
            size = int(found.get("mainFileSize", size_bytes))
        except DAMAGE as broken:
            raise corrupt(f"its .crc file isn't readable: {broken!r:.100}", 0) from broken
        if algorithm != "CRC32C":
            raise CheckpointError(
                "UNKNOWN_FORMAT",
                f"Its .crc file holds a checksum of the kind {algorithm!r:.40}; CRC32C is known.",
                hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
            )
        if size != size_bytes:
            raise corrupt(f"its .crc file is of one with {size} bytes", size_bytes)
        self._found = 0

    def take(self, piece: bytes) -> None:
        self._found = crc32c(piece, self._found)

    def end(self) -> None:
        if self._found != self._value:
            raise corrupt("the file doesn't match its checksum", 0)

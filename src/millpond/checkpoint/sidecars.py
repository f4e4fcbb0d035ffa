"""The checksum files that lie beside a checkpoint's files.

    .<name>.crc   Hadoop's, on local disks and HDFS: "crc\\0", int32 bytes a block (512), CRC-32 of each block; big-endian
    <name>.crc    Spark's, of state files in checkpoint format 2: JSON with algorithm CRC32C, value (signed) and mainFileSize

Spark itself checks few of them, and either may be missing: only what is there and doesn't match is an error.
"""

from __future__ import annotations

import json
import zlib

from millpond.checkpoint.checksums import crc32c
from millpond.checkpoint.codecs import corrupt, naming
from millpond.errors import CheckpointError
from millpond.storage import Storage

_MAGIC = b"crc\0"
_MAX_BLOCK = 1 << 20


def verify_file(storage: Storage, path: str) -> bool:
    """Hold a file against the checksums beside it; whether there was one.

    Raises:  CORRUPT_FILE, with the position of the first block that doesn't match; FILE_GONE where the file itself isn't there.
    """
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/" if folder else ""
    hadoop, spark = _read(storage, f"{beside}.{name}.crc"), _read(storage, f"{path}.crc")
    if hadoop is None and spark is None:
        return False
    data = storage.read(path)
    try:
        if hadoop is not None:
            _check_blocks(data, hadoop)
        if spark is not None:
            _check_whole(data, spark)
    except CheckpointError as error:
        raise naming(error, path) from error
    return True


def _read(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.read(path)
    except CheckpointError as error:
        if error.condition != "FILE_GONE":
            raise
        return None


def _check_blocks(data: bytes, sums: bytes) -> None:
    size = int.from_bytes(sums[4:8], "big", signed=True)
    if sums[:4] != _MAGIC or not 0 < size <= _MAX_BLOCK:
        raise corrupt("its .crc file isn't one", 0)
    expected = -(-len(data) // size)
    if len(sums) - 8 != 4 * expected:
        raise corrupt(f"its .crc file covers {(len(sums) - 8) // 4} blocks, the file has {expected}", len(data))
    for i in range(expected):
        if zlib.crc32(data[i * size : (i + 1) * size]) != int.from_bytes(sums[8 + 4 * i : 12 + 4 * i], "big"):
            raise corrupt(f"a block of {size} bytes doesn't match its checksum", i * size)


def _check_whole(data: bytes, text: bytes) -> None:
    try:
        found = json.loads(text)
        algorithm, value, size = found["algorithm"], int(found["value"]), int(found.get("mainFileSize", len(data)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as broken:
        raise corrupt(f"its .crc file isn't readable: {broken!r:.100}", 0) from broken
    if algorithm != "CRC32C":
        raise CheckpointError(
            "UNKNOWN_FORMAT",
            f"Its .crc file holds a checksum of the kind {algorithm!r:.40}; CRC32C is known.",
            hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
        )
    if size != len(data) or crc32c(data) != value & 0xFFFFFFFF:
        raise corrupt("the file doesn't match its checksum", 0)

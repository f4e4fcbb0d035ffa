"""The checksums of rows, and inside RocksDB's files.

The checksum of an SST's block includes the byte after it, which names its compression; that of a
record of a MANIFEST includes its type.
"""

from __future__ import annotations

import google_crc32c
import xxhash

from millpond.errors import CheckpointError

# ChecksumType of RocksDB's footer.
CRC32C, XXH32, XXH64, XXH3 = 1, 2, 3, 4
_LAST_BYTE_PRIME = 0x6B9083D9
_WORD = 0xFFFFFFFF


def crc32c(data: bytes, before: int = 0) -> int:
    """CRC-32C (Castagnoli); `before` is the checksum of earlier bytes, to continue it."""
    return int(google_crc32c.extend(before, data))


def masked_crc32c(data: bytes) -> int:
    """CRC-32C in RocksDB's form: rotated and shifted, for bytes that contain checksums themselves."""
    crc = crc32c(data)
    return int(((crc >> 15 | crc << 17) + 0xA282EAD8) & _WORD)


def block_checksum(kind: int, block: bytes | memoryview) -> int:
    """The checksum of a block, whose last byte names its compression.

    Raises:  UNKNOWN_FORMAT for a kind that RocksDB 9 doesn't have.
    Source:  ComputeBuiltinChecksumWithLastByte, RocksDB 9.8.
    """
    if kind == XXH3:  # RocksDB's default since 7.0, which Spark doesn't change
        return (xxhash.xxh3_64_intdigest(block[:-1]) ^ block[-1] * _LAST_BYTE_PRIME) & _WORD
    if kind == CRC32C:
        return masked_crc32c(bytes(block))
    if kind == XXH32:
        return xxhash.xxh32_intdigest(block)
    if kind == XXH64:
        return xxhash.xxh64_intdigest(block) & _WORD
    raise CheckpointError(
        "UNKNOWN_FORMAT",
        f"An SST has checksums of kind {kind}; 1 to 4 are known.",
        hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
    )

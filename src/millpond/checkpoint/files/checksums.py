"""The checksums of rows, and inside RocksDB's files.

A block of an SST is covered together with the byte after it that names its compression; a record of a MANIFEST with its type.
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
    """CRC-32C (Castagnoli), of what came before as well."""
    return int(google_crc32c.extend(before, data))


def masked_crc32c(data: bytes) -> int:
    """CRC-32C as RocksDB stores it: turned and shifted, so that a checksum over bytes that hold checksums isn't weaker."""
    crc = crc32c(data)
    return int(((crc >> 15 | crc << 17) + 0xA282EAD8) & _WORD)


def block_checksum(kind: int, block: bytes | memoryview) -> int:
    """The checksum of a block, whose last byte names its compression.

    Raises:  UNKNOWN_FORMAT for a kind that RocksDB 9 doesn't have.
    Source:  ComputeBuiltinChecksumWithLastByte, RocksDB 9.8.
    """
    if kind == XXH3:  # what RocksDB writes since 7.0, and Spark leaves as it is
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

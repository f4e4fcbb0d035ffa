"""The compressed streams of state files, written: the reverse of `codecs`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import cramjam
import lz4.block
import xxhash
import zstandard

from millpond.checkpoint.files.codecs import LZ4_HEADER, LZ4_MAGIC, LZ4_PACKED, LZ4_RAW, LZ4_SEED, SNAPPY_MAGIC, unknown_codec

# As Spark's writers.
_BLOCK_BYTES = 32 << 10
# LZ4's token names the size that blocks have: 2 to the power of (10 + level).
_LZ4_LEVEL = 5
# Spark's default of spark.io.compression.zstd.level.
_ZSTD_LEVEL = 1
# LZF's lengths have 16 bits.
_LZF_BYTES = 0xFFFF


def pack(codec: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The stream of a file with this content.

    codec:   lz4, zstd, snappy or lzf, as offsets/N names it
    Raises:  UNKNOWN_FORMAT for another codec.
    Source:  lz4-java LZ4BlockOutputStream, snappy-java SnappyOutputStream, compress-lzf; Spark 4.3
             reads it in tests/spark/savepoint.
    """
    match codec:
        case "lz4":
            return _lz4(_blocks(pieces, _BLOCK_BYTES))
        case "zstd":
            return _zstd(pieces)
        case "snappy":
            return _snappy(_blocks(pieces, _BLOCK_BYTES))
        case "lzf":
            return _lzf(_blocks(pieces, _LZF_BYTES))
    raise unknown_codec(codec)


def _blocks(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in blocks of this size; only the last is smaller."""
    left = b""
    for piece in pieces:
        left += piece
        whole = len(left) - len(left) % size
        for begin in range(0, whole, size):
            yield left[begin : begin + size]
        left = left[whole:]
    if left:
        yield left


def _lz4(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        packed, token = lz4.block.compress(block, store_size=False), LZ4_PACKED
        if len(packed) >= len(block):
            packed, token = block, LZ4_RAW
        checksum = xxhash.xxh32_intdigest(block, LZ4_SEED) & 0x0FFFFFFF
        yield LZ4_HEADER.pack(LZ4_MAGIC, token | _LZ4_LEVEL, len(packed), len(block), checksum) + packed
    yield LZ4_HEADER.pack(LZ4_MAGIC, LZ4_RAW | _LZ4_LEVEL, 0, 0, 0)


def _zstd(pieces: Iterable[bytes]) -> Iterator[bytes]:
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()


def _snappy(blocks: Iterable[bytes]) -> Iterator[bytes]:
    yield SNAPPY_MAGIC + struct.pack(">ii", 1, 1)  # the version, and the oldest that can read it
    for block in blocks:
        packed = bytes(cramjam.snappy.compress_raw(block))
        yield struct.pack(">i", len(packed)) + packed


def _lzf(blocks: Iterable[bytes]) -> Iterator[bytes]:
    # Chunks that aren't compressed are part of the format; no library here compresses LZF.
    for block in blocks:
        yield b"ZV\x00" + struct.pack(">H", len(block)) + block

"""The blocks of an SST: unpacks them and decodes their entries.

    block   = entries, uint32 offset of every restart point, uint32 number of them
    entry   = varint bytes shared with the key before, varint key bytes that follow, varint value bytes, key bytes, value
    key     = user key, uint64 (sequence number << 8 | kind); the newest version of a user key comes first

At a restart point, a key shares no bytes.  The compiled library decodes the entries of many blocks
at once; `iter_block` describes how.
"""

from __future__ import annotations

import bz2
import sys
import zlib
from array import array
from collections.abc import Iterator
from operator import ge
from typing import Any, NamedTuple

import cramjam
import lz4.block
import zstandard

from millpond.checkpoint.files.checksums import block_checksum
from millpond.checkpoint.files.codecs import corrupt
from millpond.checkpoint.rocksdb.manifest import varint
from millpond.checkpoint.rows.columns import Array, Data, Spans, span
from millpond.errors import CheckpointError
from millpond.native import calls
from millpond.native.library import library
from millpond.native.memory import Memory
from millpond.settings import CheckpointSettings

# Kinds of entries in Spark's state stores.
DELETION, VALUE, MERGE, SINGLE_DELETION = 0, 1, 2, 7
_KINDS = frozenset({DELETION, VALUE, MERGE, SINGLE_DELETION})

# The bytes after each block (compression, checksum), and after each user key.
TRAILER, KEY_TAIL = 5, 8
NONE, _SNAPPY, _ZLIB, _BZIP2, LZ4, _LZ4HC, _ZSTD = 0, 1, 2, 3, 4, 5, 7
# Zlib's blocks are raw: RocksDB writes no header of zlib.
_RAW_DEFLATE = -15
# LZ4's largest ratio.
_LZ4_RATIO, _LZ4_FLOOR = 255, 64
_MAX_BLOCK = (2 << 30) - 1
_UNPACKING = (
    lz4.block.LZ4BlockError,
    zstandard.ZstdError,
    cramjam.DecompressionError,
    zlib.error,
    OSError,  # of bz2
    ValueError,
    IndexError,
    MemoryError,
)
# An index with fewer entries is read sooner one by one.
_FEW_ENTRIES = 100
# Behind an index, so that a number that begins in it can be read whole.
_PADDING = 64
_LIMITS = CheckpointSettings()
_HINT = "Read this checkpoint with a Millpond version that knows the Spark version that wrote it."


class Entries(NamedTuple):
    """Entries in key order, newest version of a key first, column by column."""

    keys: list[bytes]
    tags: array[int]
    values: list[bytes]


class Window(NamedTuple):
    """The same entries as arrays: places of user keys and values, and uint64 tags."""

    keys: Spans
    tags: Array
    values: Spans


def unpack(stored: bytes | memoryview, checksum: int, offset: int) -> bytes:
    """A block's content, from its bytes followed by compression and checksum.

    checksum:  the kind that the footer names
    offset:    the block's offset in its file, for errors (here and below)
    """
    covered, packed = stored[:-4], stored[:-TRAILER]
    if block_checksum(checksum, covered) != int.from_bytes(stored[-4:], "little"):
        raise corrupt("a block of an SST doesn't match its checksum", offset)
    kind = covered[-1]
    if kind == NONE:
        return bytes(packed)
    try:
        if kind == _SNAPPY:
            if cramjam.snappy.decompress_raw_len(packed) > _LIMITS.max_unpacked_bytes(len(packed)):
                raise corrupt("a block of an SST unpacks to an absurd size", offset)
            return bytes(cramjam.snappy.decompress_raw(packed))
        size, begin = varint(packed, 0)
        packed = packed[begin:]
        if kind in (LZ4, _LZ4HC):
            if size > min(_LZ4_RATIO * len(packed) + _LZ4_FLOOR, _MAX_BLOCK):
                raise corrupt("a block of an SST unpacks to an absurd size", offset)
            block: bytes = lz4.block.decompress(packed, uncompressed_size=size)
        elif kind in (_ZSTD, _ZLIB, _BZIP2):
            if size > _LIMITS.max_unpacked_bytes(len(packed)):
                raise corrupt("a block of an SST unpacks to an absurd size", offset)
            block = _unpack_as(kind, bytes(packed), size)
        else:
            raise unknown(f"a block has compression {kind}; known are none, snappy, zlib, bzip2, LZ4 and zstd")
    except _UNPACKING as broken:
        raise corrupt(f"a block of an SST doesn't unpack: {broken}", offset) from broken
    if len(block) != size:
        raise corrupt(f"a block of an SST gave {len(block)} bytes instead of {size}", offset)
    return block


def _unpack_as(kind: int, packed: bytes, size: int) -> bytes:
    """A block that claims to unpack to so many bytes; no more than one more is unpacked."""
    if kind == _ZSTD:
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    if kind == _ZLIB:
        return zlib.decompressobj(_RAW_DEFLATE).decompress(packed, size + 1)
    return bz2.BZ2Decompressor().decompress(packed, size + 1)


def restart_points(block: bytes, offset: int) -> tuple[array[int], int]:
    """The restart points of a block, and where its entries end."""
    if len(block) < 4:
        raise corrupt("a block of an SST is too short", offset)
    count = int.from_bytes(block[-4:], "little")
    if count >> 31:
        raise unknown("a block has a hash index")
    end = len(block) - 4 - 4 * count
    if end < 0:
        raise corrupt(f"a block of an SST claims {count} restart points", offset)
    points = array("I", block[end:-4])
    if sys.byteorder != "little":
        points.byteswap()
    if not points or points[0] or points[-1] > end or any(map(ge, points, points[1:])):
        raise corrupt("the restart points of a block of an SST aren't in order", offset)
    return points, end


def iter_block(block: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each entry of one block, one after the other."""
    _, end = restart_points(block, offset)
    position, key = 0, b""
    try:
        while position < end:
            shared, position = varint(block, position)
            size, position = varint(block, position)
            value_size, position = varint(block, position)
            value = position + size
            if shared > len(key) or value + value_size > end:
                raise corrupt(f"an entry of an SST's block claims {size} and {value_size} bytes", offset)
            key = key[:shared] + block[position:value]
            position = value + value_size
            yield key, block[value:position]
    except IndexError:
        raise corrupt("a block of an SST ends inside an entry", offset) from None


def decode(blocks: list[bytes], offset: int) -> Entries:
    """The entries of consecutive data blocks; `offset` is that of the first one, for errors."""
    if library(sum(map(len, blocks))) is not None:
        return entries_of(locate(blocks, offset))
    return _decode_plainly(blocks, offset)


def _decode_plainly(blocks: list[bytes], offset: int) -> Entries:
    """Entry by entry."""
    pairs = [pair for block in blocks for pair in iter_block(block, offset)]
    tags = array("Q", [tag_of(key, offset) for key, _ in pairs])
    return Entries([key[:-KEY_TAIL] for key, _ in pairs], tags, [value for _, value in pairs])


def entries_of(window: Window) -> Entries:
    """The same entries as bytes."""
    keys, tags, values = window
    return Entries(keys.tolist(), array("Q", tags.astype("=u8").tobytes()), values.tolist())


def locate(blocks: list[bytes], offset: int) -> Window:
    """The same entries as arrays."""
    import numpy as np

    data = b"".join(blocks)
    found = calls.find_entries(data, np.array([len(block) for block in blocks], np.int64))
    if found is None:
        entries = _decode_plainly(blocks, offset)
        return Window(span(entries.keys), np.array(entries.tags, np.uint64), span(entries.values))
    keys, tags, begin, size = found
    _check_kinds(tags)
    return Window(Spans(*keys), tags, Spans(data, begin, size))


def locate_packed(
    piece: Data, places: Array, first: int, checksum: int, expected: tuple[int, int] = (0, 0), memory: Memory | None = None
) -> Window | None:
    """The entries of consecutive packed blocks, by the compiled library; None if it rejects them.

    piece:     the bytes of the file from the first block on
    places:    int64 rows of (offset in the file, size) of each block
    first:     the piece's offset in the file
    expected:  how many entries there may be, and bytes of keys; a guess
    memory:    where to write them; None for bytes of their own
    """
    import numpy as np

    begin, size = places[:, 0] - first, np.ascontiguousarray(places[:, 1])
    view = memoryview(piece)
    for block, end in zip(begin.tolist(), (begin + size + 1).tolist(), strict=True):
        if block_checksum(checksum, view[block:end]) != int.from_bytes(view[end : end + 4], "little"):
            return None
    unpacked = calls.unpack_blocks(piece, begin, size, memory)
    found = None if unpacked is None else calls.find_entries(*unpacked, expected, memory)
    if unpacked is None or found is None:
        return None
    keys, tags, begins, sizes = found
    _check_kinds(tags)
    return Window(Spans(*keys), tags, Spans(unpacked[0], begins, sizes))


def _check_kinds(tags: Array) -> None:
    """Raise UNKNOWN_FORMAT if there are entries of other kinds."""
    import numpy as np

    there: Array = np.zeros(256, bool)
    there[tags.astype(np.uint8)] = True
    kinds = set(np.flatnonzero(there).tolist())
    if not kinds <= _KINDS:
        raise unknown(f"it holds entries of kind {min(kinds - _KINDS)}")


def _numbers(view: Any, at: Any, offset: int) -> tuple[Any, Any]:
    """The varints that begin at these positions, and where they end; five bytes each must be there."""
    import numpy as np

    found = view[at].astype(np.int64)
    at = at + 1
    more = np.flatnonzero(found & 0x80)
    found[more] &= 0x7F
    for shift in (7, 14, 21, 28):
        if not len(more):
            break
        byte = view[at[more]].astype(np.int64)
        found[more] |= (byte & 0x7F) << shift
        at[more] += 1
        more = more[byte >= 0x80]
    if len(more):
        raise corrupt("a length in a block of an SST has more than 35 bits", offset)
    return found, at


def tag_of(internal: bytes, offset: int) -> int:
    if len(internal) < KEY_TAIL:
        raise corrupt("a key of an SST is too short", offset)
    tag = int.from_bytes(internal[-KEY_TAIL:], "little")
    if tag & 0xFF not in _KINDS:
        raise unknown(f"it holds entries of kind {tag & 0xFF}")
    return tag


def handles_at_once(index: bytes, points: array[int], end: int, *, deltas: bool, offset: int) -> Array | None:
    """The handles of an index as int64 rows of offset and size; None for a small index.

    Every entry must be a restart point, as RocksDB writes it; None for other indexes.

    deltas:  whether values are without their length
    """
    if len(points) < _FEW_ENTRIES:
        return None
    import numpy as np

    view = np.frombuffer(index + bytes(_PADDING), np.uint8)
    begin = np.array(points, np.int64)
    ends: Any = np.append(begin[1:], end)
    shared, at = _numbers(view, begin, offset)
    key_size, at = _numbers(view, at, offset)
    if not deltas:
        _, at = _numbers(view, at, offset)
    if shared.any() or (at + key_size >= ends).any():
        return None
    starts, at = _numbers(view, at + key_size, offset)
    sizes, at = _numbers(view, at, offset)
    if (at != ends).any():
        return None
    if (starts[1:] < (starts + sizes + TRAILER)[:-1]).any():
        raise corrupt("an SST's index names blocks out of order", offset)
    return np.stack([starts, sizes], axis=1)


def unknown(what: str) -> CheckpointError:
    return CheckpointError("UNKNOWN_FORMAT", f"The SST can't be read: {what}.", hint=_HINT)

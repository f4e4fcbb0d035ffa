"""The blocks of an SST: unpacks them and decodes their entries.

    block   = entries, uint32 offset of every restart point, uint32 number of them
    entry   = varint bytes shared with the key before, varint key bytes that follow, varint value bytes, key bytes, value
    key     = user key, uint64 (sequence number << 8 | kind); the newest version of a user key comes first

At a restart point, a key shares no bytes.  So numpy can walk the entries after all restart points
of a window of blocks at once, in sixteen steps for any number of blocks.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from operator import ge
from typing import Any, NamedTuple

import cramjam
import lz4.block
import zstandard

from millpond.checkpoint.files.checksums import XXH3, block_checksum
from millpond.checkpoint.files.codecs import corrupt
from millpond.checkpoint.rocksdb.manifest import varint
from millpond.checkpoint.rows.columns import Array, Data, Spans, span
from millpond.errors import CheckpointError
from millpond.native import calls
from millpond.native.memory import Memory
from millpond.settings import CheckpointSettings

# Kinds of entries in Spark's state stores.
DELETION, VALUE, MERGE, SINGLE_DELETION = 0, 1, 2, 7
_KINDS = frozenset({DELETION, VALUE, MERGE, SINGLE_DELETION})

# The bytes after each block (compression, checksum), and after each user key.
TRAILER, KEY_TAIL = 5, 8
_NONE, _SNAPPY, _LZ4, _LZ4HC, _ZSTD = 0, 1, 4, 5, 7
# LZ4's largest ratio.
_LZ4_RATIO, _LZ4_FLOOR = 255, 64
_MAX_BLOCK = (2 << 30) - 1
_UNPACKING = (lz4.block.LZ4BlockError, zstandard.ZstdError, cramjam.DecompressionError, ValueError, IndexError, MemoryError)
# Below this the plain loop is faster than numpy.
_FEW_BYTES = 16 << 10
_FEW_ENTRIES = 100
# Padding before and after the blocks of a window; longer than most keys.
_PADDING = 512
# RocksDB's default: a restart point every 16 entries.
_MOST_STEPS = 256
# The limit for keys in a matrix if they share nearly all bytes.
_WIDE_BYTES = 32 << 20
# numpy cuts pieces with at most so many sizes, all below so many bytes.
_FEW_WIDTHS, _MANY_BYTES = 32, 4096
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
    if kind == _NONE:
        return bytes(packed)
    try:
        if kind == _SNAPPY:
            if cramjam.snappy.decompress_raw_len(packed) > _LIMITS.max_unpacked_bytes(len(packed)):
                raise corrupt("a block of an SST unpacks to an absurd size", offset)
            return bytes(cramjam.snappy.decompress_raw(packed))
        size, begin = varint(packed, 0)
        packed = packed[begin:]
        if kind in (_LZ4, _LZ4HC):
            if size > min(_LZ4_RATIO * len(packed) + _LZ4_FLOOR, _MAX_BLOCK):
                raise corrupt("a block of an SST unpacks to an absurd size", offset)
            block: bytes = lz4.block.decompress(packed, uncompressed_size=size)
        elif kind == _ZSTD:
            if size > _LIMITS.max_unpacked_bytes(len(packed)):
                raise corrupt("a block of an SST unpacks to an absurd size", offset)
            block = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
        else:
            raise unknown(f"a block has compression {kind}; known are none, snappy, LZ4 and zstd")
    except _UNPACKING as broken:
        raise corrupt(f"a block of an SST doesn't unpack: {broken}", offset) from broken
    if len(block) != size:
        raise corrupt(f"a block of an SST gave {len(block)} bytes instead of {size}", offset)
    return block


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
    if sum(map(len, blocks)) < _FEW_BYTES:
        return _decode_plainly(blocks, offset)
    return entries_of(locate(blocks, offset))


def entries_of(window: Window) -> Entries:
    """The same entries as bytes."""
    keys, tags, values = window
    if not len(tags):
        return Entries([], array("Q"), [])
    key_list, value_list = (calls.to_list(*found[:3]) or _cut(*found[:3]) for found in (keys, values))
    return Entries(key_list, array("Q", tags.astype("=u8").tobytes()), value_list)


def _decode_plainly(blocks: list[bytes], offset: int) -> Entries:
    """Entry by entry."""
    pairs = [pair for block in blocks for pair in iter_block(block, offset)]
    tags = array("Q", [tag_of(key, offset) for key, _ in pairs])
    return Entries([key[:-KEY_TAIL] for key, _ in pairs], tags, [value for _, value in pairs])


def _locate_plainly(blocks: list[bytes], offset: int) -> Window:
    """The same as arrays."""
    import numpy as np

    keys, tags, values = _decode_plainly(blocks, offset)
    return Window(span(keys), np.array(tags, np.uint64), span(values))


def locate(blocks: list[bytes], offset: int) -> Window:
    """The same as arrays, with a lane for each restart point: a step reads the next entry of all lanes."""
    import numpy as np  # 0.1 s to import, and small states never need it

    # Padding, so that a number or a key that begins inside a block can be read whole.
    data = b"".join([bytes(_PADDING), *blocks, bytes(_PADDING)])
    view = np.frombuffer(data, np.uint8)
    position, lane_end = _lanes(data, [len(block) for block in blocks], offset)
    steps: list[_Step] = []
    before: Any = np.zeros(len(position), np.int64)  # length of the previous key in each lane
    while (alive := position < lane_end).any():
        if len(steps) == _MOST_STEPS:
            return _locate_plainly(blocks, offset)
        position, lane_end, before = position[alive], lane_end[alive], before[alive]
        shared, at = _numbers(view, position, offset)
        own, at = _numbers(view, at, offset)
        value_size, key_begin = _numbers(view, at, offset)
        key_end = key_begin + own
        position = key_end + value_size
        if (shared > before).any() or (position > lane_end).any():
            raise corrupt("an entry of an SST's block claims more bytes than there are", offset)
        before = shared + own
        if (before < KEY_TAIL).any():
            raise corrupt("a key of an SST is too short", offset)
        steps.append(_Step(alive, shared, key_begin, key_end, position))
    if not steps:
        return _locate_plainly(blocks, offset)
    key_end, value_end = np.concatenate([s.key_end for s in steps]), np.concatenate([s.value_end for s in steps])
    order = np.argsort(key_end, kind="stable")  # step by step -> lane by lane, which is the order of keys
    keys, tags = _join_keys(data, steps, order)
    _check_kinds(tags)
    return Window(keys, tags, Spans(data, key_end[order], (value_end - key_end)[order]))


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
    right = calls.check_blocks(piece, begin, size) if checksum == XXH3 else None
    view = memoryview(piece)
    for at in range(len(begin)) if right is None else np.flatnonzero(~right).tolist():
        block, end = int(begin[at]), int(begin[at] + size[at]) + 1
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


class _Step(NamedTuple):
    """One entry of each unfinished lane, as numpy arrays; `lanes` are their indexes in the step before."""

    lanes: Any
    shared: Any
    key_begin: Any
    key_end: Any
    value_end: Any


def _lanes(data: bytes, sizes: list[int], offset: int) -> tuple[Any, Any]:
    """Begin and end of the entries after each restart point, in a padded window of blocks."""
    import numpy as np

    if min(sizes) < 4:
        raise corrupt("a block of an SST is too short", offset)
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    ends: Any = _PADDING + np.cumsum(np.array(sizes, np.int64))
    begins = ends - sizes
    counts = words[ends - 4].astype(np.int64)
    if (counts >> 31).any():
        raise unknown("a block has a hash index")
    data_ends = ends - 4 - 4 * counts
    if (counts < 1).any() or (data_ends < begins).any():
        raise corrupt("a block of an SST claims too many restart points", offset)
    first_lanes = np.cumsum(counts) - counts
    block_of: Any = np.repeat(np.arange(len(sizes)), counts)
    nth = np.arange(len(block_of)) - first_lanes[block_of]
    lane_begin = begins[block_of] + words[data_ends[block_of] + 4 * nth]
    lane_end: Any = np.append(lane_begin[1:], 0)
    lane_end[np.append(first_lanes[1:] - 1, len(block_of) - 1)] = data_ends
    if (lane_begin[first_lanes] != begins).any() or (lane_begin > lane_end).any():
        raise corrupt("the restart points of a block of an SST aren't in order", offset)
    return lane_begin, lane_end


def _join_keys(data: bytes, steps: list[_Step], order: Any) -> tuple[Spans, Any]:
    """User keys and tags of all entries, joined from the shared bytes of the previous key and their own."""
    import numpy as np

    shared, begin = np.concatenate([s.shared for s in steps]), np.concatenate([s.key_begin for s in steps])
    end = np.concatenate([s.key_end for s in steps])
    sizes: Any = shared + end - begin
    widest = int(sizes.max())
    if widest * len(order) > _WIDE_BYTES:
        keys, key = [], b""
        for n, a, b in zip(shared[order].tolist(), begin[order].tolist(), end[order].tolist(), strict=True):
            key = key[:n] + data[a:b]
            keys.append(key)
        tags = np.array([int.from_bytes(key[-KEY_TAIL:], "little") for key in keys], np.uint64)
        return span(key[:-KEY_TAIL] for key in keys), tags
    # All keys of a step are in one matrix. If a key is read from `shared` bytes before its own
    # bytes on, its own bytes are in their columns; the columns before come from the lane's key in
    # the previous step.
    more = max(0, widest - _PADDING)
    padded = b"".join([bytes(more), data, bytes(more)]) if more else data
    any_key = np.ndarray((len(padded) - widest + 1,), f"V{widest}", padded, strides=(1,))
    columns = np.arange(widest)
    rows: list[Any] = []
    for step in steps:
        row = any_key[more + step.key_begin - step.shared].view(np.uint8).reshape(-1, widest)
        if rows:
            np.copyto(row, rows[-1][step.lanes], where=columns < step.shared[:, None])
        rows.append(row)
    joined = np.concatenate(rows).tobytes()
    begin, sizes = order * widest, sizes[order]
    tags = np.ndarray((len(joined) - 7,), "<u8", joined, strides=(1,))[begin + sizes - KEY_TAIL]
    return Spans(joined, begin, sizes - KEY_TAIL), tags


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


def _cut(data: Data, begin: Any, size: Any) -> list[bytes]:
    """The pieces of these sizes at these places, many of one size at once by numpy."""
    import numpy as np

    counts: Any = np.bincount(size) if size.max() <= _MANY_BYTES else np.zeros(1, np.int64)
    widths = np.flatnonzero(counts).tolist()
    if counts[0] or not 0 < len(widths) <= _FEW_WIDTHS:
        return [bytes(data[a:b]) for a, b in zip(begin.tolist(), (begin + size).tolist(), strict=True)]
    if len(widths) == 1:
        return list(np.ndarray((len(data) - widths[0] + 1,), f"V{widths[0]}", data, strides=(1,))[begin].tolist())
    out: Any = np.empty(len(begin), object)
    by_size = np.argsort(size.astype(np.uint16), kind="stable")
    end = 0
    for width in widths:
        chosen = by_size[end : end + int(counts[width])]
        out[chosen] = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))[begin[chosen]].tolist()
        end += len(chosen)
    return list(out.tolist())


def tag_of(internal: bytes, offset: int) -> int:
    if len(internal) < KEY_TAIL:
        raise corrupt("a key of an SST is too short", offset)
    tag = int.from_bytes(internal[-KEY_TAIL:], "little")
    if tag & 0xFF not in _KINDS:
        raise unknown(f"it holds entries of kind {tag & 0xFF}")
    return tag


def handles_at_once(index: bytes, points: array[int], end: int, *, deltas: bool, offset: int) -> Array | None:
    """The handles in an index whose entries are all restart points, as RocksDB writes it: int64 rows of offset and size; None if
    it is another one, or is small.

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

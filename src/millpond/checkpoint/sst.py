"""One SST file of RocksDB: its entries in key order, or those of one key, without RocksDB.

    file    = data blocks, other blocks, footer (53 bytes: checksum kind, handles of metaindex and index, version, magic number)
    handle  = varint offset, varint size; after the block: one byte of compression, four of checksum
    block   = entries, uint32 offset of every restart point, uint32 number of them
    entry   = varint bytes shared with the key before, varint key bytes that follow, varint value bytes, key bytes, value
    key     = user key, uint64 (sequence number << 8 | kind); the newest version of a user key comes first

Entries of the index are handles by the last key of their block, without the length of the value where that is delta-encoded.  A key
shares nothing at a restart point, so that numpy can walk the entries after all restart points of a window of blocks at once:
sixteen steps, whatever the number of blocks.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import cramjam
import lz4.block
import zstandard

from millpond.checkpoint.checksums import block_checksum
from millpond.checkpoint.codecs import corrupt, incomplete, naming
from millpond.checkpoint.columns import Array, Spans, span
from millpond.checkpoint.manifest import varint
from millpond.errors import CheckpointError
from millpond.settings import CheckpointSettings
from millpond.storage import Storage

# Kinds of entries that Spark's state stores leave behind.
DELETION, VALUE, MERGE, SINGLE_DELETION = 0, 1, 2, 7
_KINDS = frozenset({DELETION, VALUE, MERGE, SINGLE_DELETION})

_FOOTER = 53
_MAGIC = 0x88E241B785F4CFF7
_VERSIONS = range(2, 6)
_TRAILER = 5
_KEY_TAIL = 8
_BINARY_SEARCH = b"\x00\x00\x00\x00"
_NONE, _SNAPPY, _LZ4, _LZ4HC, _ZSTD = 0, 1, 4, 5, 7
# LZ4 can't do better.
_LZ4_RATIO, _LZ4_FLOOR = 255, 64
_MAX_BLOCK = (2 << 30) - 1
# How much is unpacked at a time: enough for numpy to pay off, little beside what a state holds.
_WINDOW_BYTES = 2 << 20
# Below this the plain loop is faster than numpy.
_FEW_BYTES = 16 << 10
_READ_BYTES = 1 << 20
# RocksDB restarts after 16 entries, if nobody tells it otherwise.
_MOST_STEPS = 256
# What keys that share nearly everything may take in a matrix.
_WIDE_BYTES = 32 << 20
# Pieces of so many sizes, all below so many bytes, are cut by numpy.
_FEW_WIDTHS, _MANY_BYTES = 16, 4096
_LIMITS = CheckpointSettings()
_HINT = "Read this checkpoint with a Millpond version that knows the Spark version that wrote it."

Decoded = TypeVar("Decoded")
Entry = tuple[bytes, int, bytes]
"""(user key, sequence number << 8 | kind, value)"""


class Entries(NamedTuple):
    """Entries in key order, newest version of a key first, column by column."""

    keys: list[bytes]
    tags: array[int]
    values: list[bytes]


class Window(NamedTuple):
    """The same entries as arrays: where their user keys and values lie, and uint64 tags."""

    keys: Spans
    tags: Array
    values: Spans


class _Handle(NamedTuple):
    offset: int
    size: int


class _Bytes(Protocol):
    """A file of which parts can be read."""

    size: int

    def read(self, offset: int, size: int) -> bytes: ...

    def close(self) -> None: ...


class SstFile:
    """An SST that is open for reading.  On a local disk only what is asked for is read.

    Raises (all calls):  FILE_GONE; INCOMPLETE_FILE, CORRUPT_FILE with the byte position in the file; UNKNOWN_FORMAT where it has
             something that Spark 4.3 doesn't write: range deletions, blobs, other indexes.  All name the file.
    Source:  BlockBasedTable, BlockBuilder, Footer, RocksDB 9.8; property tests against RocksDB itself.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._path = path
        self._bytes = _open(storage, path)
        try:
            self._open()
        except CheckpointError as error:
            self.close()
            raise naming(error, path) from error

    def __enter__(self) -> SstFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        self._bytes.close()

    @property
    def size_bytes(self) -> int:
        return self._bytes.size

    def iter_entries(self) -> Iterator[Entries]:
        """All entries, a window of blocks at a time, in key order."""
        try:
            yield from self._iter_windows(_decode, lambda entries: len(entries.keys))
        except CheckpointError as error:
            raise naming(error, self._path) from error

    def iter_windows(self) -> Iterator[Window]:
        """As `iter_entries`, without taking the entries out of the blocks they lie in."""
        try:
            yield from self._iter_windows(_locate, lambda window: len(window.tags))
        except CheckpointError as error:
            raise naming(error, self._path) from error

    def find(self, key: bytes) -> list[Entry]:
        """The versions of one user key, newest first, from the block or blocks that the index names."""
        found: list[Entry] = []
        try:
            for block in self._blocks_of(key):
                for internal, value in _iter_block(self._read_block(block), block.offset):
                    if internal[:-_KEY_TAIL] == key:
                        found.append((key, _tag(internal, block.offset), value))
        except CheckpointError as error:
            raise naming(error, self._path) from error
        return found

    # ------------------------------------------------------------ the file's own structure

    def _open(self) -> None:
        size = self._bytes.size
        if size < _FOOTER:
            raise incomplete("the footer of an SST", size)
        at = size - _FOOTER
        footer = self._bytes.read(at, _FOOTER)
        if int.from_bytes(footer[-8:], "little") != _MAGIC:
            raise incomplete("an SST: the magic number of its footer isn't there", size)
        version = int.from_bytes(footer[-12:-8], "little")
        if version not in _VERSIONS:
            raise _unknown(f"it has format version {version}")
        self._checksum = footer[0]
        metaindex, position = _handle(footer, 1, at)
        index, _ = _handle(footer, position, at)
        named = dict(_iter_block(self._read_block(metaindex), metaindex.offset))
        for name, what in (
            (b"rocksdb.range_del", "range deletions"),
            (b"rocksdb.range_del2", "range deletions"),
            (b"rocksdb.compression_dict", "a compression dictionary"),
        ):
            if name in named:
                raise _unknown(f"it holds {what}")
        if b"rocksdb.properties" not in named:
            raise corrupt("an SST has no properties", metaindex.offset)
        handle, _ = _handle(named[b"rocksdb.properties"], 0, metaindex.offset)
        properties = dict(_iter_block(self._read_block(handle), handle.offset))
        for name in properties:
            if name.startswith(b"rocksdb.external_sst_file."):
                raise _unknown("it was made outside of a database, and ingested")
        if properties.get(b"rocksdb.block.based.table.index.type", _BINARY_SEARCH) != _BINARY_SEARCH:
            raise _unknown("its index isn't one block for binary search")
        self._user_keys = _number(properties, b"rocksdb.index.key.is.user.key") != 0
        self._deltas = _number(properties, b"rocksdb.index.value.is.delta.encoded") != 0
        self._count = _number(properties, b"rocksdb.num.entries")
        if _number(properties, b"rocksdb.num.range-deletions"):
            raise _unknown("it holds range deletions")
        self._index_offset = index.offset
        self._index = self._read_block(index)
        self._index_restarts, self._index_end = _restarts(self._index, index.offset)

    def _read_block(self, handle: _Handle) -> bytes:
        end = handle.offset + handle.size + _TRAILER
        if end > self._bytes.size:
            raise corrupt(f"a block claims {handle.size} bytes", handle.offset)
        return self._unpack(self._bytes.read(handle.offset, handle.size + _TRAILER), handle.offset)

    def _unpack(self, stored: bytes, offset: int) -> bytes:
        """A block's content, from its bytes with compression and checksum behind them."""
        covered = stored[:-4]
        if block_checksum(self._checksum, covered) != int.from_bytes(stored[-4:], "little"):
            raise corrupt("a block of an SST doesn't match its checksum", offset)
        kind = covered[-1]
        if kind == _NONE:
            return covered[:-1]
        try:
            if kind == _SNAPPY:
                if cramjam.snappy.decompress_raw_len(covered[:-1]) > _LIMITS.max_unpacked_bytes(len(covered)):
                    raise corrupt("a block of an SST unpacks to an absurd size", offset)
                return bytes(cramjam.snappy.decompress_raw(covered[:-1]))
            size, begin = varint(covered, 0)
            packed = memoryview(covered)[begin:-1]
            if kind in (_LZ4, _LZ4HC):
                if size > min(_LZ4_RATIO * len(packed) + _LZ4_FLOOR, _MAX_BLOCK):
                    raise corrupt("a block of an SST unpacks to an absurd size", offset)
                block: bytes = lz4.block.decompress(packed, uncompressed_size=size)
            elif kind == _ZSTD:
                if size > _LIMITS.max_unpacked_bytes(len(packed)):
                    raise corrupt("a block of an SST unpacks to an absurd size", offset)
                block = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
            else:
                raise _unknown(f"a block has compression {kind}; known are none, snappy, LZ4 and zstd")
        except (
            lz4.block.LZ4BlockError,
            zstandard.ZstdError,
            cramjam.DecompressionError,
            ValueError,
            IndexError,
            MemoryError,
        ) as broken:
            raise corrupt(f"a block of an SST doesn't unpack: {broken}", offset) from broken
        if len(block) != size:
            raise corrupt(f"a block of an SST gave {len(block)} bytes instead of {size}", offset)
        return block

    # ------------------------------------------------------------ the index

    def _iter_handles(self, restart: int = 0) -> Iterator[tuple[bytes, _Handle]]:
        """(last user key or a little above, handle) of every data block, from a restart point of the index on."""
        index, at = self._index, self._index_offset
        position, key, before = self._index_restarts[restart], b"", None
        try:
            while position < self._index_end:
                shared, position = varint(index, position)
                size, position = varint(index, position)
                if not self._deltas:
                    _, position = varint(index, position)
                if shared > len(key) or position + size > self._index_end:
                    raise corrupt(f"a key of an SST's index claims {size} bytes", at)
                key = key[:shared] + index[position : position + size]
                position += size
                if self._deltas and shared and before is not None:
                    delta, position = varint(index, position)
                    handle = _Handle(before.offset + before.size + _TRAILER, before.size + (delta >> 1 ^ -(delta & 1)))
                else:
                    offset, position = varint(index, position)
                    size, position = varint(index, position)
                    handle = _Handle(offset, size)
                if handle.size < 0 or (before is not None and handle.offset < before.offset + before.size + _TRAILER):
                    raise corrupt("an SST's index names blocks out of order", at)
                if not self._user_keys and len(key) < _KEY_TAIL:
                    raise corrupt("a key of an SST's index is too short", at)
                before = handle
                yield key if self._user_keys else key[:-_KEY_TAIL], handle
        except IndexError:
            raise corrupt("an SST's index ends inside an entry", at) from None
        if position != self._index_end:
            raise corrupt("an SST's index ends inside an entry", at)

    def _blocks_of(self, key: bytes) -> Iterator[_Handle]:
        """The blocks that may hold a user key."""
        low, high = 0, len(self._index_restarts)
        while low + 1 < high:  # the last restart point whose key is below: the blocks before it hold smaller keys only
            middle = (low + high) // 2
            if next(self._iter_handles(middle), (b"",))[0] < key:
                low = middle
            else:
                high = middle
        for last, handle in self._iter_handles(low):
            if last >= key:
                yield handle
            if last > key:
                return

    # ------------------------------------------------------------ all entries

    def _iter_windows(self, decode: Callable[[list[bytes], int], Decoded], length: Callable[[Decoded], int]) -> Iterator[Decoded]:
        window: list[bytes] = []
        size = count = 0
        first = 0
        for offset, block in self._iter_blocks():
            first = first if window else offset
            window.append(block)
            size += len(block)
            if size >= _WINDOW_BYTES:
                entries = decode(window, first)
                count += length(entries)
                yield entries
                window, size = [], 0
        if window:
            entries = decode(window, first)
            count += length(entries)
            yield entries
        if count != self._count:
            raise corrupt(f"an SST has {count} entries where its properties claim {self._count}", 0)

    def _iter_blocks(self) -> Iterator[tuple[int, bytes]]:
        """The unpacked data blocks with their offsets; the file is read in larger pieces."""
        begin, held = 0, b""
        for _, (offset, size) in self._iter_handles():
            end = offset + size + _TRAILER
            if end > self._bytes.size:
                raise corrupt(f"a block claims {size} bytes", offset)
            if not begin <= offset or end > begin + len(held):
                begin, held = offset, self._bytes.read(offset, max(end - offset, min(_READ_BYTES, self._bytes.size - offset)))
            yield offset, self._unpack(held[offset - begin : end - begin], offset)


# ---------------------------------------------------------------- blocks


def _restarts(block: bytes, offset: int) -> tuple[list[int], int]:
    """The restart points of a block, and where its entries end."""
    if len(block) < 4:
        raise corrupt("a block of an SST is too short", offset)
    count = int.from_bytes(block[-4:], "little")
    if count >> 31:
        raise _unknown("a block has a hash index")
    end = len(block) - 4 - 4 * count
    if end < 0:
        raise corrupt(f"a block of an SST claims {count} restart points", offset)
    points = [int.from_bytes(block[i : i + 4], "little") for i in range(end, len(block) - 4, 4)]
    if not points or points[0] or points[-1] > end or any(a >= b for a, b in pairwise(points)):
        raise corrupt("the restart points of a block of an SST aren't in order", offset)
    return points, end


def _iter_block(block: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each entry of one block, one after the other."""
    _, end = _restarts(block, offset)
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


def _decode(blocks: list[bytes], offset: int) -> Entries:
    """The entries of consecutive data blocks; `offset` says where the first one lies, for errors."""
    if sum(map(len, blocks)) < _FEW_BYTES:
        return _decode_plainly(blocks, offset)
    keys, tags, values = _locate(blocks, offset)
    key_list = _cut(keys.data, keys.begin, keys.size) if len(tags) else []
    value_list = _cut(values.data, values.begin, values.size) if len(tags) else []
    return Entries(key_list, array("Q", tags.astype("=u8").tobytes()), value_list)


def _decode_plainly(blocks: list[bytes], offset: int) -> Entries:
    """Entry by entry."""
    pairs = [pair for block in blocks for pair in _iter_block(block, offset)]
    tags = array("Q", [_tag(key, offset) for key, _ in pairs])
    return Entries([key[:-_KEY_TAIL] for key, _ in pairs], tags, [value for _, value in pairs])


def _locate_plainly(blocks: list[bytes], offset: int) -> Window:
    """The same as arrays."""
    import numpy as np

    keys, tags, values = _decode_plainly(blocks, offset)
    return Window(span(keys), np.array(tags, np.uint64), span(values))


def _locate(blocks: list[bytes], offset: int) -> Window:
    """The same with one lane for each restart point: all lanes take their next entry in the same step."""
    import numpy as np  # 0.1 s to import, and small states never need it

    # Padding, so that a number that begins inside a block can be looked at as a whole.
    data = b"".join([*blocks, bytes(16)])
    view = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    sizes = np.array([len(block) for block in blocks], np.int64)
    if sizes.min() < 4:
        raise corrupt("a block of an SST is too short", offset)
    ends = np.cumsum(sizes)
    begins = ends - sizes
    counts = words[ends - 4].astype(np.int64)
    if (counts >> 31).any():
        raise _unknown("a block has a hash index")
    data_ends = ends - 4 - 4 * counts
    if (counts < 1).any() or (data_ends < begins).any():
        raise corrupt("a block of an SST claims too many restart points", offset)
    # One lane for each restart point: where it begins, and where the next one does.
    first_lanes = np.cumsum(counts) - counts
    block_of: Any = np.repeat(np.arange(len(blocks)), counts)
    nth = np.arange(len(block_of)) - first_lanes[block_of]
    position = begins[block_of] + words[data_ends[block_of] + 4 * nth]
    lane_end: Any = np.append(position[1:], 0)
    lane_end[np.append(first_lanes[1:] - 1, len(block_of) - 1)] = data_ends
    if (position[first_lanes] != begins).any() or (position > lane_end).any():
        raise corrupt("the restart points of a block of an SST aren't in order", offset)

    def numbers(at: Any) -> tuple[Any, Any]:
        """The varints that begin at these positions, and where they end."""
        found = view[at].astype(np.int64)
        at = at + 1
        more = np.flatnonzero(found & 0x80)
        if len(more):
            found[more] &= 0x7F
            for shift in (7, 14, 21, 28):
                byte = view[at[more]].astype(np.int64)
                found[more] |= (byte & 0x7F) << shift
                at[more] += 1
                more = more[byte >= 0x80]
                if not len(more):
                    return found, at
            raise corrupt("a length in a block of an SST has more than 32 bits", offset)
        return found, at

    steps: list[tuple[Any, Any, Any, Any]] = []
    going: list[Any] = []  # for each step but the first, which lanes of the step before take part
    before: Any = np.zeros(len(position), np.int64)  # length of the key before, in each lane
    while (alive := position < lane_end).any():
        if len(steps) == _MOST_STEPS:
            return _locate_plainly(blocks, offset)
        position, lane_end, before = position[alive], lane_end[alive], before[alive]
        shared, at = numbers(position)
        own, at = numbers(at)
        value_size, key_begin = numbers(at)
        key_end = key_begin + own
        position = key_end + value_size
        if (shared > before).any() or (position > lane_end).any():
            raise corrupt("an entry of an SST's block claims more bytes than there are", offset)
        before = shared + own
        if (before < _KEY_TAIL).any():
            raise corrupt("a key of an SST is too short", offset)
        steps.append((shared, key_begin, key_end, position))
        going.append(alive)
    if not steps:
        return _locate_plainly(blocks, offset)
    shared, key_begin, key_end, value_end = (np.concatenate(part) for part in zip(*steps, strict=True))
    order = np.argsort(key_begin, kind="stable")  # step by step -> lane by lane, which is the order of keys
    sizes = shared + key_end - key_begin
    widest = int(sizes.max())
    values = Spans(data, key_end[order], (value_end - key_end)[order])
    if widest * len(order) <= _WIDE_BYTES:
        # All keys of a step in one matrix.  Read from `shared` bytes before its own bytes on, a key has those in their columns; the
        # columns before come from the same lane's key in the step before.
        padded = b"".join([bytes(widest), data, bytes(widest)])
        any_key = np.ndarray((len(padded) - widest,), f"V{widest}", padded, strides=(1,))
        columns = np.arange(widest)
        rows: list[Any] = []
        for (step_shared, step_begin, _, _), lanes in zip(steps, going, strict=True):
            row = any_key[widest + step_begin - step_shared].view(np.uint8).reshape(-1, widest)
            if rows:
                np.copyto(row, rows[-1][lanes], where=columns < step_shared[:, None])
            rows.append(row)
        joined = np.concatenate(rows).tobytes()
        begin, sizes = order * widest, sizes[order]
        tags = np.ndarray((len(joined) - 7,), "<u8", joined, strides=(1,))[begin + sizes - _KEY_TAIL]
        keys = Spans(joined, begin, sizes - _KEY_TAIL)
    else:
        whole, key = [], b""
        for n, a, b in zip(shared[order].tolist(), key_begin[order].tolist(), key_end[order].tolist(), strict=True):
            key = key[:n] + data[a:b]
            whole.append(key)
        tags = np.array([int.from_bytes(key[-_KEY_TAIL:], "little") for key in whole], np.uint64)
        keys = span(key[:-_KEY_TAIL] for key in whole)
    kinds = set(np.flatnonzero(np.bincount((tags & 0xFF).astype(np.uint8))).tolist())
    if not kinds <= _KINDS:
        raise _unknown(f"it holds entries of kind {min(kinds - _KINDS)}")
    return Window(keys, tags, values)


def _cut(data: bytes, begin: Any, size: Any) -> list[bytes]:
    """The pieces of these sizes at these places.  numpy makes many of one size four times faster than a slice each."""
    import numpy as np

    widths = np.flatnonzero(np.bincount(size)).tolist() if size.max() <= _MANY_BYTES else []
    if not 0 < len(widths) <= _FEW_WIDTHS or widths[0] == 0:
        return [data[a:b] for a, b in zip(begin.tolist(), (begin + size).tolist(), strict=True)]
    pieces = [np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,)) for width in widths]
    out: Any = np.empty(len(begin), object)
    if len(widths) == 1:
        out = pieces[0][begin]
    else:
        for width, piece in zip(widths, pieces, strict=True):
            chosen = np.flatnonzero(size == width)
            out[chosen] = piece[begin[chosen]].tolist()
    return list(out.tolist())


def _tag(internal: bytes, offset: int) -> int:
    if len(internal) < _KEY_TAIL:
        raise corrupt("a key of an SST is too short", offset)
    tag = int.from_bytes(internal[-_KEY_TAIL:], "little")
    if tag & 0xFF not in _KINDS:
        raise _unknown(f"it holds entries of kind {tag & 0xFF}")
    return tag


def _handle(data: bytes, position: int, offset: int) -> tuple[_Handle, int]:
    try:
        begin, position = varint(data, position)
        size, position = varint(data, position)
    except IndexError:
        raise corrupt("a handle of an SST ends too early", offset) from None
    return _Handle(begin, size), position


def _number(properties: dict[bytes, bytes], name: bytes) -> int:
    try:
        return varint(properties.get(name, b"\x00"), 0)[0]
    except IndexError:
        raise corrupt(f"the property {name.decode()} of an SST isn't a number", 0) from None


def _unknown(what: str) -> CheckpointError:
    return CheckpointError("UNKNOWN_FORMAT", f"The SST can't be read: {what}.", hint=_HINT)


# ---------------------------------------------------------------- files


class _LocalBytes:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.pread(self._descriptor, size, offset)
            except OSError as broken:
                raise corrupt(f"the disk can't be read: {broken.strerror}", offset) from broken
            if not part:
                raise incomplete("a block of an SST", offset)
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _HeldBytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]

    def close(self) -> None:
        pass


def _open(storage: Storage, path: str) -> _Bytes:
    local = storage.local_path(path)
    if local is not None:
        try:
            return _LocalBytes(os.open(local, os.O_RDONLY | os.O_CLOEXEC))
        except (OSError, ValueError):
            pass  # the storage says what is wrong
    return _HeldBytes(storage.read(path))

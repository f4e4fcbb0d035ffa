"""One SST file of RocksDB: its entries in key order, or those of one key, without RocksDB.

    file    = data blocks, other blocks, footer (53 bytes: checksum kind, handles of metaindex and index, version, magic number)
    handle  = varint offset, varint size; after the block: one byte of compression, four of checksum
    index   = a block: the handle of each data block, by its last key or one between it and the next block's first

`blocks.py` describes the inside of blocks.  Entries of the index differ if its values are
delta-encoded, which is RocksDB's present default: they have no length, and between restart points
only the difference from the previous size.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from typing import NamedTuple, TypeVar

from millpond.checkpoint.files.codecs import corrupt, incomplete, naming
from millpond.checkpoint.files.partial import open_parts
from millpond.checkpoint.rocksdb.blocks import (
    KEY_TAIL,
    TRAILER,
    Entries,
    Window,
    decode,
    entries_of,
    handles_at_once,
    iter_block,
    locate,
    locate_packed,
    restart_points,
    tag_of,
    unknown,
    unpack,
)
from millpond.checkpoint.rocksdb.manifest import varint
from millpond.checkpoint.rows.columns import Array
from millpond.errors import CheckpointError
from millpond.native.library import library
from millpond.native.memory import Memory
from millpond.storage import Storage

FOOTER = 53
MAGIC = 0x88E241B785F4CFF7
_VERSIONS = range(2, 6)
_SESSION = re.compile(b"[0-9A-Z]{13,24}")
BINARY_SEARCH = b"\x00\x00\x00\x00"
# How much to unpack at a time: enough to make an array worth it, little compared with a state.
WINDOW_BYTES = 4 << 20
_READ_BYTES = 1 << 20
# The packed size of blocks, relative to their content.
_PACKED = 4

Decoded = TypeVar("Decoded", Entries, Window)
TakeApart = Callable[[list[bytes], int], Decoded]
Entry = tuple[bytes, int, bytes]
"""(user key, sequence number << 8 | kind, value)"""


class _Handle(NamedTuple):
    offset: int
    size: int


class SstFile:
    """An SST that is open for reading.  On a local disk, only the requested parts are read.

    Raises (all calls):  FILE_GONE; INCOMPLETE_FILE, CORRUPT_FILE with the byte position in the
    file; UNKNOWN_FORMAT for features that Spark 4.3 doesn't use: range deletions, blobs, other
    indexes. All name the file.
    Source:  BlockBasedTable, BlockBuilder, Footer, RocksDB 9.8; property tests against RocksDB
             itself.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._path = path
        self._bytes = open_parts(storage, path)
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
        """Close the file."""
        self._bytes.close()

    @property
    def size_bytes(self) -> int:
        return self._bytes.size

    def check_session(self, session: int | None) -> None:
        """Raise CORRUPT_FILE if another run wrote the file than the one that a MANIFEST names, whatever their sizes."""
        if session is not None and self.session is not None and self.session != session:
            what = "the SST is of another run than the snapshot: its id isn't the one in the MANIFEST"
            raise naming(corrupt(what, 0), self._path)

    def iter_entries(self) -> Iterator[Entries]:
        """All entries, a window of blocks at a time, in key order."""
        if library(self.size_bytes) is None:
            yield from self._counted(self._iter_windows(self._all_handles(), decode))
        else:
            yield from map(entries_of, self.iter_windows())

    def iter_windows(self, window_bytes: int = WINDOW_BYTES, memory: Memory | None = None) -> Iterator[Window]:
        """As `iter_entries`, without copying the entries out of their blocks.

        This is for the compiled library: without it, `iter_entries` is faster.

        window_bytes:  about how much to unpack at a time
        memory:        where to unpack it; None for bytes of their own
        """
        yield from self._counted(self._iter_packed(window_bytes, memory))

    def _counted(self, windows: Iterator[Decoded]) -> Iterator[Decoded]:
        count = 0
        try:
            for entries in windows:
                count += len(entries.tags)
                yield entries
            if count != self._count:
                raise corrupt(f"an SST has {count} entries where its properties claim {self._count}", 0)
        except CheckpointError as error:
            raise naming(error, self._path) from error

    def iter_wanted(self, wanted: list[bytes]) -> Iterator[Entries]:
        """The entries of some keys, in order; this only reads blocks that may have one.

        wanted:  sorted keys, each once
        """
        among = frozenset(wanted)
        try:
            for keys, tags, values in self._iter_windows((handle for _, handle in self._handles_of(wanted)), decode):
                kept = [key in among for key in keys]
                yield Entries(list(compress(keys, kept)), array("Q", compress(tags, kept)), list(compress(values, kept)))
        except CheckpointError as error:
            raise naming(error, self._path) from error

    def find(self, key: bytes) -> list[Entry]:
        """The versions of one user key, newest first, from the block or blocks that the index names."""
        found: list[Entry] = []
        try:
            for _, block in self._handles_of([key]):
                for internal, value in iter_block(self._read_block(block), block.offset):
                    if internal[:-KEY_TAIL] == key:
                        found.append((key, tag_of(internal, block.offset), value))
        except CheckpointError as error:
            raise naming(error, self._path) from error
        return found

    # ------------------------------------------------------------ the file's own structure

    def _open(self) -> None:
        size = self._bytes.size
        if size < FOOTER:
            raise incomplete("the footer of an SST", size)
        at = size - FOOTER
        footer = bytes(self._bytes.read(at, FOOTER))
        if int.from_bytes(footer[-8:], "little") != MAGIC:
            raise incomplete("an SST: the magic number of its footer isn't there", size)
        version = int.from_bytes(footer[-12:-8], "little")
        if version not in _VERSIONS:
            raise unknown(f"it has format version {version}")
        self._checksum = footer[0]
        metaindex, position = _handle(footer, 1, at)
        index, _ = _handle(footer, position, at)
        named = dict(iter_block(self._read_block(metaindex), metaindex.offset))
        for name, what in (
            (b"rocksdb.range_del", "range deletions"),
            (b"rocksdb.range_del2", "range deletions"),
            (b"rocksdb.compression_dict", "a compression dictionary"),
        ):
            if name in named:
                raise unknown(f"it holds {what}")
        if b"rocksdb.properties" not in named:
            raise corrupt("an SST has no properties", metaindex.offset)
        handle, _ = _handle(named[b"rocksdb.properties"], 0, metaindex.offset)
        properties = dict(iter_block(self._read_block(handle), handle.offset))
        for name in properties:
            if name.startswith(b"rocksdb.external_sst_file."):
                raise unknown("it was made outside of a database, and ingested")
        if properties.get(b"rocksdb.block.based.table.index.type", BINARY_SEARCH) != BINARY_SEARCH:
            raise unknown("its index isn't one block for binary search")
        self._user_keys = _number(properties, b"rocksdb.index.key.is.user.key") != 0
        self._deltas = _number(properties, b"rocksdb.index.value.is.delta.encoded") != 0
        self._count = _number(properties, b"rocksdb.num.entries")
        self._key_bytes = _number(properties, b"rocksdb.raw.key.size")
        if _number(properties, b"rocksdb.num.range-deletions"):
            raise unknown("it holds range deletions")
        self.session = session_of(properties.get(b"rocksdb.creating.session.identity", b""))
        self._index_offset = index.offset
        self._index = self._read_block(index)
        self._index_restarts, self._index_end = restart_points(self._index, index.offset)

    def _read_block(self, handle: _Handle) -> bytes:
        end = handle.offset + handle.size + TRAILER
        if end > self._bytes.size:
            raise corrupt(f"a block claims {handle.size} bytes", handle.offset)
        return unpack(self._bytes.read(handle.offset, handle.size + TRAILER), self._checksum, handle.offset)

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
                    handle = _Handle(before.offset + before.size + TRAILER, before.size + (delta >> 1 ^ -(delta & 1)))
                else:
                    offset, position = varint(index, position)
                    size, position = varint(index, position)
                    handle = _Handle(offset, size)
                if handle.size < 0 or (before is not None and handle.offset < before.offset + before.size + TRAILER):
                    raise corrupt("an SST's index names blocks out of order", at)
                if not self._user_keys and len(key) < KEY_TAIL:
                    raise corrupt("a key of an SST's index is too short", at)
                before = handle
                yield key if self._user_keys else key[:-KEY_TAIL], handle
        except IndexError:
            raise corrupt("an SST's index ends inside an entry", at) from None
        if position != self._index_end:
            raise corrupt("an SST's index ends inside an entry", at)

    def _all_handles(self) -> Iterator[tuple[int, int]]:
        return (handle for _, handle in self._iter_handles())

    def _handles_of(self, wanted: list[bytes]) -> Iterator[tuple[bytes, _Handle]]:
        """The handles of blocks that may have one of these keys."""
        if not wanted:
            return
        low, high = 0, len(self._index_restarts)
        while low + 1 < high:  # the last restart point whose key is below: blocks before it only have smaller keys
            middle = (low + high) // 2
            if next(self._iter_handles(middle), (b"",))[0] < wanted[0]:
                low = middle
            else:
                high = middle
        at = 0
        for last, handle in self._iter_handles(low):
            if wanted[at] <= last:
                yield last, handle
            # A key's versions may continue in the next block.
            at = bisect_left(wanted, last, at)
            if at == len(wanted):
                return

    # ------------------------------------------------------------ entries

    def _iter_windows(self, handles: Iterable[tuple[int, int]], take_apart: TakeApart[Decoded]) -> Iterator[Decoded]:
        window: list[bytes] = []
        size = first = 0
        for offset, block in self._iter_blocks(handles):
            first = first if window else offset
            window.append(block)
            size += len(block)
            if size >= WINDOW_BYTES:
                yield take_apart(window, first)
                window, size = [], 0
        if window:
            yield take_apart(window, first)

    def _iter_packed(self, window_bytes: int, memory: Memory | None) -> Iterator[Window]:
        """Windows of blocks that are read and decoded all at once."""
        import numpy as np

        index = self._index, self._index_restarts, self._index_end
        places = handles_at_once(*index, deltas=self._deltas, offset=self._index_offset)
        if places is None:  # few blocks, or numbers of any size
            handles = list(self._all_handles())
            for offset, size in handles:
                if offset + size + TRAILER > self._bytes.size:
                    raise corrupt(f"a block claims {size} bytes", offset)
            places = np.array(handles, np.int64).reshape(-1, 2)
        ends = places[:, 0] + places[:, 1] + TRAILER
        outside = np.flatnonzero(ends > self._bytes.size)
        at, within = 0, int(outside[0]) if len(outside) else len(places)
        while at < within:
            upto = max(at + 1, min(within, int(ends.searchsorted(places[at, 0] + window_bytes // _PACKED, "right"))))
            yield from self._unpack_window(places[at:upto], memory)
            at = upto
        if len(outside):
            raise corrupt(f"a block claims {int(places[within, 1])} bytes", int(places[within, 0]))

    def _unpack_window(self, places: Array, memory: Memory | None) -> Iterator[Window]:
        first, end = int(places[0, 0]), int(places[-1].sum()) + TRAILER
        piece = self._bytes.read(first, end - first, memory)
        # A window is nearly always all of the file.
        window = locate_packed(piece, places, first, self._checksum, (self._count, self._key_bytes), memory)
        if window is None:
            yield from self._iter_windows(map(tuple, places.tolist()), locate)
        else:
            yield window

    def _iter_blocks(self, handles: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """The unpacked data blocks with their offsets; the file is read in larger pieces."""
        begin, loaded = 0, memoryview(b"")
        for offset, size in handles:
            end = offset + size + TRAILER
            if end > self._bytes.size:
                raise corrupt(f"a block claims {size} bytes", offset)
            if not begin <= offset or end > begin + len(loaded):
                # Twice as much as the last time if all of that was used, so that single blocks
                # don't cost megabytes.
                ahead = min(2 * len(loaded), _READ_BYTES) if begin + len(loaded) >= offset else 0
                begin = offset
                loaded = memoryview(self._bytes.read(offset, min(max(end - offset, ahead), self._bytes.size - offset)))
            yield offset, unpack(loaded[offset - begin : end - begin], self._checksum, offset)


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


def session_of(identity: bytes) -> int | None:
    """The lower 64 bits of a session's id, which RocksDB writes as 20 digits of base 36; None if it is no such id.

    Source:  DecodeSessionId, GetSstInternalUniqueId, RocksDB 9.8: the MANIFEST has these bits as they are.
    """
    if not _SESSION.fullmatch(identity):
        return None
    upper, lower = int(identity[:-12], 36), int(identity[-12:], 36)
    return (lower & ((1 << 62) - 1) | upper << 62) & ((1 << 64) - 1)

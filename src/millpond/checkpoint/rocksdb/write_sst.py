"""SST files, written: the reverse of `sst` and `blocks`, for keys that come in order, each once.

As RocksDB itself would write the last level after a compaction: every entry is a put with sequence
number 0.  Keys share no bytes with the key before them, since LZ4 packs what repeats.  There is no
Bloom filter: RocksDB writes one when it compacts the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import lz4.block

from millpond.checkpoint.files.checksums import XXH3, block_checksum
from millpond.checkpoint.rocksdb.blocks import DELETION, KEY_TAIL, LZ4, MERGE, NONE, SINGLE_DELETION, VALUE
from millpond.checkpoint.rocksdb.manifest import encode_varint, varint
from millpond.checkpoint.rocksdb.sst import BINARY_SEARCH, FOOTER, MAGIC
from millpond.native.rewrite import Block, build_block

# Spark's defaults.
_BLOCK_BYTES = 4 << 10
_SST_BYTES = 64 << 20
_RESTART_INTERVAL = 16
_FORMAT = 5
_HANDLES_BYTES = 40
# After a user key: sequence number 0 and the kind.
PUT_TAIL = VALUE.to_bytes(KEY_TAIL, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSst:
    """One SST file.

    content:            the file
    entries:            how many keys it has
    ends:               the internal keys at its ends, inclusive
    """

    content: bytes
    entries: int
    ends: tuple[bytes, bytes]


def build_ssts(rows: Iterable[tuple[bytes, bytes]], most_bytes: int = _SST_BYTES) -> Iterator[WrittenSst]:
    """The SSTs of some keys and values, one after the other; none without rows.

    rows:        in order of the keys' bytes, each key once
    most_bytes:  a file ends when it has so many
    Raises:      ValueError if the keys aren't in order.
    Source:      BlockBasedTableBuilder, RocksDB 9.8; property tests against RocksDB itself, and
                 Spark in tests/spark/savepoint.
    """
    sst, before = _Builder(), None
    for key, value in rows:
        if before is not None and key <= before:
            raise ValueError(f"the key {key!r:.80} comes after {before!r:.80}")
        sst.add(key, value)
        before = key
        if sst.size_bytes >= most_bytes:
            yield sst.finish()
            sst = _Builder()
    if sst.entries:
        yield sst.finish()


def build_ssts_of_records(pieces: Iterable[bytes], most_bytes: int = _SST_BYTES) -> Iterator[WrittenSst]:
    """The same of records in pieces.  Only with the compiled library.

    pieces:  each of whole records, as `native.rewrite.iter_merged` gives them
    """
    sst, last, rest = _Builder(), None, b""
    for piece, is_last in _with_last(pieces):
        records, at = rest + piece, 0
        while at < len(records):
            block = build_block(records, at, last, _BLOCK_BYTES, _RESTART_INTERVAL, is_last=is_last)
            if block is None:
                break
            sst.add_block(block)
            at, last = block.next, block.last
            if sst.size_bytes >= most_bytes:
                yield sst.finish()
                sst = _Builder()
        rest = records[at:]
    if sst.entries:
        yield sst.finish()


def _with_last(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    for piece in pieces:
        yield piece, False
    yield b"", True


def build_sst_of(entries: Iterable[tuple[bytes, int, bytes]]) -> WrittenSst | None:
    """One SST with older versions, deletes and merges; None without entries.

    entries:  (user key, sequence number << 8 | kind, value), in RocksDB's order
    """
    sst = _Builder()
    for key, tag, value in entries:
        sst.add(key, value, tag)
    return sst.finish() if sst.entries else None


class _Block:
    """Entries with restart points."""

    def __init__(self, interval: int = 1) -> None:
        self._interval = interval
        self._entries: list[bytes] = []
        self._restarts: list[int] = []
        self.size_bytes = 0

    def add(self, key: bytes, value: bytes, size: bytes | None = None) -> None:
        """One more entry.

        size:  in place of the value's size
        """
        if len(self._entries) % self._interval == 0:
            self._restarts.append(self.size_bytes)
        size = encode_varint(len(value)) if size is None else size
        entry = b"\x00" + encode_varint(len(key)) + size + key + value
        self._entries.append(entry)
        self.size_bytes += len(entry)

    def finish(self) -> bytes:
        """The block's content."""
        points = self._restarts or [0]
        return b"".join((*self._entries, *(at.to_bytes(4, "little") for at in points), len(points).to_bytes(4, "little")))


class _Builder:
    """One SST."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._block = _Block(_RESTART_INTERVAL)
        self._index = _Block()
        self._blocks = self._key_bytes = self._value_bytes = 0
        self._largest = self._first_key = self._last_key = b""
        self._deleted = self._merges = 0
        self.entries = 0
        self.size_bytes = 0

    def add(self, key: bytes, value: bytes, tag: int = VALUE) -> None:
        """One more key, larger than those before it, or an older version of the last one.

        tag:  its sequence number and kind
        """
        # The index has user keys, so all versions of a key are in one block.
        if self._block.size_bytes >= _BLOCK_BYTES and key != self._largest:
            self._end_block(self._block.finish())
        internal = key + tag.to_bytes(KEY_TAIL, "little")
        if not self.entries:
            self._first_key = internal
        self._largest, self._last_key = key, internal
        self._block.add(internal, value)
        self.entries += 1
        self._deleted += tag & 0xFF in (DELETION, SINGLE_DELETION)
        self._merges += tag & 0xFF == MERGE
        self._key_bytes += len(key) + KEY_TAIL
        self._value_bytes += len(value)

    def add_block(self, block: Block) -> None:
        """A whole block of puts that `build_block` has made."""
        if not self.entries:
            first_size, at = varint(block.content, 1)
            _, at = varint(block.content, at)
            self._first_key = block.content[at : at + first_size]
        self._largest, self._last_key = block.last, block.last + PUT_TAIL
        self.entries += block.entries
        self._key_bytes += block.key_bytes
        self._value_bytes += block.value_bytes
        self._end_block(block.content)

    def finish(self) -> WrittenSst:
        """The whole file."""
        if self._block.size_bytes:
            self._end_block(self._block.finish())
        data_bytes, index = self.size_bytes, self._index.finish()
        index_at = self._write(index)
        properties, metaindex = _Block(_RESTART_INTERVAL), _Block()
        for name, value in sorted(self._properties(data_bytes, len(index)).items()):
            properties.add(b"rocksdb." + name.encode(), value)
        metaindex.add(b"rocksdb.properties", self._write(properties.finish()))
        handles = self._write(metaindex.finish()) + index_at
        version = _FORMAT.to_bytes(4, "little") + MAGIC.to_bytes(8, "little")
        footer = bytes([XXH3]) + handles.ljust(_HANDLES_BYTES, b"\x00") + version
        assert len(footer) == FOOTER
        content = b"".join((*self._pieces, footer))
        ends = (self._first_key, self._last_key)
        return WrittenSst(content=content, entries=self.entries, ends=ends)

    def _end_block(self, content: bytes) -> None:
        handle = self._write(content, is_packed=True)
        # Handles at restart points are whole, and have no size in front: the index's values are
        # delta-encoded.
        self._index.add(self._largest, handle, size=b"")
        self._block = _Block(_RESTART_INTERVAL)
        self._blocks += 1

    def _write(self, block: bytes, *, is_packed: bool = False) -> bytes:
        """Append a block; returns its handle."""
        kind = NONE
        if is_packed:
            packed = encode_varint(len(block)) + lz4.block.compress(block, store_size=False)
            if len(packed) < len(block) - len(block) // 8:
                block, kind = packed, LZ4
        covered = block + bytes([kind])
        handle = encode_varint(self.size_bytes) + encode_varint(len(block))
        self._pieces.append(covered + block_checksum(XXH3, covered).to_bytes(4, "little"))
        self.size_bytes += len(covered) + 4
        return handle

    def _properties(self, data_bytes: int, index_bytes: int) -> dict[str, bytes]:
        return {
            "block.based.table.index.type": BINARY_SEARCH,
            "block.based.table.prefix.filtering": b"0",
            "block.based.table.whole.key.filtering": b"1",
            "column.family.id": encode_varint(0),
            "column.family.name": b"default",
            "comparator": b"leveldb.BytewiseComparator",
            "compression": b"LZ4",
            "data.size": encode_varint(data_bytes),
            "deleted.keys": encode_varint(self._deleted),
            "filter.size": encode_varint(0),
            "fixed.key.length": encode_varint(0),
            "format.version": encode_varint(_FORMAT),
            "index.key.is.user.key": encode_varint(1),
            "index.size": encode_varint(index_bytes),
            "index.value.is.delta.encoded": encode_varint(1),
            "merge.operands": encode_varint(self._merges),
            "merge.operator": b"StringAppendOperator",
            "num.data.blocks": encode_varint(self._blocks),
            "num.entries": encode_varint(self.entries),
            "num.range-deletions": encode_varint(0),
            "prefix.extractor.name": b"nullptr",
            "property.collectors": b"[]",
            "raw.key.size": encode_varint(self._key_bytes),
            "raw.value.size": encode_varint(self._value_bytes),
        }

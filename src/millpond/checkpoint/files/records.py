"""The records of change logs and snapshots: puts, deletes, merges, in write order.

    delta, snapshot, change log 1 and 3:  (int32 key length, key, int32 value length, value)*, int32 -1;  value length -1 deletes
    change log 2 and 4:                   (type byte, int32 key length, key, int32 value length, value)*, 0x00

Lengths are big-endian.  Change logs 2 to 4 begin with their version; in 3 and 4 the lineage of
snapshot ids follows.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millpond.checkpoint.files.codecs import corrupt, incomplete
from millpond.errors import CheckpointError
from millpond.schema.strict_json import DAMAGE, parse_json

PUT, DELETE, MERGE, DELETE_RANGE = 0x01, 0x10, 0x11, 0x20
# The end mark of a delta or snapshot.
END_MARK = b"\xff" * 4
_END = 0x00
_INT = struct.Struct(">i")
_VERSION = re.compile(rb"v(\d+)")
# Ids become parts of file names.
_STATE_ID = re.compile(r"[0-9A-Za-z_-]+")

Record = tuple[int, bytes, bytes]
"""(type, key, value); value is empty for a delete"""


@dataclass(frozen=True, slots=True)
class Changelog:
    """A change log's header: its version, and in 3 and 4 the (version, id) pairs since the last snapshot."""

    version: int
    lineage: tuple[tuple[int, str], ...]
    start: int


def parse_changelog_header(data: bytes) -> Changelog:
    """The header of a decompressed RocksDB change log.

    Raises:  UNKNOWN_FORMAT for a version that Spark 4.3 doesn't write.
    """
    # Version 1 has no header: it begins with an int32 key length, whose first two bytes are 0 for
    # any key below 64 KiB.
    size = int.from_bytes(data[:2], "big")
    found = _VERSION.fullmatch(data[2 : 2 + size]) if 2 <= size <= 5 else None
    if found is None:
        return Changelog(1, (), 0)
    version, start = int(found[1]), 2 + size
    if version not in (2, 3, 4):
        raise CheckpointError(
            "UNKNOWN_FORMAT",
            f"The change log has version {version}; versions 1 to 4 are known.",
            hint="Read this checkpoint with a Millpond version that knows the Spark version that wrote it.",
            version=version,
        )
    lineage: tuple[tuple[int, str], ...] = ()
    if version >= 3:
        size = int.from_bytes(data[start : start + 2], "big")
        text = data[start + 2 : start + 2 + size]
        try:
            lineage = tuple((int(e["version"]), str(e["checkpointUniqueId"])) for e in parse_json(text))
            if not all(_STATE_ID.fullmatch(id_) for _, id_ in lineage):
                raise ValueError("an id holds other characters")
        except DAMAGE as broken:
            raise corrupt("the lineage isn't readable", start) from broken
        start += 2 + size
    return Changelog(version, lineage, start)


def iter_changelog(data: bytes) -> Iterator[Record]:
    """The records of a decompressed RocksDB change log of any version, in write order.

    Raises:  INCOMPLETE_FILE if the end mark is missing; CORRUPT_FILE, with the byte position, if a
             length overruns; UNSUPPORTED if a range of keys is deleted.
    """
    header = parse_changelog_header(data)
    if header.version in (1, 3):
        return iter_records(data, header.start)
    return _iter_typed(data, header.start)


def iter_records(data: bytes, position: int = 0) -> Iterator[Record]:
    """The records of a decompressed HDFS-backed delta or snapshot, or change log 1 or 3, in write order.

    Raises:  INCOMPLETE_FILE if the end mark is missing; CORRUPT_FILE, with the byte position, if a
             length overruns.
    Source:  HDFSBackedStateStoreProvider.writeUpdateToDeltaFile, Spark 4.3; golden checkpoints.
    """
    return iter_piecewise((), data, position)


def iter_piecewise(pieces: Iterable[bytes], data: bytes = b"", position: int = 0) -> Iterator[Record]:
    """The same for data that comes in pieces; no more than a piece and a record are in memory.

    data, position:  what comes before the pieces, and where in it to begin
    """
    unpack, total, dropped, rest = _INT.unpack_from, len(data), 0, iter(pieces)

    def more(wanted: int) -> int:
        """Get bytes until so many follow the position; returns how many there are."""
        nonlocal data, position, dropped
        collected = [data[position:]]
        size = len(collected[0])
        while size < wanted and (piece := next(rest, None)) is not None:
            collected.append(piece)
            size += len(piece)
        data, dropped, position = b"".join(collected), dropped + position, 0
        return size

    while True:
        if position + 4 > total and (total := more(4)) < 4:
            raise incomplete("the end mark", dropped + position)
        (size,) = unpack(data, position)
        if size == -1:
            break
        if size < 0 or (position + 8 + size > total and (total := more(8 + size)) < 8 + size):
            raise corrupt(f"a key claims {size} bytes", dropped + position)
        key_end = position + 4 + size
        key = data[position + 4 : key_end]
        (size,) = unpack(data, key_end)
        position = key_end + 4
        if size == -1:
            yield DELETE, key, b""
            continue
        if size < 0 or (position + size > total and (total := more(size)) < size):
            raise corrupt(f"a value claims {size} bytes", dropped + position - 4)
        yield PUT, key, data[position : position + size]
        position += size
    if position + 4 == total:
        total = more(5)
    if position + 4 != total:
        raise corrupt(f"{total - position - 4} bytes follow the end mark", dropped + position + 4)


def encode_record(key: bytes, value: bytes) -> bytes:
    """A put as `iter_records` reads it."""
    return b"".join((_INT.pack(len(key)), key, _INT.pack(len(value)), value))


def encode_changes(records: Iterable[Record], header: Changelog | None = None) -> Iterator[bytes]:
    """The content of a delta or change log, in pieces.

    records:  puts and deletes
    header:   of a change log; None for a delta
    """
    version = 1 if header is None else header.version
    if version > 1:
        assert header is not None, "only a change log has a version"
        yield _utf(f"v{version}".encode())
    if version in (3, 4):
        assert header is not None, "only a change log has a lineage"
        lineage = [{"version": number, "checkpointUniqueId": state_id} for number, state_id in header.lineage]
        yield _utf(json.dumps(lineage, separators=(",", ":")).encode())
    typed = version in (2, 4)
    for kind, key, value in records:
        record = b"".join((_INT.pack(len(key)), key, _INT.pack(-1))) if kind == DELETE else encode_record(key, value)
        yield bytes((kind,)) + record if typed else record
    yield bytes((_END,)) if typed else END_MARK


def _utf(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def _iter_typed(data: bytes, position: int) -> Iterator[Record]:
    unpack, total = _INT.unpack_from, len(data)
    while True:
        if position >= total:
            raise incomplete("the end mark", position)
        kind = data[position]
        if kind == _END:
            break
        if kind == DELETE_RANGE:  # it may cover rows of many stores
            raise CheckpointError(
                "UNSUPPORTED",
                f"At byte {position}: a range of keys is deleted, which no operator of Spark 4.3 writes.",
                hint="Report this with the job's Spark version.",
                position=position,
            )
        if kind not in (PUT, DELETE, MERGE):
            raise corrupt(f"a record has type {kind:#04x}", position)
        if position + 5 > total:
            raise incomplete("a key length", position)
        (size,) = unpack(data, position + 1)
        key_end = position + 5 + size
        if size < 0 or key_end + 4 > total:
            raise corrupt(f"a key claims {size} bytes", position + 1)
        key = data[position + 5 : key_end]
        (size,) = unpack(data, key_end)
        position = key_end + 4
        if kind == DELETE:
            if size != -1:
                raise corrupt(f"a delete has a value length of {size}", key_end)
            yield DELETE, key, b""
            continue
        if size < 0 or position + size > total:
            raise corrupt(f"a value claims {size} bytes", key_end)
        yield kind, key, data[position : position + size]
        position += size
    if position + 1 != total:
        raise corrupt(f"{total - position - 1} bytes follow the end mark", position + 1)


def iter_spans(data: bytes, position: int, *, typed: bool) -> Iterator[tuple[int, int, int, int, int]]:
    """The same records as (type, begin and size of the key, begin and size of the value) instead of bytes.

    typed:   whether each begins with its type
    Raises:  as `iter_changelog`.
    """
    lead = 5 if typed else 4
    for kind, key, value in _iter_typed(data, position) if typed else iter_records(data, position):
        at = position + lead
        position = at + len(key) + 4 + len(value)
        yield kind, at, len(key), position - len(value), len(value)

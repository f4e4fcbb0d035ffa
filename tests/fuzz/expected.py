"""What must come of damaged bytes: their records by a parser of its own, and where an error may be.

The parser shares nothing with the one that is tested: it looks for nothing but lengths.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from millpond.checkpoint.files.codecs import decompress
from millpond.checkpoint.files.records import DELETE, PUT
from millpond.errors import MillpondError

if TYPE_CHECKING:
    from targets import Cell

Record = tuple[int, bytes, bytes]
_LZ4_HEADER = 21  # LZ4Block, a token, three int32: compressed size, original size, checksum


def parse(data: bytes) -> tuple[list[Record], list[int], bool]:
    """Records of a delta or snapshot of the HDFS-backed provider, where each begins, and whether that is all there is."""
    records: list[Record] = []
    begins, at = [], 0
    while True:
        begins.append(at)
        if data[at : at + 4] == b"\xff" * 4:
            return records, begins, at + 4 == len(data)
        key = _sized(data, at)
        if key is None:
            return records, begins, False
        end = at + 4 + len(key)
        if data[end : end + 4] == b"\xff" * 4:
            records.append((DELETE, key, b""))
            at = end + 4
            continue
        value = _sized(data, end)
        if value is None:
            return records, begins, False
        records.append((PUT, key, value))
        at = end + 4 + len(value)


def _sized(data: bytes, at: int) -> bytes | None:
    """The bytes behind their length, None where they aren't there."""
    if at + 4 > len(data):
        return None
    (size,) = struct.unpack_from(">i", data, at)
    return data[at + 4 : at + 4 + size] if 0 <= size <= len(data) - at - 4 else None


def check_records(found: Any, content: bytes, *, is_whole: bool) -> None:
    """An answer has the very records of the damaged content; of a snapshot, where no change follows it, as well."""
    records, _, is_right = parse(content)
    assert is_right, "the content isn't records and an end mark, and was read"
    (answer,) = found
    begin = answer[: len(records)] if is_whole else answer
    assert begin == records, "the answer has other records than the file"


def check_position(error: MillpondError, cell: Cell, whole: bytes, damaged: bytes, *, inside: bool) -> None:
    """The byte that an error names lies in the file or its content, and not before the piece that was damaged."""
    if error.message.split(": ", 1)[-1].startswith("The schema isn't readable"):
        return  # it names line and column of its JSON
    position = error.context.get("position")
    assert isinstance(position, int), "it names no byte"
    if "row_bytes" in error.context or "a block claims" in error.message:
        return  # a place that the row claims, or the index of an SST
    packed = whole.startswith(b"LZ4Block")
    sizes = [len(damaged), _content_bytes(cell, damaged)]
    assert 0 <= position <= max(sizes), f"byte {position} of {sizes}"
    if inside and not _is_changelog(error):
        before, after = decompress(cell.codec, whole), decompress(cell.codec, damaged)
        assert position >= _piece(parse(before)[1], before, after), "the records before it are whole"
    elif packed and not inside and "LZ4" in error.message:
        assert position >= _piece(_lz4_begins(whole), whole, damaged), "the blocks before it are whole"


def _content_bytes(cell: Cell, packed: bytes) -> int:
    try:
        return len(decompress(cell.codec, packed))
    except MillpondError:
        return 0


def _is_changelog(error: MillpondError) -> bool:
    return str(error.context.get("path", "")).endswith(".changelog")


def _piece(begins: list[int], whole: bytes, damaged: bytes) -> int:
    """Where the piece begins in which two files differ first."""
    differs = next((i for i, (a, b) in enumerate(zip(whole, damaged, strict=False)) if a != b), min(len(whole), len(damaged)))
    return max(begin for begin in begins if begin <= differs)


def _lz4_begins(data: bytes) -> list[int]:
    begins, at = [], 0
    while at + _LZ4_HEADER <= len(data):
        begins.append(at)
        at += _LZ4_HEADER + int.from_bytes(data[at + 9 : at + 13], "little")
    return begins

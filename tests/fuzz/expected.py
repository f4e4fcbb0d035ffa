"""What damaged bytes must give: the records, by a second parser, and the places that an error may name.

This parser shares nothing with the tested one, and looks at lengths only.
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
    """The records of a delta or snapshot of the HDFS-backed provider, the position of each, and whether the file is complete."""
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
    """The bytes that follow their length; None if there are too few."""
    if at + 4 > len(data):
        return None
    (size,) = struct.unpack_from(">i", data, at)
    return data[at + 4 : at + 4 + size] if 0 <= size <= len(data) - at - 4 else None


def check_records(found: Any, content: bytes, *, is_whole: bool) -> None:
    """Check that an answer has exactly the records of the damaged content; if that is a snapshot, others may follow them."""
    records, _, is_right = parse(content)
    assert is_right, "the content isn't records and an end mark, and was read"
    (answer,) = found
    begin = answer[: len(records)] if is_whole else answer
    assert begin == records, "the answer has other records than the file"


def check_position(error: MillpondError, cell: Cell, whole: bytes, damaged: bytes, *, inside: bool) -> None:
    """Check that the byte in an error lies in the file or its content, and not before the damaged piece."""
    if error.message.split(": ", 1)[-1].startswith("The schema isn't readable"):
        return  # it names a line and column of JSON
    position = error.context.get("position")
    assert isinstance(position, int), "it names no byte"
    if "row_bytes" in error.context or "a block claims" in error.message:
        return  # a position that the row itself claims, or the index of an SST
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
    """The beginning of the first piece in which two files differ."""
    differs = next((i for i, (a, b) in enumerate(zip(whole, damaged, strict=False)) if a != b), min(len(whole), len(damaged)))
    return max(begin for begin in begins if begin <= differs)


def _lz4_begins(data: bytes) -> list[int]:
    begins, at = [], 0
    while at + _LZ4_HEADER <= len(data):
        begins.append(at)
        at += _LZ4_HEADER + int.from_bytes(data[at + 9 : at + 13], "little")
    return begins

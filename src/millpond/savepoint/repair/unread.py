"""The parts of state files that Spark doesn't read, and Millpond does: damage there may never be noticed by Spark.

1. Spark stops at the mark after the last record of a delta, snapshot or change log.  What the codec
   writes after it, such as the end mark of LZ4, isn't read.
2. Spark reads the members of a zip one after another, each with its own header, and leaves out the
   directory at the zip's end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress

from millpond.checkpoint.files.codecs import iter_unpacked
from millpond.checkpoint.files.record_spans import locate_changelog, locate_records
from millpond.errors import CheckpointError

_LOCAL, _SIZES = b"PK\x03\x04", b"PK\x07\x08"
_HEADER = struct.Struct("<4s5H3I2H")
_HAS_SIZES_AFTER, _DEFLATED, _STORED = 1 << 3, 8, 0


def has_all_records(data: bytes, codec: str, *, is_changelog: bool) -> bool:
    """Whether the mark after the last record comes before the damage of a delta, snapshot or change log."""
    unpacked: list[bytes] = []
    with suppress(CheckpointError):  # the damage
        unpacked.extend(iter_unpacked(codec, (data,), 1))
    try:
        (locate_changelog if is_changelog else locate_records)(b"".join(unpacked))
    except CheckpointError:
        return False
    return True


def has_all_members(data: bytes) -> bool:
    """Whether all members of a zip can be read one after another, as Spark does."""
    try:
        return sum(1 for _ in iter_members(data)) > 0
    except (ValueError, zlib.error, struct.error):
        return False


def iter_members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The names and contents of a zip's members, without its directory.

    Raises:  ValueError, zlib.error or struct.error where a member is damaged.
    """
    at = 0
    while data[at : at + 4] == _LOCAL:
        _, _, flags, method, _, _, checksum, packed_size, size, name_size, extra_size = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        name = data[at : at + name_size].decode()
        at += name_size + extra_size
        begin = at
        if method == _DEFLATED:
            unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
            content = unpacking.decompress(data[at:]) + unpacking.flush()
            if not unpacking.eof:
                raise ValueError("a member ends early")
            at = len(data) - len(unpacking.unused_data)
        elif method == _STORED and not flags & _HAS_SIZES_AFTER:
            content, at = data[at : at + packed_size], at + packed_size
        else:
            raise ValueError(f"a member has method {method}")
        found = zlib.crc32(content), at - begin, len(content)
        if flags & _HAS_SIZES_AFTER:
            at += 4 if data[at : at + 4] == _SIZES else 0
            checksum, packed_size, size = struct.unpack_from("<3I", data, at)
            at += 12
        if found != (checksum, packed_size, size):
            raise ValueError("a member differs from its size or checksum")
        yield name, content

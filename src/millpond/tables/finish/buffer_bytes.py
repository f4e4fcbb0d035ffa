"""Bytes that an aggregate function wrote itself, read from their beginning; numbers are big-endian, as Java writes them."""

from __future__ import annotations

import struct
from typing import Any

from millpond.errors import CheckpointError


class BufferReader:
    """Reads one buffer.

    function:  whose buffer it is, for errors
    """

    def __init__(self, function: str, data: bytes) -> None:
        self._function, self._data, self._at = function, data, 0

    def numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next numbers.  Raises CORRUPT_FILE where the bytes end before them."""
        return layout.unpack(self.bytes(layout.size))

    def bytes(self, size: int) -> bytes:
        """The next bytes.  Raises CORRUPT_FILE where there are fewer."""
        part = self._data[self._at : self._at + size]
        if size < 0 or len(part) != size:
            raise self.damage(f"claims {size} bytes at position {self._at}")
        self._at += size
        return part

    def many(self, count: int, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """All the rest: so many groups of numbers.  Raises CORRUPT_FILE where it isn't that."""
        rest = self._data[self._at :]
        if count < 0 or count * layout.size != len(rest):
            raise self.damage(f"claims {count} entries at position {self._at}")
        return list(layout.iter_unpack(rest))

    def damage(self, what: str) -> CheckpointError:
        """An error that says so."""
        return CheckpointError(
            "CORRUPT_FILE",
            f"A buffer of {self._function} has {len(self._data)} bytes and {what}.",
            hint="Compare the job's checkpoint with a backup; report this if Spark can read it.",
        )

"""Buffers that an aggregate function encodes itself; numbers are big-endian, as Java writes them."""

from __future__ import annotations

import struct
from typing import Any

from millpond.errors import CheckpointError


class BufferReader:
    """Reads one buffer.

    function:  the aggregate function's name, for errors
    """

    def __init__(self, function: str, data: bytes) -> None:
        self._function, self._data, self._at = function, data, 0

    def numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next numbers.  Raises CORRUPT_FILE if the bytes end before them."""
        return layout.unpack(self.bytes(layout.size))

    def bytes(self, size: int) -> bytes:
        """The next bytes.  Raises CORRUPT_FILE if there are fewer."""
        part = self._data[self._at : self._at + size]
        if size < 0 or len(part) != size:
            raise self.damage(f"claims {size} bytes at position {self._at}")
        self._at += size
        return part

    def many(self, count: int, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """The rest as so many groups of numbers.  Raises CORRUPT_FILE if its length is another."""
        rest = self._data[self._at :]
        if count < 0 or count * layout.size != len(rest):
            raise self.damage(f"claims {count} entries at position {self._at}")
        return list(layout.iter_unpack(rest))

    def damage(self, what: str) -> CheckpointError:
        """An error that says what is wrong with the buffer."""
        return CheckpointError(
            "CORRUPT_FILE",
            f"A buffer of {self._function} has {len(self._data)} bytes and {what}.",
            hint="Compare the job's checkpoint with a backup; report this if Spark can read it.",
        )

"""Reads parts of a file: on a local disk only the requested bytes, elsewhere the whole file at once."""

from __future__ import annotations

import os
from typing import Protocol

from millpond.checkpoint.files.codecs import corrupt, incomplete
from millpond.native.memory import Memory
from millpond.settings import FileBounds
from millpond.storage import Storage

_BOUNDS = FileBounds()


class FileParts(Protocol):
    """An open file."""

    size: int

    def read(self, offset: int, size: int, memory: Memory | None = None, /) -> bytes | memoryview:
        """A part of the file, in reusable memory or in bytes of its own.

        Raises:  INCOMPLETE_FILE, CORRUPT_FILE.
        """

    def close(self) -> None:
        """Close the file."""


def open_parts(storage: Storage, path: str) -> FileParts:
    """Open a state file.  Raises as `Storage.read`."""
    file = storage.open_file(path, _BOUNDS.state_bytes)
    return _HeldParts(storage.read(path, _BOUNDS.state_bytes)) if file is None else _LocalParts(file)


class _LocalParts:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, size: int, memory: Memory | None = None) -> bytes | memoryview:
        try:
            if memory is None and len(whole := os.pread(self._descriptor, size, offset)) == size:
                return whole
            found = memoryview(bytearray(size)) if memory is None else memory.take(size)
            at = 0
            while at < size:
                read = os.preadv(self._descriptor, [found[at:]], offset + at)
                if not read:
                    raise incomplete("a block of an SST", offset + at)
                at += read
        except OSError as broken:
            raise corrupt(f"the disk can't be read: {broken.strerror}", offset) from broken
        return bytes(found) if memory is None else found

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _HeldParts:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, size: int, _memory: Memory | None = None) -> bytes | memoryview:
        return self._data[offset : offset + size]

    def close(self) -> None:
        pass

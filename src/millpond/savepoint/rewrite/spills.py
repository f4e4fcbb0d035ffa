"""Rows by their new partitions, on disk: in each partition, each run of rows is in order.

All are in one file without a name, so that nothing is left of it when the process is killed.  A
partition's bytes lie in it as extents, one for each time that it was flushed.
"""

from __future__ import annotations

import heapq
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from types import TracebackType

from millpond.checkpoint.files.records import encode_record
from millpond.errors import SetupError

# Rows are sorted in runs of so many bytes, each of them with Python's objects around it.
RUN_BYTES = 32 << 20
ROW_BYTES = 250
_COLLECTED_BYTES = 16 << 20
_PIECE_BYTES = 64 << 10
_INT_BYTES = 4


class Spills(AbstractContextManager["Spills"]):
    """The rows of a store; their file vanishes with it.

    1. `add` a run of rows, each to its partition; `end_run`; the next run.
    2. `iter_rows` of each partition, after the last run.

    Raises:  NOT_WRITABLE, as `add` and `iter_rows` do.
    """

    def __init__(self, partitions: int) -> None:
        try:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as this
        except OSError as broken:
            raise _not_writable(broken) from broken
        self._end = 0
        self._pending: list[list[bytes]] = [[] for _ in range(partitions)]
        self._sizes = [0] * partitions
        self._runs: list[list[int]] = [[0] for _ in range(partitions)]
        self._extents = [_Extents() for _ in range(partitions)]
        self._collected = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, partition: int, key: bytes, value: bytes) -> None:
        """One more row."""
        record = encode_record(key, value)
        self._pending[partition].append(record)
        self._sizes[partition] += len(record)
        self._collected += len(record)
        if self._collected >= _COLLECTED_BYTES:
            self._flush()

    def add_records(self, partition: int, records: memoryview) -> None:
        """Many more rows, as records."""
        if records:
            self._pending[partition].append(bytes(records))
            self._sizes[partition] += len(records)
            self._collected += len(records)
            if self._collected >= _COLLECTED_BYTES:
                self._flush()

    def end_run(self) -> None:
        """The next rows don't follow those before in order."""
        for runs, size in zip(self._runs, self._sizes, strict=True):
            if size > runs[-1]:
                runs.append(size)

    def iter_rows(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a partition, in order of the keys if each run was."""
        self._flush()
        ends = self._runs[partition]
        if len(ends) == 1:
            return
        read = partial(self._extents[partition].read, self._file.fileno())
        yield from heapq.merge(*(_iter_run(read, begin, end) for begin, end in pairwise(ends)))

    def open_runs(self, partition: int) -> list[Callable[[int], bytes]]:
        """For each run of a partition, a function that gives about as many of its next bytes, as records."""
        self._flush()
        read = partial(self._extents[partition].read, self._file.fileno())
        return [_RunBytes(read, begin, end).next for begin, end in pairwise(self._runs[partition])]

    def read_records(self, partition: int) -> bytes:
        """All rows of a partition, as records, in the order in which they were added."""
        self._flush()
        run = _RunBytes(partial(self._extents[partition].read, self._file.fileno()), 0, self._sizes[partition])
        return b"".join(iter(partial(run.next, _PIECE_BYTES), b""))

    def _flush(self) -> None:
        for extents, records in zip(self._extents, self._pending, strict=True):
            if records:
                data = memoryview(b"".join(records))
                records.clear()
                extents.add(self._end, len(data))
                self._end += len(data)
                try:
                    while data:
                        data = data[self._file.write(data) :]
                except OSError as broken:
                    raise _not_writable(broken) from broken
        self._collected = 0


def _not_writable(broken: OSError) -> SetupError:
    # None if there is no usable one.
    folder = tempfile.tempdir or "the folder of temporary files"
    return SetupError(
        "NOT_WRITABLE",
        f"Rows can't be collected in {folder}: {broken.strerror}.",
        hint="Free some space there, or name a folder on another disk in TMPDIR.",
        path=folder,
    )


class Sorter(AbstractContextManager["Sorter"]):
    """Rows that come in any order and are read in order of their keys, as often as you like."""

    def __init__(self) -> None:
        self._spills = Spills(1)
        self._run: list[tuple[bytes, bytes]] = []
        self._size = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._spills.__exit__(kind, error, trace)

    def add(self, key: bytes, value: bytes) -> None:
        """One more row."""
        self._run.append((key, value))
        self._size += ROW_BYTES + len(key) + len(value)
        if self._size >= RUN_BYTES:
            self._end_run()

    def iter_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows in order."""
        self._end_run()
        return self._spills.iter_rows(0)

    def _end_run(self) -> None:
        for key, value in sorted(self._run):
            self._spills.add(0, key, value)
        self._spills.end_run()
        self._run, self._size = [], 0


class _Extents:
    """Where the bytes of a partition are in the file."""

    def __init__(self) -> None:
        self._begins = [0]  # of each extent in the partition, and the end of the last
        self._places: list[int] = []

    def add(self, place: int, size: int) -> None:
        self._places.append(place)
        self._begins.append(self._begins[-1] + size)

    def read(self, file: int, position: int, size: int) -> bytes:
        """Bytes from a position of the partition: at most so many, and none at its end."""
        if position >= self._begins[-1]:
            return b""
        at = bisect_right(self._begins, position) - 1
        begin, end = self._begins[at : at + 2]
        return os.pread(file, min(size, end - position), self._places[at] + position - begin)


class _RunBytes:
    """The bytes of a run, piece by piece."""

    def __init__(self, read: Callable[[int, int], bytes], begin: int, end: int) -> None:
        self._read, self._at, self._end = read, begin, end

    def next(self, size: int) -> bytes:
        """At most so many of the next bytes; none at the end."""
        piece = self._read(self._at, min(size, self._end - self._at)) if self._at < self._end else b""
        self._at += len(piece)
        return piece


def _iter_run(read: Callable[[int, int], bytes], position: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    data, at, wanted = b"", 0, _INT_BYTES
    while True:
        if len(data) - at < wanted:
            piece = read(position, min(max(_PIECE_BYTES, wanted), end - position))
            if not piece:
                return
            data, at, position = data[at:] + piece, 0, position + len(piece)
            continue
        key_begin = at + _INT_BYTES
        value_begin = key_begin + int.from_bytes(data[at:key_begin], "big") + _INT_BYTES
        wanted = value_begin - at
        if len(data) < value_begin:
            continue
        record_end = value_begin + int.from_bytes(data[value_begin - _INT_BYTES : value_begin], "big")
        wanted = record_end - at
        if len(data) < record_end:
            continue
        yield data[key_begin : value_begin - _INT_BYTES], data[value_begin:record_end]
        at, wanted = record_end, _INT_BYTES

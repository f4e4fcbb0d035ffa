"""Rows by their new partitions, on disk: one file for each partition, in which each run of rows is in order."""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from millpond.checkpoint.files.records import encode_record

_COLLECTED_BYTES = 64 << 20
_PIECE_BYTES = 64 << 10
_INT_BYTES = 4


class Spills(AbstractContextManager["Spills"]):
    """The rows of a store; its folder vanishes with it.

    1. `add` a run of rows, each to its partition; `end_run`; the next run.
    2. `iter_rows` of each partition, after the last run.
    """

    def __init__(self, partitions: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millpond-rewrite-")
        self._pending: list[list[bytes]] = [[] for _ in range(partitions)]
        self._sizes = [0] * partitions
        self._runs: list[list[int]] = [[0] for _ in range(partitions)]
        self._collected = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._folder.cleanup()

    def add(self, partition: int, key: bytes, value: bytes) -> None:
        """One more row."""
        record = encode_record(key, value)
        self._pending[partition].append(record)
        self._sizes[partition] += len(record)
        self._collected += len(record)
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
        with open(self._path(partition), "rb") as file:
            runs = [_iter_run(file.fileno(), begin, end) for begin, end in pairwise(ends)]
            yield from heapq.merge(*runs)

    def _flush(self) -> None:
        for partition, records in enumerate(self._pending):
            if records:
                with open(self._path(partition), "ab") as file:
                    file.writelines(records)
                records.clear()
        self._collected = 0

    def _path(self, partition: int) -> Path:
        return Path(self._folder.name, str(partition))


def _iter_run(file: int, position: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    data, at, wanted = b"", 0, _INT_BYTES
    while True:
        if len(data) - at < wanted:
            piece = os.pread(file, min(max(_PIECE_BYTES, wanted), end - position), position)
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

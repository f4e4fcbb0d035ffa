"""Sorts any number of rows by key and keeps the newest row of each key: an external merge sort.

1. Collect rows in memory.  When there are too many, sort those of the largest table and write them
   as a run: a temporary file without a name in the replica's folder, which vanishes with the
   process.
2. When a table has many runs, merge them into one that still has deleted keys, since an older run
   may have their rows.
3. At the end, merge all runs of a table, with two blocks of each in memory.

So a build writes a table from its first key to its last, and each page once.  This needs the
compiled library.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from millpond.checkpoint.rocksdb.blocks import DELETION, VALUE, Window
from millpond.checkpoint.rocksdb.merge_windows import iter_merged_windows, iter_parts
from millpond.checkpoint.rows.columns import Array, Spans, join_spans
from millpond.native import calls
from millpond.native.library import library
from millpond.replica.backends.lmdb import explained

# Making a run of the collected rows needs about three times their memory.
_HELD_BYTES = 12 << 20
_BLOCK_BYTES = 32 << 10
# Each run in a merge needs about half a MiB, and an extra merge costs as much time as all the
# sorting: if there are many runs already, the next ones are larger.
_MANY_RUNS, _LARGER = 64, 3
_MOST_RUNS = 160
# The bytes of a collected row besides key and value: their positions and sizes, and whether it is
# deleted.
_ROW_BYTES = 33


class _Block(NamedTuple):
    """Rows of a run in its file: sizes of keys, sizes of values, kinds, keys, values."""

    rows: int
    key_bytes: int
    value_bytes: int


@dataclass(slots=True)
class _SortedFile:
    """Rows in key order.

    merges:  how often they were merged
    """

    file: IO[bytes]
    merges: int
    blocks: list[_Block] = field(default_factory=list)

    def write(self, keys: Spans, values: Spans, gone: Array) -> None:
        """Append rows, all packed."""
        import numpy as np

        kinds = np.where(gone, DELETION, VALUE).astype(np.uint8)
        step = max(1, _BLOCK_BYTES * len(gone) // (len(keys.data) + len(values.data) + 1))
        for first in range(0, len(gone), step):
            some = slice(first, first + step)
            key_data, value_data = _data(keys, some), _data(values, some)
            self.file.write(keys.size[some].astype("<u2").tobytes() + values.size[some].astype("<u4").tobytes())
            self.file.write(kinds[some].tobytes() + key_data + value_data)
            self.blocks.append(_Block(len(kinds[some]), len(key_data), len(value_data)))

    def iter_windows(self, number: int) -> Iterator[Window]:
        """The rows, all with the same sequence number.  Call it once."""
        import numpy as np

        with self.file as file:
            file.seek(0)
            for rows, key_bytes, value_bytes in self.blocks:
                data = file.read(7 * rows + key_bytes + value_bytes)
                key_size = np.frombuffer(data, "<u2", rows).astype(np.int64)
                size = np.frombuffer(data, "<u4", rows, 2 * rows).astype(np.int64)
                kinds = np.frombuffer(data, np.uint8, rows, 6 * rows).astype(np.uint64)
                keys = Spans(data, np.cumsum(key_size) - key_size + 7 * rows, key_size)
                values = Spans(data, np.cumsum(size) - size + 7 * rows + key_bytes, size)
                yield Window(keys, np.uint64(number << 8) | kinds, values)


@dataclass(slots=True)
class _Table:
    """One table's rows.

    keys, values, gone:  those in memory, oldest first
    runs:                those in files, oldest first
    """

    keys: list[Spans] = field(default_factory=list)
    values: list[Spans] = field(default_factory=list)
    gone: list[Array] = field(default_factory=list)
    held_bytes: int = 0
    runs: list[_SortedFile] = field(default_factory=list)


class RowSorter:
    """Takes rows in write order and returns them in key order.

    Use it in a `with` block, by one thread at a time.

    folder:      on the disk of the replica; None to sort in memory only
    held_bytes:  the most bytes of rows before they become a run; three times that if a table has
                 many runs
    most_runs:   the most runs of a table before they are merged
    """

    def __init__(self, folder: Path | None, held_bytes: int = _HELD_BYTES, most_runs: int = _MOST_RUNS) -> None:
        assert library() is not None
        self._folder = folder
        self._room = held_bytes
        self._most_runs = most_runs
        self._tables: dict[str, _Table] = {}

    def __enter__(self) -> RowSorter:
        return self

    def __exit__(self, *error: object) -> None:
        for table in self._tables.values():
            for run in table.runs:
                run.file.close()

    def add(self, name: str, keys: Spans, values: Spans, gone: Array | None) -> None:
        """Add rows of a table; of several rows with one key, the last counts.

        gone:    mask of deleted keys, whose values mean nothing; None if there are none
        Raises:  DISK_FULL, REPLICA_NOT_WRITABLE.
        """
        import numpy as np

        if not len(keys.begin):
            return
        table = self._tables.setdefault(name, _Table())
        if gone is None:
            gone = np.zeros(len(keys.begin), bool)
        elif gone.any():
            values = Spans(values.data, np.where(gone, 0, values.begin), np.where(gone, 0, values.size))
        keys, values = _packed(keys), _packed(values)
        table.keys.append(keys)
        table.values.append(values)
        table.gone.append(gone)
        table.held_bytes += len(keys.data) + len(values.data) + _ROW_BYTES * len(gone)
        many = any(len(t.runs) >= _MANY_RUNS for t in self._tables.values())
        room = self._room * _LARGER if many else self._room
        while self._folder is not None and sum(t.held_bytes for t in self._tables.values()) > room:
            self._write_run(max(self._tables.values(), key=_held_bytes), self._folder)  # 1

    def iter_rows(self, name: str) -> Iterator[tuple[Spans, Spans]]:
        """The keys of a table in order, each once, with values, in chunks; without deleted keys.

        Call it once.
        """
        import numpy as np

        table = self._tables.get(name)
        if table is None:
            return
        if not table.runs:
            keys, values, gone = _sort(table)
            there = np.flatnonzero(~gone)
            yield keys.select(there), values.select(there)
            return
        if table.keys and self._folder is not None:
            self._write_run(table, self._folder)
        yield from iter_merged_windows([run.iter_windows(n) for n, run in enumerate(table.runs, 1)], b"")  # 3

    def _write_run(self, table: _Table, folder: Path) -> None:
        self._write(table, folder, 0, [_sort(table)])
        most = self._most_runs
        while len(table.runs) >= most and len({run.merges for run in table.runs[-most:]}) == 1:  # 2
            table.runs, merged = table.runs[:-most], table.runs[-most:]
            parts = iter_parts([run.iter_windows(n) for n, run in enumerate(merged, 1)])
            rows = ((Spans(*keys), Spans(*values), gone) for keys, values, gone in map(calls.merge_with_deleted, parts))
            self._write(table, folder, merged[0].merges + 1, rows)

    def _write(self, table: _Table, folder: Path, merges: int, chunks: Iterable[tuple[Spans, Spans, Array]]) -> None:
        """Add a run of these sorted rows."""
        with explained(folder):
            run = _SortedFile(tempfile.TemporaryFile(dir=folder), merges)  # noqa: SIM115 - it lives as long as the run
            table.runs.append(run)
            for chunk in chunks:
                run.write(*chunk)
            run.file.flush()


def _sort(table: _Table) -> tuple[Spans, Spans, Array]:
    """Take a table's rows out of memory: sorted, the newest of each key."""
    import numpy as np

    keys, values, gone = join_spans(table.keys), join_spans(table.values), np.concatenate(table.gone)
    table.keys, table.values, table.gone, table.held_bytes = [], [], [], 0
    order = calls.sort_newest(*keys)
    if order is None:
        raise MemoryError(f"{len(gone)} keys can't be sorted")
    return _packed(keys.select(order)), _packed(values.select(order)), gone[order]


def _packed(pieces: Spans) -> Spans:
    """The same bytes, one after the other in a new buffer."""
    import numpy as np

    data = calls.gather(*pieces)
    assert data is not None
    return Spans(data, np.cumsum(pieces.size) - pieces.size, pieces.size)


def _data(packed: Spans, some: slice) -> bytes:
    begin, size = packed.begin[some], packed.size[some]
    return bytes(packed.data[int(begin[0]) : int(begin[-1] + size[-1])])


def _held_bytes(table: _Table) -> int:
    return table.held_bytes

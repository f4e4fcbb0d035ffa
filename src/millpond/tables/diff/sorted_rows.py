"""The rows of one table of a batch, sorted by key, in bounded memory.

1. Read the files of each partition piece by piece, and give their rows to an external sorter, which
   writes sorted runs into temporary files.
2. Rows that are made of several records (lists that grow, rows in parts) are sorted as records: by
   key, part and place in the file.  They are put together when they come out, key by key.
3. Rows come out in key order.  A row's id is its key in the sorter: equal keys of both sides have
   equal ids.

Without the compiled library, memory holds all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.bulk.stream import iter_state
from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.files.records import DELETE, PUT, Record
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rows.columns import Array, Spans, span
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import ReplicaError, SetupError
from millpond.native.library import library
from millpond.replica.apply import plan_tables
from millpond.replica.build import ahead, stored_rows
from millpond.replica.external_sort import RowSorter
from millpond.replica.keys.codec import KeyCodec, is_cut, join_value, split_value, store_key
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.settings import home
from millpond.tables.finish.merge_rows import store_parts

Progress = Callable[[int], None]
"""called with the number of rows read so far"""
Chunk = tuple[list[bytes], list[bytes]]
"""ids in order, and the stored row of each"""
Row = tuple[Any, ...]

# More runs would be read at once, with more memory for more rows; so they are merged first.
_MOST_RUNS = 32
# How many rows are compared at a time.
_ROWS = 1 << 14
_PART_BYTES, _NUMBER_BYTES, _PLACE_BYTES = 4, 8, 4
_SUFFIX = _PART_BYTES + _NUMBER_BYTES


class HeldRows:
    """Sorts rows as `RowSorter` does, in memory and in Python."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[bytes, bytes]] = {}

    def add(self, name: str, keys: Spans, values: Spans, gone: Array | None) -> None:
        """Add rows of a table; of several rows with one key, the last counts."""
        rows = self._tables.setdefault(name, {})
        rows.update(zip(keys.tolist(), values.tolist(), strict=True))
        if gone is not None:
            last = dict(zip(keys.tolist(), gone.tolist(), strict=True))
            for key in [key for key, is_gone in last.items() if is_gone]:
                del rows[key]

    def iter_rows(self, name: str) -> Iterator[tuple[Spans, Spans]]:
        """The keys of a table in order, each once, with values.  Call it once."""
        rows = self._tables.pop(name, {})
        keys = sorted(rows)
        yield span(keys), span(rows[key] for key in keys)


Sorter = RowSorter | HeldRows


@contextmanager
def open_sorter() -> Iterator[Sorter]:
    """A sorter whose temporary files vanish with the process.

    Raises:  DISK_FULL, NOT_WRITABLE, also while it is used.
    """
    if library() is None:
        yield HeldRows()
        return
    folder = home() / "sort"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise _not_writable(folder, str(refused)) from refused
    try:
        with RowSorter(folder, most_runs=_MOST_RUNS) as sorter:
            yield sorter
    except ReplicaError as error:  # in the words of a replica, which this isn't
        if error.condition == "DISK_FULL":
            raise ReplicaError(
                "DISK_FULL",
                f"There is no room in {folder} to sort the rows of both sides.",
                hint="Free some space there, or name a folder on another disk in MILLPOND_HOME.",
                path=str(folder),
            ) from error
        if error.condition == "REPLICA_NOT_WRITABLE":
            raise _not_writable(folder, error.message) from error
        raise


def _not_writable(folder: Path, why: str) -> SetupError:
    return SetupError(
        "NOT_WRITABLE",
        f"Rows can't be sorted in {folder}: {why}.",
        hint="Name a folder on a local disk that this user may write to in MILLPOND_HOME.",
        path=str(folder),
    )


class SortedRows:
    """The rows of one table of one side."""

    def __init__(self, definition: TableDefinition, schema: StoreSchema, sorter: Sorter, *, by_record: bool) -> None:
        """Rows that are added to a sorter, under the table's name.

        by_record:  whether rows are sorted as records, which both sides do if one of them must
        Raises:     DEFINITION_MISMATCH if its parts can't be read as one table.
        """
        self._name, self._schema, self._sorter, self._by_record = definition.table, schema, sorter, by_record
        (self._table,) = plan_tables([schema])
        self._parts = store_parts(definition, schema)
        self._codec, self._decode = KeyCodec(definition.key_schema), decoder(schema.value)
        self._number = 0

    def read(self, reader: StateReader, batch: CommittedBatch, progress: Progress) -> None:
        """Give all rows of a batch to the sorter.

        Raises:  as `StateReader.iter_state`; DISK_FULL.
        """
        count = 0
        for partition in partitions_of(batch, self._schema):
            for records in iter_state(reader, batch, self._schema, partition):
                rows = self._records(records) if self._by_record else stored_rows(self._table, records)
                self._sorter.add(self._name, *rows)
                count += len(records)
                progress(count)

    def iter_chunks(self) -> Iterator[Chunk]:
        """The rows in the order of their ids.  Call it once.

        Raises:  COPIES_DIFFER, VALUE_OUT_OF_RANGE; DISK_FULL.
        """
        if self._by_record:
            yield from self._iter_whole()
        else:
            yield from self._iter_sorted()

    def decode(self, id_: bytes, stored: bytes) -> tuple[Row, Row]:
        """(key row, value row) of a row, in stored form."""
        ordered, row = self._split(id_, stored)
        key = self._codec.decode(ordered)
        if self._schema.many:
            key = (*key, int.from_bytes(id_[-_PLACE_BYTES:], "big"))
        return key, self._decode(row)

    def decode_value(self, id_: bytes, stored: bytes) -> Row:
        """The value row alone, which takes half the time."""
        return self._decode(self._split(id_, stored)[1])

    def _split(self, id_: bytes, stored: bytes) -> tuple[bytes, bytes]:
        """(ordered key, bare value row)."""
        if not self._by_record:
            return split_value(id_, stored)
        return split_value(id_[1:-_PLACE_BYTES] if self._schema.many else id_[1:], stored)

    def _records(self, records: RowChunk | list[Record]) -> tuple[Spans, Spans, None]:  # 2
        keys, values = [], []
        for kind, key_row, row in records.records() if isinstance(records, RowChunk) else records:
            part, ordered = 0, self._table.transcode_key(key_row)
            if self._parts is not None:
                part, ordered = self._parts.split(ordered)
            stored_key = store_key(ordered)
            self._number += 1
            # No other key has such first bytes: uncut keys end themselves, and cut ones have one
            # length.
            front = bytes((is_cut(stored_key),)) + stored_key
            keys.append(front + part.to_bytes(_PART_BYTES, "big") + self._number.to_bytes(_NUMBER_BYTES, "big"))
            values.append(bytes((kind,)) + join_value(ordered, row))
        return span(keys), span(values), None

    def _iter_sorted(self) -> Iterator[Chunk]:
        for keys, values in ahead(self._sorter.iter_rows(self._name)):
            for first in range(0, len(keys.begin), _ROWS):
                yield keys.slice(first, first + _ROWS).tolist(), values.slice(first, first + _ROWS).tolist()

    def _iter_whole(self) -> Iterator[Chunk]:
        ids: list[bytes] = []
        rows: list[bytes] = []
        records = (pair for chunk in self._iter_sorted() for pair in zip(*chunk, strict=True))
        for front, of_key in groupby(records, key=lambda pair: pair[0][:-_SUFFIX]):
            for id_, row in self._rows(front, of_key):
                ids.append(id_)
                rows.append(row)
            if len(ids) >= _ROWS:
                yield ids, rows
                ids, rows = [], []
        if ids:
            yield ids, rows

    def _rows(self, front: bytes, records: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a key, or none if its last record deletes it."""
        found: list[bytes | None] = [None] * (1 if self._parts is None else len(self._parts.prefixes))
        stored_key, ordered = front[1:], b""
        for key, value in records:
            part = int.from_bytes(key[-_SUFFIX:-_NUMBER_BYTES], "big")
            ordered, row = split_value(stored_key, value[1:])
            if value[0] == PUT:
                found[part] = row
            elif value[0] == DELETE:
                found[part] = None
            else:
                found[part] = (found[part] or b"") + row
        if all(row is None for row in found):
            return
        whole = found[0] if self._parts is None else self._parts.merge(ordered, found)
        assert whole is not None
        if not self._schema.many:
            yield front, join_value(ordered, whole)
            return
        for place, element in enumerate(iter_elements(whole)):
            yield front + place.to_bytes(_PLACE_BYTES, "big"), join_value(ordered, element)

"""One table of one committed batch: all that a read of its partitions needs, also in another process.

1. One pass finds the newest row of each key in a partition (`checkpoint.bulk.newest`).  If that
   pass rejects the input, the rows are found file by file (`checkpoint.bulk.partition`), and the
   newest row of each key stays.
2. Rows become columns, and `finish.columns` computes what a reader sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from millpond.checkpoint.bulk.newest import read_newest
from millpond.checkpoint.bulk.partition import RowChunk, iter_newest, read_chunks
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rows.columns import Array, Spans
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.native.memory import Memory
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.storage import Storage
from millpond.tables.cold.merged import MergedRows
from millpond.tables.finish.columns import ColumnFinish, RowKeys
from millpond.tables.finish.definition import compile_definition
from millpond.tables.forms.arrow import rows_table, shown_rows, table_schema
from millpond.tables.forms.arrow_errors import Failures, make_table
from millpond.tables.kept.shorter import Hidden
from millpond.tables.scan.ttl import has_passed

# How many rows become columns at a time, so that an array can hold the bytes of their texts.
_CHUNK_ROWS, _CHUNK_BYTES = 1 << 20, 1 << 30

Choice = Callable[[RowKeys, Spans], Array]
"""(keys, value rows) -> the places of those that are wanted"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBatch:
    """A table at a batch.

    job:         its name
    checkpoint:  URI
    definition:  with the columns that are read
    schema:      of the store
    judged_ms:   rows whose TTL had passed at this time are left out; None to leave out none
    hidden:      these buckets are left out
    """

    job: str
    checkpoint: str
    definition: TableDefinition
    batch: CommittedBatch
    schema: StoreSchema
    judged_ms: int | None
    hidden: Hidden | None = None

    @property
    def partitions(self) -> range:
        """The partitions of the store."""
        return partitions_of(self.batch, self.schema)

    def arrow_schema(self, pa: Any) -> Any:
        """The schema of its tables.  Raises WRONG_TYPE for a column that Arrow has no type for."""
        return table_schema(pa, self.definition, self.job, self.batch.batch)

    def finish(self) -> ColumnFinish:
        """What makes columns of its rows."""
        return ColumnFinish(self.definition)

    def chunks(self, storage: Storage, partition: int, memory: Memory) -> Iterable[RowChunk]:  # 1
        """The newest row of each key of a partition."""
        return iter_partition(StateReader(storage), self.batch, self.schema, partition, memory)

    def iter_tables(
        self, pa: Any, storage: Storage, partition: int, memory: Memory, finish: ColumnFinish, chosen: Choice | None = None
    ) -> Iterator[Any]:  # 2
        """The rows of a partition as tables; not of a table in parts.

        chosen:  which of some rows are wanted, before their columns are made; None for all
        memory:  where columns are written; it is used again when no view of it is left
        Raises:  what damaged files raise; FILE_GONE.
        """
        shape = self.arrow_schema(pa)
        for chunk in self.chunks(storage, partition, memory):
            for keys, rows, places in _slices(chunk):
                values = rows
                failures, key_rows = Failures(), RowKeys(self.schema.key, keys, places, memory)
                if chosen is not None:
                    wanted = chosen(key_rows, values)
                    key_rows, values = key_rows.select(wanted), values.select(wanted)
                arrays = finish.arrays(pa, key_rows, values, memory, failures)
                table = make_table(pa, arrays, shape, failures)
                yield shown_rows(pa, table, self.judged_ms, self.hidden)

    def read_merged(self, pa: Any, storage: Storage) -> Any:
        """A table whose rows lie in parts, of all partitions together, row by row."""
        found, memory = MergedRows(self.definition, self.schema), Memory()
        for partition in self.partitions:
            for chunk in self.chunks(storage, partition, memory):
                for key, value in zip(chunk.keys.tolist(), chunk.values.tolist(), strict=True):
                    found.add(key, (value,))
        finish, judged_ms, hidden = compile_definition(self.definition), self.judged_ms, self.hidden
        there = [(key, value) for key, value in found.rows() if judged_ms is None or not has_passed(value, judged_ms)]
        there = there if hidden is None else [pair for pair in there if not hidden.hides(pair[0])]
        rows = [row for key, value in there if (row := finish(key, value)) is not None]
        return rows_table(pa, self.definition, rows, self.job, self.batch.batch)


def iter_partition(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, memory: Memory
) -> Iterable[RowChunk]:
    """The newest row of each key of a partition."""
    chunks = read_newest(reader, batch, store, partition, memory)
    return chunks if chunks is not None else iter_newest(read_chunks(reader, batch, store, partition))


def row_slices(sizes: Array) -> Iterator[tuple[int, int]]:
    """First and end of the pieces into which rows of these sizes are cut: an array can hold the texts of each."""
    count, first, ends = len(sizes), 0, sizes.cumsum()
    while first < count:
        before = int(ends[first - 1]) if first else 0
        end = min(count, first + _CHUNK_ROWS, max(first + 1, int(ends.searchsorted(before + _CHUNK_BYTES, "right"))))
        yield first, end
        first = end


def _slices(chunk: RowChunk) -> Iterator[tuple[Spans, Spans, Array | None]]:
    for first, end in row_slices(chunk.keys.size + chunk.values.size):
        places = None if chunk.places is None else chunk.places[first:end]
        yield chunk.keys.slice(first, end), chunk.values.slice(first, end), places

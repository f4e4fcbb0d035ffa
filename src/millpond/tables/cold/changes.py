"""What a range of batches did to the rows of one partition, straight from the checkpoint.

These are the changes that a replica with history shows, as Arrow: the same kinds, values and rows.

1. Read each batch's change file, and the state before the first batch.
2. Find the rows that each batch changed (`changed_rows`).
3. Judge why deleted rows were deleted.
4. Old and new rows become columns.  A row whose values are all the same, and one that HAVING hides
   before and after, is no change.

Memory holds the keys that the batches touch with their rows, and the unpacked files of one
partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millpond.checkpoint.bulk.partition import RowChunk, locate_file
from millpond.checkpoint.encoding import RowEncoding
from millpond.checkpoint.files.records import DELETE, PUT
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rows.columns import Array, Spans, span
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError, RequestError
from millpond.native.library import library
from millpond.native.memory import Memory
from millpond.replica.history.delete_cause import KINDS, Written, cause_of, judge_of, only_kind
from millpond.replica.keys.codec import KeyCodec
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.storage import Storage
from millpond.tables.cold.changed_rows import ChangedRows, Writes, iter_changed
from millpond.tables.cold.table_batch import iter_partition, row_slices
from millpond.tables.finish.columns import ColumnFinish, RowKeys
from millpond.tables.finish.definition import compile_shown
from millpond.tables.forms.arrow_errors import Failures

_INSERT, _UPDATE, _DELETE = (KINDS.index(kind) for kind in ("insert", "update", "delete"))


@dataclass(frozen=True, slots=True)
class ChangedColumns:
    """Changes of one batch in one partition, as Arrow arrays of one length.

    kinds:     insert, update, delete, expire, remove
    key:       an array for each key column
    old, new:  an array for each value column; NULL where there is no row
    has_old, has_new:  masks, whether there is a row; of numpy
    """

    batch: int
    kinds: Any
    key: list[Any]
    old: list[Any]
    new: list[Any]
    has_old: Array
    has_new: Array


def check_changeable(definition: TableDefinition, schema: StoreSchema) -> None:
    """Raise UNSUPPORTED if the changes of a table can't be read without a replica."""
    why = "lists of rows" if schema.many else "in parts" if definition.parts is not None else ""
    if why:
        raise CheckpointError(
            "UNSUPPORTED",
            f"The rows of {definition.table} lie {why}, whose changes can't be read from the checkpoint alone.",
            hint="Read its changes from a replica that keeps history.",
            table=definition.table,
        )


def iter_changes(
    pa: Any,
    storage: Storage,
    definition: TableDefinition,
    schema: StoreSchema,
    before: CommittedBatch | None,
    batches: Sequence[CommittedBatch],
    partition: int,
) -> Iterator[ChangedColumns]:
    """The changes of consecutive batches in one partition, batch by batch, each in one or several pieces.

    before:  the batch before the first one; None if that is the job's first
    Raises:  FILE_GONE if Spark cleaned up the files of one of them, and as `StateReader.iter_changes`;
             VALUE_OUT_OF_RANGE if a value can't be computed
    """
    reader = StateReader(storage)
    writes = [_read_writes(reader, batch, schema, partition) for batch in batches]  # 1
    if not any(len(each.gone) for each in writes):
        return
    state: Iterable[RowChunk] = () if before is None else iter_partition(reader, before, schema, partition, Memory())
    columns = _Columns(definition, schema)
    for batch, found in zip(batches, iter_changed(pa, writes, state), strict=True):  # 2
        yield from columns.iter_of(pa, batch, found)


def iter_inserts(
    pa: Any, definition: TableDefinition, schema: StoreSchema, batch: int, chunks: Iterable[RowChunk]
) -> Iterator[ChangedColumns]:
    """Rows of a state as if this batch had inserted them, piece by piece."""
    import numpy as np

    columns = _Columns(definition, schema)
    for chunk in chunks:
        count = len(chunk)
        none, places = np.full(count, -1), np.arange(count)
        yield from columns.iter_of(pa, batch, ChangedRows(chunk.keys, chunk.values, none, places, none, (chunk.keys, places)))


def _read_writes(reader: StateReader, batch: CommittedBatch, schema: StoreSchema, partition: int) -> Writes:
    import numpy as np

    path = reader.change_file(batch, schema, partition)
    spaces = RowEncoding(schema, batch.settings).before
    if path is not None and spaces is not None and library() is not None:
        hdfs = batch.settings.provider == "hdfs"
        family = reader.family(batch, schema, partition) if schema.family else b""
        chunk = locate_file(path, reader.unpacked(path, batch, schema), spaces, hdfs=hdfs, family=family)
        if chunk is not None:
            return Writes(chunk.keys, chunk.values, np.zeros(len(chunk), bool) if chunk.gone is None else chunk.gone)
    keys: list[bytes] = []
    values: list[bytes] = []
    gone: list[bool] = []
    for kind, key, value in reader.iter_changes(batch, schema, partition):
        if kind not in (PUT, DELETE):
            raise CheckpointError(
                "UNSUPPORTED",
                f"Batch {batch.batch} appends to rows of {schema.id}, whose changes can't be read from the checkpoint alone.",
                hint="Read the changes from a replica that keeps history.",
            )
        keys.append(key)
        values.append(value if kind == PUT else b"")
        gone.append(kind == DELETE)
    return Writes(span(keys), span(values), np.array(gone, bool))


class _Columns:
    """Makes columns of changes."""

    def __init__(self, definition: TableDefinition, schema: StoreSchema) -> None:
        self._table, self._schema = definition.table, schema
        self._keys = ColumnFinish(replace(definition, values=(), having=None))
        self._values = ColumnFinish(replace(definition, key=(), having=None))
        self._having = None if definition.having is None else compile_shown(definition, definition.having)
        self._decode_key, self._decode = decoder(schema.key), decoder(schema.value)
        self._codec, self._cause, self._only_kind = KeyCodec(schema.key), cause_of(schema), only_kind(schema)

    def iter_of(self, pa: Any, batch: CommittedBatch | int, found: ChangedRows) -> Iterator[ChangedColumns]:
        """The columns of a batch's changes, in pieces whose texts an array can hold.

        batch:  its number alone if it deleted nothing
        """
        import numpy as np

        hidden: Array = np.zeros(len(found.new), bool)
        if self._having is not None:
            found, hidden = self._without_hidden(found)
        number = batch if isinstance(batch, int) else batch.batch
        kinds = np.where(found.new < 0, _DELETE, np.where(found.old < 0, _INSERT, _UPDATE)).astype(np.int8)
        deleted = np.flatnonzero((found.new < 0) & ~hidden)
        if len(deleted) and not isinstance(batch, int):
            kinds[deleted] = self._why(batch, found, deleted)  # 3
        sizes = found.keys.size.copy()
        for side in (found.old, found.new):
            sizes[side >= 0] += found.rows.size[side[side >= 0]]
        for first, end in row_slices(sizes):
            old, new = found.old[first:end], found.new[first:end]
            yield self._piece(pa, number, kinds[first:end], found.keys.slice(first, end), found.rows, old, new)

    def _piece(self, pa: Any, number: int, kinds: Array, keys: Spans, rows: Spans, old: Array, new: Array) -> ChangedColumns:  # 4
        import numpy as np

        before, after = self._side(pa, keys, rows, old), self._side(pa, keys, rows, new)
        different = _different(pa, kinds == _UPDATE, before, after)
        if not different.all():
            chosen = np.flatnonzero(different)
            kinds, keys, old, new = kinds[chosen], keys.select(chosen), old[chosen], new[chosen]
            take = pa.array(chosen)
            before, after = [a.take(take) for a in before], [a.take(take) for a in after]
        failures = Failures()
        key = self._keys.arrays(pa, RowKeys(self._schema.key, keys), rows.select(np.where(new < 0, old, new)), None, failures)
        self._refuse(failures)
        names = pa.DictionaryArray.from_arrays(pa.array(kinds), pa.array(KINDS, pa.string())).dictionary_decode()
        return ChangedColumns(number, names, key, before, after, old >= 0, new >= 0)

    def _why(self, batch: CommittedBatch, found: ChangedRows, deleted: Array) -> Array:
        """The kinds of deleted rows."""
        import numpy as np

        only = "delete" if batch.is_repair else self._only_kind
        if only is not None:
            return np.full(len(deleted), KINDS.index(only), np.int8)

        def written() -> Written:
            keys, places = found.puts
            return zip(map(self._ordered, keys.tolist()), found.rows.select(places).tolist(), strict=True)

        judge = judge_of(self._cause, batch, written)
        keys, last = found.keys.select(deleted).tolist(), found.rows.select(found.last[deleted]).tolist()
        return np.array([KINDS.index(judge(self._ordered(key), row)) for key, row in zip(keys, last, strict=True)], np.int8)

    def _ordered(self, key: bytes) -> bytes:
        return self._codec.encode(self._decode_key(key))

    def _side(self, pa: Any, keys: Spans, rows: Spans, places: Array) -> list[Any]:
        """The value columns of one side, NULL where there is no row."""
        import numpy as np

        there, failures = places >= 0, Failures()
        some = None if there.all() else np.flatnonzero(there)
        chosen, wanted = (keys, places) if some is None else (keys.select(some), places[some])
        arrays = self._values.arrays(pa, RowKeys(self._schema.key, chosen), rows.select(wanted), None, failures)
        self._refuse(failures)
        if some is None:
            return arrays
        take = pa.array(np.cumsum(there) - 1, mask=~there)
        return [array.take(take) for array in arrays]

    def _without_hidden(self, found: ChangedRows) -> tuple[ChangedRows, Array]:
        """Changes between what HAVING shows; and a mask of those that it hides from now on."""
        import numpy as np

        keys = [self._decode_key(key) for key in found.keys.tolist()]
        old, new = self._shown(keys, found.rows, found.old), self._shown(keys, found.rows, found.new)
        chosen = np.flatnonzero((old >= 0) | (new >= 0))
        hidden: Array = (new < 0) & (found.new >= 0)
        shown = replace(found, keys=found.keys.select(chosen), old=old[chosen], new=new[chosen], last=found.last[chosen])
        return shown, hidden[chosen]

    def _shown(self, keys: list[tuple[Any, ...]], rows: Spans, places: Array) -> Array:
        """The places of rows that HAVING shows, -1 for others."""
        import numpy as np

        assert self._having is not None
        out, some = np.full(len(places), -1), np.flatnonzero(places >= 0)
        for at, place, row in zip(some.tolist(), places[some].tolist(), rows.select(places[some]).tolist(), strict=True):
            if self._having(keys[at], self._decode(row)) is True:
                out[at] = place
        return out

    def _refuse(self, failures: Failures) -> None:
        if failures.count:
            first = failures.first[0]
            raise RequestError(
                "VALUE_OUT_OF_RANGE",
                f"{first['column']} of {self._table} can't be computed for {failures.count} rows: {first['message']}",
                hint="Leave the column out, with the option `columns`.",
                table=self._table,
                column=first["column"],
            )


def _different(pa: Any, updates: Array, old: list[Any], new: list[Any]) -> Array:
    """A mask of the changes that show: all but updates to the same values."""
    import numpy as np
    from pyarrow import compute

    same: Array = updates.copy()
    # Nested values are compared one by one, so only where all others are the same.
    for before, after in sorted(zip(old, new, strict=True), key=lambda sides: pa.types.is_nested(sides[0].type)):
        if not same.any():
            break
        if pa.types.is_nested(before.type):
            some = np.flatnonzero(same)
            pairs = zip(*(side.take(pa.array(some)).to_pylist() for side in (before, after)), strict=True)
            same[some] = [left == right for left, right in pairs]
        else:
            equal = compute.fill_null(compute.equal(before, after), fill_value=False)
            equal = compute.or_(equal, compute.and_(compute.is_null(before), compute.is_null(after)))
            same &= equal.to_numpy(zero_copy_only=False)
    return ~same

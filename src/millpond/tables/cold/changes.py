"""What a range of batches did to the rows of one partition, straight from the checkpoint.

These are the changes that a replica with history shows, as Arrow: the same kinds, values and rows.

1. Read each batch's change file.  The last record of a key in a batch counts.
2. Read the state before the first batch, and keep the rows of the keys that the batches touch.
3. Batch by batch: the old value is that of the state before, and the batch's own value becomes the
   state.  A row that is written again with the same bytes is no change.
4. Old and new rows become columns.  A row whose values are all the same, and one that HAVING hides
   before and after, is no change.

Memory holds the keys that the batches touch with their rows, and the unpacked files of one
partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from millpond.checkpoint.bulk.partition import locate_file
from millpond.checkpoint.encoding import RowEncoding
from millpond.checkpoint.files.records import DELETE, PUT
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.rows.columns import span
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError, RequestError
from millpond.native.library import library
from millpond.native.memory import Memory
from millpond.replica.history.delete_cause import Kind, cause_of
from millpond.replica.keys.codec import KeyCodec
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.storage import Storage
from millpond.tables.cold.table_batch import iter_partition
from millpond.tables.finish.columns import ColumnFinish, RowKeys
from millpond.tables.finish.definition import compile_shown
from millpond.tables.forms.arrow_errors import Failures

Puts = list[tuple[bytes, bytes]]
"""(key row, value row)"""


@dataclass(frozen=True, slots=True)
class ChangedColumns:
    """The changes of one batch in one partition, as Arrow arrays of one length.

    kinds:     insert, update, delete, expire, remove
    key:       an array for each key column
    old, new:  an array for each value column; NULL where there is no row
    has_old, has_new:  whether there is a row
    """

    batch: int
    kinds: list[Kind]
    key: list[Any]
    old: list[Any]
    new: list[Any]
    has_old: list[bool]
    has_new: list[bool]


class _Change(NamedTuple):
    key: bytes
    old: bytes | None
    new: bytes | None


@dataclass(slots=True)
class _Writes:
    """What one batch wrote: the last value of each key, None if it was deleted; and all its puts."""

    last: dict[bytes, bytes | None] = field(default_factory=dict)
    puts: Puts = field(default_factory=list)


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
    """The changes of consecutive batches in one partition, batch by batch.

    before:  the batch before the first one; None if that is the job's first
    Raises:  FILE_GONE if Spark cleaned up the files of one of them, and as `StateReader.iter_changes`;
             VALUE_OUT_OF_RANGE if a value can't be computed
    """
    reader = StateReader(storage)
    writes = [_read_writes(reader, batch, schema, partition) for batch in batches]  # 1
    touched = {key for each in writes for key in each.last}
    if not touched:
        return
    state: dict[bytes, bytes] = {}
    if before is not None:  # 2
        for chunk in iter_partition(reader, before, schema, partition, Memory()):
            for key, value in zip(chunk.keys.tolist(), chunk.values.tolist(), strict=True):
                if key in touched:
                    state[key] = value
    columns = _Columns(definition, schema)
    for batch, each in zip(batches, writes, strict=True):  # 3
        changes: list[_Change] = []
        for key, new in each.last.items():
            old = state.get(key)
            if old != new:
                changes.append(_Change(key, old, new))
            if new is None:
                state.pop(key, None)
            else:
                state[key] = new
        if changes:
            yield columns.of(pa, batch, changes, each.puts)  # 4


def insert_columns(pa: Any, definition: TableDefinition, schema: StoreSchema, batch: int, rows: Puts) -> ChangedColumns:
    """Rows of a state as if this batch had inserted them."""
    changes = [_Change(key, None, value) for key, value in rows]
    return _Columns(definition, schema).of(pa, batch, changes, [])


def _read_writes(reader: StateReader, batch: CommittedBatch, schema: StoreSchema, partition: int) -> _Writes:
    found = _Writes()
    path = reader.change_file(batch, schema, partition)
    spaces = RowEncoding(schema, batch.settings).before
    chunk = None
    if path is not None and spaces is not None and library() is not None:
        hdfs = batch.settings.provider == "hdfs"
        family = reader.family(batch, schema, partition) if schema.family else b""
        chunk = locate_file(path, reader.unpacked(path, batch, schema), spaces, hdfs=hdfs, family=family)
    records = reader.iter_changes(batch, schema, partition) if chunk is None else chunk.records()
    for kind, key, value in records:
        if kind == PUT:
            found.last[key] = value
            found.puts.append((key, value))
        elif kind == DELETE:
            found.last[key] = None
        else:
            raise CheckpointError(
                "UNSUPPORTED",
                f"Batch {batch.batch} appends to rows of {schema.id}, whose changes can't be read from the checkpoint alone.",
                hint="Read the changes from a replica that keeps history.",
            )
    return found


class _Columns:
    """Makes columns of changes."""

    def __init__(self, definition: TableDefinition, schema: StoreSchema) -> None:
        self._table, self._schema = definition.table, schema
        self._keys = ColumnFinish(replace(definition, values=(), having=None))
        self._values = ColumnFinish(replace(definition, key=(), having=None))
        self._having = None if definition.having is None else compile_shown(definition, definition.having)
        self._decode_key, self._decode = decoder(schema.key), decoder(schema.value)
        self._codec, self._cause = KeyCodec(schema.key), cause_of(schema)

    def of(self, pa: Any, batch: CommittedBatch | int, changes: list[_Change], puts: Puts) -> ChangedColumns:
        number = batch if isinstance(batch, int) else batch.batch
        if self._having is not None:
            changes, hidden = self._without_hidden(changes)
        else:
            hidden = set()
        started_ms = 0 if isinstance(batch, int) else batch.started_ms
        judge = self._cause(started_ms, lambda: [(self._ordered(key), value) for key, value in puts])
        # A deleted row is judged by its last value, which this batch may have put.
        last = dict(puts) if any(change.new is None for change in changes) else {}
        kinds: list[Kind] = []
        for place, change in enumerate(changes):
            if change.new is None:
                assert change.old is not None
                kinds.append("delete" if place in hidden else judge(self._ordered(change.key), last.get(change.key, change.old)))
            else:
                kinds.append("insert" if change.old is None else "update")
        old, new = self._side(pa, changes, 1), self._side(pa, changes, 2)
        kept = _different(pa, kinds, old, new)
        if len(kept) < len(changes):
            take = pa.array(kept, pa.int64())
            changes, kinds = [changes[i] for i in kept], [kinds[i] for i in kept]
            old, new = [a.take(take) for a in old], [a.take(take) for a in new]
        failures = Failures()
        key_rows, rows = span([c.key for c in changes]), span([c.new or c.old or b"" for c in changes])
        key = self._keys.arrays(pa, RowKeys(self._schema.key, key_rows), rows, None, failures)
        self._refuse(failures)
        has_old, has_new = [c.old is not None for c in changes], [c.new is not None for c in changes]
        return ChangedColumns(number, kinds, key, old, new, has_old, has_new)

    def _ordered(self, key: bytes) -> bytes:
        return self._codec.encode(self._decode_key(key))

    def _side(self, pa: Any, changes: list[_Change], side: int) -> list[Any]:
        """The value columns of one side, NULL where there is no row."""
        there = [c for c in changes if c[side] is not None]
        failures = Failures()
        keys = RowKeys(self._schema.key, span([c.key for c in there]))
        arrays = self._values.arrays(pa, keys, span([c[side] for c in there]), None, failures)  # type: ignore[misc]
        self._refuse(failures)
        if len(there) == len(changes):
            return arrays
        places, count = [], 0
        for change in changes:
            places.append(None if change[side] is None else count)
            count += change[side] is not None
        take = pa.array(places, pa.int64())
        return [array.take(take) for array in arrays]

    def _without_hidden(self, changes: list[_Change]) -> tuple[list[_Change], set[int]]:
        """Changes between what HAVING shows; and the places of those that it hides from now on."""
        assert self._having is not None
        kept: list[_Change] = []
        hidden: set[int] = set()
        for change in changes:
            key = self._decode_key(change.key)
            sides = [
                None if row is None or self._having(key, self._decode(row)) is not True else row for row in (change.old, change.new)
            ]
            if sides == [None, None]:
                continue
            if sides[1] is None and change.new is not None:
                hidden.add(len(kept))
            kept.append(_Change(change.key, *sides))
        return kept, hidden

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


def _different(pa: Any, kinds: list[Kind], old: list[Any], new: list[Any]) -> list[int]:
    """The places of changes that show: all but updates to the same values."""
    from pyarrow import compute

    if "update" not in kinds:
        return list(range(len(kinds)))
    same = pa.array([kind == "update" for kind in kinds])
    for before, after in zip(old, new, strict=True):
        if pa.types.is_nested(before.type):
            pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
            equal = pa.array([left == right for left, right in pairs], pa.bool_())
        else:
            equal = compute.fill_null(compute.equal(before, after), fill_value=False)
            equal = compute.or_(equal, compute.and_(compute.is_null(before), compute.is_null(after)))
        same = compute.and_(same, equal)
    return [i for i, is_same in enumerate(same.to_pylist()) if not is_same]

"""Edit a savepoint: a new one, whose rows a user's function has changed, or whose position has moved.

A function gets each row of the tables that are to be edited, and returns the row that takes its
place, or None to remove it.  Rows that have the same key afterwards are merged by a second
function.  The rows of state that only Spark needs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.checkpoint.log import read_batch, with_offsets, with_watermark
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole_rows import Columns, FamilyCodec, StoreCodec
from millpond.checkpoint.whole_store import read_whole_stores
from millpond.errors import CheckpointError, RequestError
from millpond.savepoint.change.new_savepoint import make_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.restore import read_tables
from millpond.savepoint.rewrite.rewrite import count_edited
from millpond.savepoint.rewrite.row_edit import Row, RowEdit
from millpond.savepoint.rewrite.row_values import NamedColumns, call_user, wrong
from millpond.savepoint.rewrite.twins import BY_KEY, EXPIRES, family_beside, has_expiry, rows_beside
from millpond.savepoint.threads import Progress
from millpond.schema.far_time import write_millis
from millpond.settings import FileBounds
from millpond.storage import Storage

_BOUNDS = FileBounds()
_SAMPLES = 5
# Operators that keep nothing else of a key, so that the key may change.
_MAY_MOVE = frozenset({"stateStoreSave", "dedupe", "dedupeWithinWatermark", "applyInPandasWithState", "flatMapGroupsWithState"})

Json = Any


@dataclass(slots=True)
class StateRow:
    """One row of a job's state, for a function that edits it.

    table:  the name of its table
    key:    column -> value, in the form in which reads give values
    value:  the same; of a list of transformWithState, a list of such dicts
    """

    table: str
    key: dict[str, Any]
    value: Any


Edit = Callable[[StateRow], "StateRow | None"]
Merge = Callable[[StateRow, StateRow], StateRow]


@dataclass(frozen=True, slots=True)
class EditedTable:
    """A table whose rows are to be edited: its name, and where Spark keeps it."""

    name: str
    operator: int
    store: str
    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditSample:
    """A row that an edit changes.

    table:   of the row
    before:  its key and value as JSON, {"key": {column: value}, "value": …}
    after:   the same after the edit; None if the row is removed
    """

    table: str
    before: dict[str, Json]
    after: dict[str, Json] | None


@dataclass(slots=True, kw_only=True)
class EditCounts:
    """What an edit does to the rows of a table.

    rows:     before
    changed:  get another value or key
    removed:  are removed
    merged:   vanish because another row has the same key now
    samples:  the first rows that change
    """

    rows: int = 0
    changed: int = 0
    removed: int = 0
    merged: int = 0
    samples: list[EditSample] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPlan:
    """A savepoint that isn't edited yet.

    savepoint:     the one that it begins with
    name, note:    of the new savepoint
    root:          the folder of all savepoints
    tables:        whose rows are edited
    edit, merge:   the user's functions
    offsets:       source -> the end offset that it gets; other sources keep theirs
    watermark_ms:  the watermark of the next batch; None: as it was
    """

    savepoint: Savepoint
    name: str
    note: str
    root: Storage
    tables: tuple[EditedTable, ...]
    edit: Edit | None
    merge: Merge | None
    offsets: Mapping[str, Any]
    watermark_ms: int | None

    def describe(self) -> str:
        """What will be done, in a few lines; no row is read."""
        manifest = self.savepoint.manifest
        moved = [
            f"offset      of source {name}: {manifest.offsets[name]!r:.200} becomes {offset!r:.200}"
            for name, offset in self.offsets.items()
        ]
        if self.watermark_ms is not None:
            before = "none" if manifest.watermark_ms is None else write_millis(manifest.watermark_ms)
            moved.append(f"watermark   {before} becomes {write_millis(self.watermark_ms)}")
        return "\n".join(
            [
                f"savepoint   {manifest.name} of the job {manifest.job}, batch {manifest.batch}, which stays as it is",
                f"to          {self.root.uri}/{self.name}",
                f"tables      {', '.join(table.name for table in self.tables) or 'their rows stay as they are'}",
                *moved,
            ]
        )

    def preview(self) -> dict[str, EditCounts]:
        """What happens to the rows of each table.  Every row is read and edited, none is written.

        Raises:  as `run`.
        """
        storage = self.savepoint.checkpoint
        batch = read_batch(storage, Batch(self.savepoint.manifest.batch))
        counts: dict[str, EditCounts] = {}
        edits = {(edit.operator, edit.store): edit for edit in self._edits()}
        for operator in read_operator_files(storage, batch.batch):
            for store in read_whole_stores(storage, operator):
                edit = edits.get((operator.operator, store.name))
                if edit is not None:
                    count_edited(storage, batch, store, edit)
                    counts |= edit.counts
        return counts

    def run(self, progress: Progress | None = None) -> Savepoint:
        """Make it.

        Raises:  INVALID_REQUEST if a function raises, gives something else than a row, or gives two
                 rows the same key without `merge`; WRONG_TYPE for a value that its column can't
                 have; UNSUPPORTED for rows that can't be edited; SAVEPOINT_EXISTS,
                 SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, NOT_WRITABLE, what the storages raise.
        """
        return make_savepoint(
            self.savepoint,
            self.root,
            self.name,
            note=self.note,
            tables=read_tables(self.savepoint.manifest),
            edits=self._edits(),
            also=self._move,
            progress=progress,
        )

    def _edits(self) -> list[_StoreEdit]:
        names = self.savepoint.manifest.operators
        stores: dict[tuple[int, str], dict[str, str]] = {}
        for table in self.tables:
            stores.setdefault((table.operator, table.store), {})[table.family] = table.name
        if self.edit is None:
            return []
        return [
            _StoreEdit(operator, store, tables, self.edit, self.merge, may_move=names.get(operator) in _MAY_MOVE)
            for (operator, store), tables in stores.items()
        ]

    def _move(self, target: Storage) -> None:
        """Write the position into the new checkpoint."""
        batch = self.savepoint.manifest.batch
        if self.offsets or self.watermark_ms is not None:
            path = f"offsets/{batch}"
            target.write(path, with_offsets(target.read(path, _BOUNDS.log_bytes), path, self.offsets, self.watermark_ms))
        if self.watermark_ms is not None:
            path = f"commits/{batch}"
            target.write(path, with_watermark(target.read(path, _BOUNDS.log_bytes), path, self.watermark_ms))


class _StoreEdit(RowEdit):
    """A `RowEdit` by the user's functions.

    tables:    column family -> the name of its table; rows of others stay as they are
    may_move:  whether a row may get another key
    """

    def __init__(
        self, operator: int, store: str, tables: Mapping[str, str], edit: Edit, merge: Merge | None, *, may_move: bool
    ) -> None:
        self.operator, self.store = operator, store
        self.counts = {table: EditCounts() for table in tables.values()}
        self._tables, self._edit, self._merge, self._may_move = tables, edit, merge, may_move
        self._open: dict[str, _TableRows] = {}

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        for row in rows:
            table = self._table(row[0], codec)
            if table is None:
                if family_beside(codec.family_of(row[0])) not in self._tables:
                    yield row  # else it is made anew from the edited rows
                continue
            counts = self.counts[table.name]
            counts.rows += 1
            after = self._call("The edit", table, row, self._edit, table.read(row))
            if after is None:
                counts.removed += 1
                self._sample(counts, table, row, None)
                continue
            edited = table.write(after, row)
            if edited is None:
                counts.removed += 1
            elif edited != row:
                counts.changed += 1
                if edited[0] != row[0] and not self._may_move and not table.is_same_timer(edited, row):
                    raise _refused(
                        f"A row of {table.name} gets another key, and Spark keeps more than this row under its key.",
                        "Leave its key as it is.",
                    )
            if edited != row:
                self._sample(counts, table, row, after)
            if edited is not None:
                yield edited
                yield from table.beside(edited)

    def merge(self, rows: list[Row], codec: StoreCodec) -> Row:
        table = self._table(rows[0][0], codec)
        if table is None:
            return rows[0]  # a row beside timers that are one now
        if table.is_of_timers:
            self.counts[table.name].merged += len(rows) - 1
            return rows[0]
        merged = table.read(rows[0])
        if self._merge is None:
            raise RequestError(
                "INVALID_REQUEST",
                f"{len(rows)} rows of {table.name} have the same key after the edit: {merged.key!r:.300}.",
                hint="Give a function that merges two rows into one.",
            )
        for row in rows[1:]:
            found = self._call("The merge", table, rows[0], self._merge, merged, table.read(row))
            if found is None:
                raise wrong(f"The merge of two rows of {table.name} gives None", "Return the row that takes the place of both.")
            merged = found
        self.counts[table.name].merged += len(rows) - 1
        written = table.write(merged, rows[0])
        if written is None or written[0] != rows[0][0]:
            raise wrong(f"The merge of two rows of {table.name} gives another key", "Leave the key as it is.")
        return written

    def _table(self, key: bytes, codec: StoreCodec) -> _TableRows | None:
        family = codec.family_of(key)
        if family not in self._tables:
            return None
        if family not in self._open:
            self._open[family] = _TableRows(self._tables[family], codec, family)
        return self._open[family]

    def _call(self, what: str, table: _TableRows, row: Row, function: Callable[..., Any], *rows: StateRow) -> StateRow | None:
        # The row is read again: the function may have changed what it got.
        found = call_user(lambda: f"{what} of {table.name}, key {table.read(row).key!r:.200},", function, *rows)
        if found is not None and not isinstance(found, StateRow):
            raise wrong(f"{what} of {table.name} gives {type(found).__name__}", "Return the row, a StateRow, or None.")
        return found

    def _sample(self, counts: EditCounts, table: _TableRows, row: Row, after: StateRow | None) -> None:
        if len(counts.samples) < _SAMPLES:
            before = table.to_json(table.read(row))
            counts.samples.append(
                EditSample(table=table.name, before=before, after=None if after is None else table.to_json(after))
            )


class _TableRows:
    """Rows of one table, between bytes and `StateRow`."""

    def __init__(self, name: str, store: StoreCodec, family: str) -> None:
        self.name = name
        self.is_of_timers = family.endswith(BY_KEY)
        self._store, self._family = store, family
        self._codec: FamilyCodec = store.of(family)
        self._expires = has_expiry(store, family)
        self._key = NamedColumns(self._codec.schema.key, name)
        self._value = NamedColumns(self._codec.schema.value, name)

    def read(self, row: Row) -> StateRow:
        key, value = self._codec.read_key(row[0]), [self._value.read(v) for v in self._codec.read_value(row[1])]
        return StateRow(self.name, self._key.read(key), value if self._codec.is_list else value[0])

    def write(self, row: StateRow, before: Row) -> Row | None:
        """The row's bytes; None for a list without elements."""
        if row.table != self.name:
            raise wrong(f"A row of {self.name} becomes one of {row.table!r:.80}", "Leave its table as it is.")
        key_before = self._codec.read_key(before[0])
        key = self._key.write(row.key, key_before)
        elements, was = row.value if self._codec.is_list else [row.value], self._codec.read_value(before[1])
        if not isinstance(elements, list):
            raise wrong(f"The value of a row of {self.name} isn't a list", "Give a list of dicts.")
        if not elements:
            return None
        stored = [self._value.write(v, was[i] if i < len(was) else None) for i, v in enumerate(elements)]
        if self._expires and any(element[-1] is None for element in stored):
            raise wrong(f"A row of {self.name} has no time at which it expires", f"Give {EXPIRES} in milliseconds since 1970.")
        return (
            before[0] if _is_same(key, key_before) else self._codec.write_key(key),
            # A row in Avro may have been written by an older schema.
            before[1] if len(stored) == len(was) and all(map(_is_same, stored, was)) else self._codec.write_value(stored),
        )

    def is_same_timer(self, edited: Row, before: Row) -> bool:
        """Whether two rows are timers of the same key, so that only the time may differ."""
        return self.is_of_timers and self._codec.read_key(edited[0])[0] == self._codec.read_key(before[0])[0]

    def beside(self, row: Row) -> Iterator[Row]:
        """The rows that Spark keeps beside it."""
        return rows_beside(self._store, self._family, self._codec.read_key(row[0]), self._codec.read_value(row[1]))

    def to_json(self, row: StateRow) -> dict[str, Json]:
        values = [self._value.to_json(v) for v in row.value] if self._codec.is_list else self._value.to_json(row.value)
        return {"key": self._key.to_json(row.key), "value": values}


def _is_same(columns: Columns, before: Columns) -> bool:
    """Whether `NamedColumns.write` found no change."""
    return all(column is was for column, was in zip(columns, before, strict=True))


def check_editable(table: EditedTable, operator_name: str, *, is_known: bool) -> None:
    """Raise UNSUPPORTED if the rows of a table can't be edited alone.

    is_known:  whether Millpond knows the operator
    """
    if not is_known or operator_name == "symmetricHashJoin":
        raise _refused(f"{table.name} is state of {operator_name}, whose rows belong together.", "Name the tables to edit.")


def _refused(message: str, hint: str) -> CheckpointError:
    return CheckpointError("UNSUPPORTED", message, hint=hint)

"""Edit a savepoint: a new one, whose rows a user's function has changed, or whose position has moved.

A function gets each row of the tables that are to be edited, and returns the row that takes its
place, or None to remove it.  Rows that have the same key afterwards are merged by a second
function.  The rows of state that only Spark needs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.checkpoint.log import read_batch, with_offsets, with_watermark
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole_rows import COUNTER, Columns, FamilyCodec, StoreCodec
from millpond.checkpoint.whole_store import read_whole_stores
from millpond.errors import CheckpointError, MillpondError, RequestError
from millpond.savepoint.change.new_savepoint import make_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.restore import read_tables
from millpond.savepoint.rewrite.rewrite import count_edited
from millpond.savepoint.rewrite.row_edit import Row
from millpond.savepoint.threads import Progress
from millpond.schema.convert import to_python, to_stored
from millpond.schema.definition.table import unique_names
from millpond.schema.far_time import write_millis
from millpond.schema.types import Field
from millpond.schema.values import to_json
from millpond.settings import FileBounds
from millpond.storage import Storage

_BOUNDS = FileBounds()
_SAMPLES = 5
_NESTED = frozenset({"struct", "array", "map"})
# Equal values of these are the same to the bit.
_EXACT = frozenset({int, str, bytes, bool})
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


class _StoreEdit:
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
                if codec.family_of(row[0]).removeprefix(COUNTER) not in self._tables:
                    yield row  # else the edited list counts its elements itself
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
                if edited[0] != row[0] and not self._may_move:
                    raise _refused(
                        f"A row of {table.name} gets another key, and Spark keeps more than this row under its key.",
                        "Leave its key as it is.",
                    )
            if edited != row:
                self._sample(counts, table, row, after)
            if edited is not None:
                yield edited
                yield from table.counters(edited)

    def last(self, codec: StoreCodec) -> Iterable[Row]:  # noqa: ARG002
        return ()

    def merge(self, rows: list[Row], codec: StoreCodec) -> Row:
        table = self._table(rows[0][0], codec)
        assert table is not None
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
                raise _wrong(f"The merge of two rows of {table.name} gives None", "Return the row that takes the place of both.")
            merged = found
        self.counts[table.name].merged += len(rows) - 1
        written = table.write(merged, rows[0])
        if written is None or written[0] != rows[0][0]:
            raise _wrong(f"The merge of two rows of {table.name} gives another key", "Leave the key as it is.")
        return written

    def _table(self, key: bytes, codec: StoreCodec) -> _TableRows | None:
        family = codec.family_of(key)
        if family not in self._tables:
            return None
        if family not in self._open:
            counter = codec.of(COUNTER + family) if codec.has(COUNTER + family) else None
            self._open[family] = _TableRows(self._tables[family], codec.of(family), counter)
        return self._open[family]

    def _call(self, what: str, table: _TableRows, row: Row, function: Callable[..., Any], *rows: StateRow) -> StateRow | None:
        try:
            found = function(*rows)
        except (MillpondError, KeyboardInterrupt):
            raise
        except Exception as error:
            ended = f"ends with {type(error).__name__}: {error!s:.300}"
            # Read again: the function may have changed what it got.
            key = table.read(row).key
            raise _wrong(f"{what} of {table.name}, key {key!r:.200}, {ended}", "Mend it, and try again.") from error
        if found is not None and not isinstance(found, StateRow):
            raise _wrong(f"{what} of {table.name} gives {type(found).__name__}", "Return the row, a StateRow, or None.")
        return found

    def _sample(self, counts: EditCounts, table: _TableRows, row: Row, after: StateRow | None) -> None:
        if len(counts.samples) < _SAMPLES:
            before = table.to_json(table.read(row))
            counts.samples.append(
                EditSample(table=table.name, before=before, after=None if after is None else table.to_json(after))
            )


class _Columns:
    """Columns of a key or a value, under names of their own."""

    def __init__(self, fields: Sequence[Field], table: str) -> None:
        self._table = table
        self.names = unique_names([f.name for f in fields])
        self._fields = list(fields)
        self._read = [to_python(f.type) for f in fields]
        self._write = [to_stored(f.type, column=name) for name, f in zip(self.names, fields, strict=True)]
        self._json = [to_json(f.type) for f in fields]

    def read(self, stored: Columns) -> dict[str, Any]:
        return {name: read(value) for name, read, value in zip(self.names, self._read, stored, strict=True)}

    def write(self, row: Any, before: Columns | None) -> Columns:
        """Stored form; what didn't change keeps the form that it had, to the bit."""
        if not isinstance(row, dict) or row.keys() != set(self.names):
            hint = f"Give a dict of exactly: {', '.join(self.names)}."
            raise _wrong(f"A row of {self._table} has other columns: {row!r:.200}", hint)
        out = []
        for i, (name, of) in enumerate(zip(self.names, self._fields, strict=True)):
            value = row[name]
            if before is not None and _same(value, self._read[i](before[i]), is_nested=of.type.kind in _NESTED):
                out.append(before[i])
                continue
            if value is None and not of.nullable:
                raise RequestError("WRONG_TYPE", f"{name} of {self._table} can't be NULL.", hint="Give a value.", column=name)
            out.append(self._write[i](value))
        return tuple(out)

    def to_json(self, row: Mapping[str, Any]) -> dict[str, Json]:
        return {name: write(row[name]) for name, write in zip(self.names, self._json, strict=True)}


def _same(value: Any, before: Any, *, is_nested: bool) -> bool:
    if is_nested:
        return bool(value == before)
    # -0.0 is another value than 0.0, True than 1, and NaN is the same as NaN.
    if type(value) is not type(before):
        return False
    return bool(value == before) if type(value) in _EXACT else value is before or repr(value) == repr(before)


class _TableRows:
    """Rows of one table, between bytes and `StateRow`."""

    def __init__(self, name: str, codec: FamilyCodec, counter: FamilyCodec | None) -> None:
        self.name = name
        self._codec, self._counter = codec, counter
        self._key = _Columns(codec.schema.key, name)
        self._value = _Columns(codec.schema.value, name)

    def read(self, row: Row) -> StateRow:
        key, value = self._codec.read_key(row[0]), [self._value.read(v) for v in self._codec.read_value(row[1])]
        return StateRow(self.name, self._key.read(key), value if self._codec.is_list else value[0])

    def write(self, row: StateRow, before: Row) -> Row | None:
        """The row's bytes; None for a list without elements."""
        if row.table != self.name:
            raise _wrong(f"A row of {self.name} becomes one of {row.table!r:.80}", "Leave its table as it is.")
        key = self._key.write(row.key, self._codec.read_key(before[0]))
        elements, was = row.value if self._codec.is_list else [row.value], self._codec.read_value(before[1])
        if not isinstance(elements, list):
            raise _wrong(f"The value of a row of {self.name} isn't a list", "Give a list of dicts.")
        if not elements:
            return None
        stored = [self._value.write(v, was[i] if i < len(was) else None) for i, v in enumerate(elements)]
        return self._codec.write_key(key), self._codec.write_value(stored)

    def counters(self, row: Row) -> Iterator[Row]:
        """The row in which Spark counts the elements of a list."""
        if self._counter is not None and self._codec.is_list:
            elements = len(self._codec.read_value(row[1]))
            yield self._counter.write_key(self._codec.read_key(row[0])), self._counter.write_value([(elements,)])

    def to_json(self, row: StateRow) -> dict[str, Json]:
        values = [self._value.to_json(v) for v in row.value] if self._codec.is_list else self._value.to_json(row.value)
        return {"key": self._key.to_json(row.key), "value": values}


def check_editable(table: EditedTable, operator_name: str, families: Iterable[str], *, is_known: bool) -> None:
    """Raise UNSUPPORTED if the rows of a table can't be edited alone.

    families:  all column families of its store
    is_known:  whether Millpond knows the operator
    """
    if not is_known or operator_name == "symmetricHashJoin":
        raise _refused(f"{table.name} is state of {operator_name}, whose rows belong together.", "Name the tables to edit.")
    twins = sorted(name for name in families if name in {f"${what}_{table.family}" for what in ("ttl", "min", "count")})
    if table.family.startswith("$"):
        raise _refused(f"{table.name} has timers, which Spark keeps in two orders.", "Name the tables to edit.")
    if twins:
        raise _refused(
            f"{table.name} has a TTL, for which Spark keeps other rows ({', '.join(twins):.200}).", "Name the tables to edit."
        )


def _refused(message: str, hint: str) -> CheckpointError:
    return CheckpointError("UNSUPPORTED", message, hint=hint)


def _wrong(what: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"{what}.", hint=hint)

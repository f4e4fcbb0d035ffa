"""`changes('t', 41)` and `history('t')` in FROM: what happened to the rows of a table, and all their versions.

Both have the table's own columns, and a few whose names begin with `_`.  They are read a piece at a
time, in the view that the statement reads all tables of the job in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from millpond.errors import RequestError
from millpond.replica.scan import iter_range
from millpond.schema.definition.table import TableDefinition
from millpond.tables.forms.arrow import pyarrow, rows_table, table_schema
from millpond.tables.history.changes import RowChange, check_history, iter_row_changes
from millpond.tables.history.versions import Version, read_versions
from millpond.tables.job.as_of import batch_of
from millpond.tables.scan.arrow_rows import with_columns
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.sql.reading.access import Access, choose_access
from millpond.tables.sql.reading.filters import parse_filter
from millpond.tables.sql.reading.order import Hint, Unordered
from millpond.tables.sql.reading.scan import TableRead, check_names, check_values, noting

if TYPE_CHECKING:
    from millpond.tables.sql.statement import TableName
    from millpond.tables.table import Table

_PIECE_ROWS = 1 << 12
_BEFORE_ALL = -1
Values = dict[str, Any]


class PastScans:
    """The reads of a function in FROM: see `dataset.Relation`."""

    sortable: Collection[str] = ()

    def __init__(self, table: Table, name: TableName, reads: list[TableRead], failed: list[Exception], *, is_dry: bool) -> None:
        """Scans that note how they read, and their error.

        Raises:  HISTORY_GONE if no history of the table is kept; WRONG_TYPE.
        """
        self._table, self._name, self._reads, self._failed, self._is_dry = table, name, reads, failed, is_dry
        pa = pyarrow()
        with table.begin() as read:
            self._definition = read.binding.definition
            check_history(read)
        check_names(self._definition)
        own = table_schema(pa, self._definition, table.job, 0).remove_metadata()
        self._own = own
        more = _change_fields(pa, own) if name.function == "changes" else _version_fields(pa)
        for field in more:
            if field.name.lower() in map(str.lower, own.names):
                raise RequestError(
                    "WRONG_TYPE",
                    f"{table.name} has a column {field.name}, as {name.function}() has.",
                    hint=f"Read it by `{name.function}` of the table.",
                    table=table.name,
                )
        self.schema = pa.schema([*own, *more])

    def batches(self, names: Collection[str], condition: bytes | None, hint: Hint) -> Iterator[Any]:
        """See `dataset.Relation`."""
        pa, table = pyarrow(), self._table
        wanted = [name for name in self.schema.names if name in names]
        with noting(self._failed), table.begin() as read:
            if hint.order is not None:
                raise Unordered
            found = parse_filter(pa, condition)
            is_history = self._name.function == "history"
            access = choose_access(read.binding, table.key_reader, found.conditions)
            how = f"history, {access}" if is_history else "changes"
            noted = TableRead(self._name.name, how, tuple(wanted))
            self._reads.append(noted)
            if self._is_dry:
                return
            pieces = self._history(pa, read, access, wanted) if is_history else self._changes(pa, read, wanted)
            for piece in pieces:
                noted.rows += len(piece)
                yield piece

    def _changes(self, pa: Any, read: OpenRead, wanted: list[str]) -> Iterator[Any]:
        assert self._name.since is not None
        since = batch_of(read.view, self._name.since)
        until = read.view.record.batch if self._name.until is None else batch_of(read.view, self._name.until)
        found = takewhile(lambda change: change.batch <= until, iter_row_changes(read, since))
        while some := list(islice(self._table.deadline().watch(found), _PIECE_ROWS)):
            made = {name: _change_column(pa, self.schema.field(name).type, name, some) for name in wanted if name in _OF_CHANGES}
            if "_old" in wanted:
                made["_old"] = self._structs(pa, [change.old for change in some], [change.row for change in some])
            yield self._batch(pa, wanted, [change.row for change in some], made)

    def _history(self, pa: Any, read: OpenRead, access: Access, wanted: list[str]) -> Iterator[Any]:
        since = check_history(read) - 1 if self._name.since is None else batch_of(read.view, self._name.since)
        until = read.view.record.batch if self._name.until is None else batch_of(read.view, self._name.until)
        for span in _pieces(read, access.spans):
            found = list(read_versions(read, span, since, until, None, self._table.deadline()))
            for begin in range(0, len(found), _PIECE_ROWS):
                some = found[begin : begin + _PIECE_ROWS]
                more = (name for name in wanted if name in _OF_VERSIONS)
                made = {name: _version_column(pa, self.schema.field(name).type, name, some) for name in more}
                yield self._batch(pa, wanted, [version.row for version in some], made)

    def _batch(self, pa: Any, wanted: Sequence[str], rows: list[Values], made: dict[str, Any]) -> Any:
        """A record batch of these columns of rows, with others that are made already."""
        own = self._columns(pa, with_columns(self._definition, [name for name in wanted if name not in made]), rows)
        shape = pa.schema([self.schema.field(name) for name in wanted])
        return pa.RecordBatch.from_arrays([made[name] if name in made else own[name] for name in wanted], schema=shape)

    def _structs(self, pa: Any, rows: list[Values | None], others: list[Values]) -> Any:
        """Rows as structs; a missing row is NULL, whatever stands in the other list."""
        columns = self._columns(
            pa, self._definition, [other if row is None else row for row, other in zip(rows, others, strict=True)]
        )
        missing = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays([columns[name] for name in self._own.names], fields=list(self._own), mask=missing)

    def _columns(self, pa: Any, definition: TableDefinition, rows: list[Values]) -> dict[str, Any]:
        if not definition.columns:
            return {}
        table = rows_table(pa, definition, rows, self._table.job, 0)
        check_values(table, self._table.name)
        return {name: pa.concat_arrays(table.column(name).chunks) for name in definition.columns}


_OF_CHANGES = {"_batch": "batch", "_first_batch": "first_batch", "_kind": "kind", "_repaired": "repaired"}
_OF_VERSIONS = {
    "_kind": "kind",
    "_batch": "batch",
    "_until_batch": "until_batch",
    "_committed_at": "committed_ms",
    "_until_at": "until_ms",
}


def _change_fields(pa: Any, own: Any) -> list[Any]:
    types = {
        "_batch": pa.int64(),
        "_first_batch": pa.int64(),
        "_kind": pa.string(),
        "_repaired": pa.bool_(),
        "_old": pa.struct(list(own)),
    }
    return [pa.field(name, type_) for name, type_ in types.items()]


def _version_fields(pa: Any) -> list[Any]:
    moment = pa.timestamp("us", tz="UTC")
    types = {"_kind": pa.string(), "_batch": pa.int64(), "_until_batch": pa.int64(), "_committed_at": moment, "_until_at": moment}
    return [pa.field(name, type_) for name, type_ in types.items()]


def _change_column(pa: Any, type_: Any, name: str, some: list[RowChange]) -> Any:
    return pa.array([getattr(change, _OF_CHANGES[name]) for change in some], type_)


def _version_column(pa: Any, type_: Any, name: str, some: list[Version]) -> Any:
    values = [getattr(version, _OF_VERSIONS[name]) for version in some]
    if not pa.types.is_timestamp(type_):
        return pa.array(values, type_)
    return pa.array([None if value is None else value * 1000 for value in values], pa.int64()).cast(type_)


def _pieces(read: OpenRead, spans: Sequence[Span]) -> Iterator[Span]:
    """The same keys as more spans, each of so many rows of the newest batch."""
    for span in spans:
        if read.binding.parts is not None:  # each read of their changes reads all of them
            yield span
            continue
        low, high = span.keys
        begin = low
        for number, (ordered, _) in enumerate(iter_range(read.view.rows, read.binding.table, low, high), 1):
            if number % _PIECE_ROWS == 0:
                yield Span((begin, _BEFORE_ALL), (ordered, _BEFORE_ALL))
                begin = ordered
        yield replace(span, low=(begin, _BEFORE_ALL))

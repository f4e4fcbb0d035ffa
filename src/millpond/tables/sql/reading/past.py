"""`changes('t', 41)` and `history('t')` in FROM: what happened to the rows of a table, and all their versions.

Both have the table's own columns, and a few whose names begin with `_`.  They are read a piece at a
time, in the view that the statement reads all tables of the job in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any

from millpond.replica.scan import iter_range
from millpond.schema.definition.table import TableDefinition
from millpond.tables.history.changes import RowChange, check_history, iter_row_changes
from millpond.tables.history.versions import Version, read_versions
from millpond.tables.job.as_of import batch_of
from millpond.tables.scan.arrow_rows import with_columns
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.sql.reading.access import Access
from millpond.tables.sql.reading.function import FunctionScans, Values

_PIECE_ROWS = 1 << 12
_BEFORE_ALL = -1


class PastScans(FunctionScans):
    """The reads of `changes` and `history`."""

    def _check(self, read: OpenRead) -> TableDefinition:
        """Raises HISTORY_GONE if no history of the table is kept."""
        check_history(read)
        return read.binding.definition

    def _more(self, pa: Any, _: OpenRead) -> list[Any]:
        return _version_fields(pa) if self._is_history else _change_fields(pa, self.own)

    @property
    def _is_history(self) -> bool:
        return self.name.function == "history"

    def _how(self, access: Access) -> str:
        return f"history, {access}" if self._is_history else "changes"

    def _pieces(self, pa: Any, read: OpenRead, access: Access, wanted: list[str]) -> Iterator[Any]:
        return self._history(pa, read, access, wanted) if self._is_history else self._changes(pa, read, wanted)

    def _changes(self, pa: Any, read: OpenRead, wanted: list[str]) -> Iterator[Any]:
        assert self.name.since is not None
        since = batch_of(read.view, self.name.since)
        until = read.view.record.batch if self.name.until is None else batch_of(read.view, self.name.until)
        found = takewhile(lambda change: change.batch <= until, iter_row_changes(read, since))
        while some := list(islice(self.table.deadline().watch(found), _PIECE_ROWS)):
            made = {name: _change_column(pa, self.schema.field(name).type, name, some) for name in wanted if name in _OF_CHANGES}
            if "_old" in wanted:
                made["_old"] = self._structs(pa, [change.old for change in some], [change.row for change in some])
            yield self._batch(pa, wanted, [change.row for change in some], made)

    def _history(self, pa: Any, read: OpenRead, access: Access, wanted: list[str]) -> Iterator[Any]:
        since = check_history(read) - 1 if self.name.since is None else batch_of(read.view, self.name.since)
        until = read.view.record.batch if self.name.until is None else batch_of(read.view, self.name.until)
        for span in _pieces(read, access.spans):
            found = list(read_versions(read, span, since, until, None, self.table.deadline()))
            for begin in range(0, len(found), _PIECE_ROWS):
                some = found[begin : begin + _PIECE_ROWS]
                more = (name for name in wanted if name in _OF_VERSIONS)
                made = {name: _version_column(pa, self.schema.field(name).type, name, some) for name in more}
                yield self._batch(pa, wanted, [version.row for version in some], made)

    def _batch(self, pa: Any, wanted: list[str], rows: list[Values], made: dict[str, Any]) -> Any:
        """A record batch of these columns of rows, with others that are made already."""
        own = self.columns(pa, with_columns(self.definition, [name for name in wanted if name not in made]), rows)
        return self.batch(pa, wanted, {**own, **made})

    def _structs(self, pa: Any, rows: list[Values | None], others: list[Values]) -> Any:
        """Rows as structs; a missing row is NULL, whatever stands in the other list."""
        columns = self.columns(
            pa, self.definition, [other if row is None else row for row, other in zip(rows, others, strict=True)]
        )
        missing = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays([columns[name] for name in self.own.names], fields=list(self.own), mask=missing)


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

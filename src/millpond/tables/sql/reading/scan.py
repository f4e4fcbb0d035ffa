"""A table as a statement reads it: only the rows and columns which a query needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError, RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.tables.forms.arrow import pyarrow, table_schema
from millpond.tables.forms.arrow_errors import Failures
from millpond.tables.scan.arrow_rows import iter_arrow, with_columns
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.sql.reading.access import Access, choose_access
from millpond.tables.sql.reading.by_index import FEW_ROWS, choose_index, most_rows, order_by_index
from millpond.tables.sql.reading.column_cache import CACHE, Place
from millpond.tables.sql.reading.filters import Filter, parse_filter
from millpond.tables.sql.reading.order import Hint, Unordered, has_nulls, nulls_last, order_columns

if TYPE_CHECKING:
    from millpond.tables.table import Table

_FIRST_ROWS, _MOST_FIRST_ROWS = 1 << 10, 1 << 16


@dataclass(slots=True)
class TableRead:
    """How a statement has read a table.

    table:    its name
    how:      `scan`, `get by page`, `3 ranges by site, page`
    columns:  that were read
    rows:     that were read so far, before filters of other columns
    """

    table: str
    how: str
    columns: tuple[str, ...]
    rows: int = 0


class TableScans:
    """The reads of one table by one statement: see `dataset.Relation`."""

    def __init__(
        self, table: Table, name: str, reads: list[TableRead], failed: list[Exception], *, is_dry: bool, cache_bytes: int
    ) -> None:
        """Scans that note how they read, and their error: DuckDB and pyarrow hand on only its words.

        name:         of the table in the statement
        is_dry:       whether to say how it would be read, and read nothing
        cache_bytes:  of columns that are kept for later statements of this process; 0: none
        Raises:       WRONG_TYPE for a column that Arrow has no type for.
        """
        self._table, self._reads, self._failed, self._is_dry = table, reads, failed, is_dry
        self._name, self._cache_bytes = name, cache_bytes
        with table.begin() as read:
            self._definition = read.binding.definition  # of the state as these scans see it
            indexes = read.binding.indexes
        check_names(self._definition)
        self.schema = table_schema(pyarrow(), self._definition, table.job, 0).remove_metadata()
        self.sortable = {*table.key_order, *(name for index in indexes for name in index)}

    def batches(self, names: Collection[str], condition: bytes | None, hint: Hint) -> Iterator[Any]:
        """See `dataset.Relation`."""
        pa = pyarrow()
        with noting(self._failed), self._table.begin() as read:
            found = parse_filter(pa, condition)
            keys, binding, order = self._table.key_reader, read.binding, hint.order
            access = choose_access(binding, keys, found.conditions)
            sorting: tuple[str, ...] = ()
            are_apart = True  # rows with NULL in the first column that sorts
            most = most_rows(read) if binding.indexes else None
            if order is not None:
                try:
                    sorting = order_columns(order, binding, keys, found.conditions)
                except Unordered:
                    access, sorting = order_by_index(read, order, found.conditions)
                if found.columns and self._is_in_memory(read, names):
                    raise Unordered  # a filter over columns in memory is quicker than a new read
                if sorting and not order.is_natural and access.how != "index":
                    spans = nulls_last(access.spans, sorting[0], binding, keys, found.conditions)
                    are_apart, access = spans is not access.spans, replace(access, spans=spans)
            elif access.how == "scan" and binding.indexes:
                in_memory = self._is_in_memory(read, names)
                access = choose_index(read, found.conditions, most=FEW_ROWS if in_memory else most) or access
            wanted = with_columns(self._definition, names)
            noted = TableRead(self._name, _how(access, hint), wanted.columns)
            self._reads.append(noted)
            if self._is_dry:
                return
            needed = with_columns(self._definition, {*names, *sorting})
            shape = table_schema(pa, needed, self._table.job, 0).remove_metadata()
            seen = _NullsLast(sorting, are_apart=are_apart) if order is not None and not order.is_natural else None
            for arrays in self._pieces(pa, read, needed, access, found, hint):
                piece = pa.RecordBatch.from_arrays(arrays, schema=shape)
                is_long = order is not None and access.how == "index" and found.columns
                if (is_long and most is not None and noted.rows > most) or (seen is not None and not seen.goes_on(piece)):
                    self._reads.remove(noted)
                    raise Unordered
                noted.rows += len(piece)
                yield piece.select(wanted.columns)

    def _pieces(
        self, pa: Any, read: OpenRead, definition: TableDefinition, access: Access, found: Filter, hint: Hint
    ) -> Iterator[list[Any]]:
        """The columns' arrays, piece by piece.  A scan doesn't read columns again that are in memory."""
        names, deadline = definition.columns, self._table.deadline()
        first_rows, place = _FIRST_ROWS, self._place(read) if access.how == "scan" else None
        if hint.rows is not None and (hint.order is not None or not found.columns):
            # One more: the ends of a range are read too.
            first_rows, place = max(1, min(hint.rows + bool(found.conditions), _MOST_FIRST_ROWS)), None
        known = {} if place is None else {n: pieces for n in names if (pieces := CACHE.find(place, n)) is not None}
        missing = [name for name in names if name not in known]
        if not missing and known:
            yield from map(list, zip(*(known[name] for name in names), strict=True))
            return
        made: dict[str, list[Any]] = {name: [] for name in missing}
        room = self._cache_bytes
        wanted = with_columns(definition, missing)
        reverse = hint.order is not None and hint.order.descending
        tables = iter_arrow(pa, read, wanted, access.spans, self._table.job, deadline, first_rows=first_rows, reverse=reverse)
        for number, table in enumerate(tables):
            check_values(table, self._table.name)
            columns = {name: _one(pa, table.column(name)) for name in missing}
            room -= table.nbytes
            if room < 0:
                made = {}  # too large to keep
            for name, arrays in made.items():
                arrays.append(columns[name])
            yield [columns[name] if name in columns else known[name][number] for name in names]
        if place is not None and made:
            CACHE.keep(place, made, self._cache_bytes)

    def _is_in_memory(self, read: OpenRead, names: Collection[str]) -> bool:
        place = self._place(read)
        return place is not None and all(CACHE.find(place, name) is not None for name in names)

    def _place(self, read: OpenRead) -> Place | None:
        """Where columns of this read are kept; None if they would differ with the time of the read."""
        view = read.view
        if read.judge is not None or not self._cache_bytes:
            return None
        return Place(view.generation, view.record.batch, read.binding.table, read.shows_closed, read.binding.definition)


def check_values(piece: Any, table: str) -> None:
    """Raise WRONG_TYPE for values that can't be computed: NULL would be another answer."""
    failures = Failures()
    failures.add_table(piece.schema.metadata, 0)
    check_failures(failures, table)
    try:
        piece.validate(full=True)
    except ValueError as wrong:  # Spark's strings may hold any bytes
        raise RequestError(
            "WRONG_TYPE",
            f"{table} has a text that isn't UTF-8: {wrong}.",
            hint="Leave out that column, or read the table by `scan`.",
            table=table,
        ) from wrong


def check_failures(failures: Failures, table: str) -> None:
    """Raise WRONG_TYPE if there are any."""
    if failures.count:
        first = failures.first[0]
        raise RequestError(
            "WRONG_TYPE",
            f"{failures.count:,} values of {table} can't be computed, the first in column {first['column']}: {first['message']}",
            hint="Leave out that column, or name keys whose values can be computed.",
            table=table,
            column=first["column"],
        )


class _NullsLast:
    """Whether rows come with NULL after all others: only in the first column can spans see to that.

    are_apart:  whether they do; otherwise rows with NULL come first, and LIMIT may end the read before others come
    """

    def __init__(self, columns: tuple[str, ...], *, are_apart: bool) -> None:
        self._columns, self._are_apart, self._is_null = columns, are_apart, False

    def goes_on(self, piece: Any) -> bool:
        """Whether a piece may come next."""
        if has_nulls(piece, self._columns if not self._are_apart else self._columns[1:]):
            return False
        first = piece.column(self._columns[0]).is_null().to_pylist() if has_nulls(piece, self._columns[:1]) else []
        if first and (False in first[first.index(True) :]):
            return False
        if self._is_null and len(piece) and not (first and all(first)):
            return False
        self._is_null = self._is_null or bool(first)
        return True


def _how(access: Access, hint: Hint) -> str:
    how = str(access)
    if hint.order is not None:
        how += " against" if hint.order.descending else " in"
        how += " its order" if access.how == "index" else " key order"
    return how if hint.rows is None else f"{how} until LIMIT"


@contextmanager
def noting(failed: list[Exception]) -> Iterator[None]:
    """Within this context an error is noted."""
    try:
        yield
    except (MillpondError, Unordered) as error:
        failed.append(error)
        raise


def _one(pa: Any, column: Any) -> Any:
    """A chunked array as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def check_names(definition: TableDefinition) -> None:
    """Raise WRONG_TYPE for columns that are one in SQL, which knows no case."""
    known: dict[str, str] = {}
    for name in definition.columns:
        other = known.setdefault(name.lower(), name)
        if other is not name:
            raise RequestError(
                "WRONG_TYPE",
                f"{definition.table} has columns {other} and {name}, which are one in SQL.",
                hint="Read the table by `scan`.",
                table=definition.table,
            )

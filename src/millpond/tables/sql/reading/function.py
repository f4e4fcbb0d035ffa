"""What functions in FROM that read a table have in common: its columns and a few more, and rows by conditions on its key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.tables.forms.arrow import pyarrow, rows_table, table_schema
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.sql.reading.access import Access, choose_access
from millpond.tables.sql.reading.filters import parse_filter
from millpond.tables.sql.reading.order import Hint, Unordered
from millpond.tables.sql.reading.scan import TableRead, check_names, check_values, noting

if TYPE_CHECKING:
    from millpond.tables.sql.statement import TableName
    from millpond.tables.table import Table

Values = dict[str, Any]


class FunctionScans(ABC):
    """The reads of a function in FROM: see `dataset.Relation`.

    table, name:  the table, and how the statement names it
    definition:   of the table, with those of its columns that the function shows
    own, schema:  these columns, and all that it shows
    """

    sortable: Collection[str] = ()

    def __init__(self, table: Table, name: TableName, reads: list[TableRead], failed: list[Exception], *, is_dry: bool) -> None:
        """Scans that note how they read, and their error.

        Raises:  WRONG_TYPE for columns that SQL can't hold; as `_check`.
        """
        self.table, self.name, self._reads, self._failed, self._is_dry = table, name, reads, failed, is_dry
        pa = pyarrow()
        with table.begin() as read:
            self.definition = self._check(read)
            check_names(self.definition)
            self.own = table_schema(pa, self.definition, table.job, 0).remove_metadata()
            more = self._more(pa, read)
        known = {column.lower() for column in self.own.names}
        for field in more:
            if field.name.lower() in known:
                raise RequestError(
                    "WRONG_TYPE",
                    f"{table.name} has a column {field.name}, as {name.function}() has.",
                    hint=f"Read it by `{name.function}` of the table.",
                    table=table.name,
                )
        self.schema = pa.schema([*self.own, *more])

    @abstractmethod
    def _check(self, read: OpenRead) -> TableDefinition:
        """The definition.  Raises an error if the table can't be read so."""

    @abstractmethod
    def _more(self, pa: Any, read: OpenRead) -> list[Any]:
        """The fields that the function adds."""

    @abstractmethod
    def _how(self, access: Access) -> str:
        """How it reads, for EXPLAIN."""

    @abstractmethod
    def _pieces(self, pa: Any, read: OpenRead, access: Access, wanted: list[str]) -> Iterator[Any]:
        """Record batches of the wanted columns."""

    def batches(self, names: Collection[str], condition: bytes | None, hint: Hint) -> Iterator[Any]:
        """See `dataset.Relation`."""
        pa = pyarrow()
        wanted = [name for name in self.schema.names if name in names]
        with noting(self._failed), self.table.begin() as read:
            if hint.order is not None:
                raise Unordered
            access = choose_access(read.binding, self.table.key_reader, parse_filter(pa, condition).conditions)
            noted = TableRead(self.name.name, self._how(access), tuple(wanted))
            self._reads.append(noted)
            if self._is_dry:
                return
            for piece in self._pieces(pa, read, access, wanted):
                noted.rows += len(piece)
                yield piece

    def columns(self, pa: Any, definition: TableDefinition, rows: Sequence[Values]) -> dict[str, Any]:
        """The columns of rows, by name.  Raises WRONG_TYPE for a value that can't be computed."""
        if not definition.columns:
            return {}
        table = rows_table(pa, definition, rows, self.table.job, 0)
        check_values(table, self.table.name)
        return {name: pa.concat_arrays(table.column(name).chunks) for name in definition.columns}

    def batch(self, pa: Any, wanted: list[str], made: dict[str, Any]) -> Any:
        """A record batch of these columns."""
        shape = pa.schema([self.schema.field(name) for name in wanted])
        return pa.RecordBatch.from_arrays([made[name] for name in wanted], schema=shape)

"""The answer of a statement: a table, and the batches that it reflects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import RequestError
from millpond.schema.types import SparkType
from millpond.tables.answer import Cut
from millpond.tables.forms.frames import to_pandas, to_polars
from millpond.tables.forms.html import html_rows
from millpond.tables.sql.duck import to_relation
from millpond.tables.sql.reading.scan import TableRead
from millpond.tables.sql.types import answer_types

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """What a statement gives.  Iterate over its rows, which are dicts by column name.

    cuts:   the batch of each job that it reads, with the four numbers of lag
    reads:  how each table was read
    is_plan: whether it is the text of an EXPLAIN
    """

    _table: Any = field(repr=False)
    cuts: tuple[Cut, ...]
    reads: tuple[TableRead, ...]
    is_plan: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        names = ", ".join(self.columns[:_SHOWN]) + (", …" if len(self.columns) > _SHOWN else "")
        return f"<SqlAnswer: {len(self):,} rows of {names}; batch {self._batches()}>"

    def _repr_html_(self) -> str:
        return html_rows(self.rows(), f"batch {self._batches()}: {len(self)} rows")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(self._table.column_names)

    @property
    def batch(self) -> int:
        """The batch that the answer reflects.  Raises INVALID_REQUEST if it reflects several, or none."""
        if len(self.cuts) != 1:
            raise RequestError("INVALID_REQUEST", f"The answer reflects {len(self.cuts)} batches.", hint="Read them from `cuts`.")
        return self.cuts[0].position.batch

    def types(self) -> list[tuple[str, SparkType]]:
        """Name and type of each column, in Spark's words.  Raises WRONG_TYPE for a type that Spark lacks."""
        return answer_types(self._table.schema)

    def values(self) -> list[tuple[Any, ...]]:
        """The rows as tuples.  Raises WRONG_TYPE if Python has no value for one, such as a time after the year 9999."""
        return values_of(self._table.columns)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts.  Raises WRONG_TYPE as `values`, and if two columns have one name."""
        check_names(self.columns)
        return [dict(zip(self.columns, row, strict=True)) for row in self.values()]

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return self._table

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with Arrow's types.  Raises LIBRARY_MISSING."""
        return to_pandas(self._table)

    def to_polars(self) -> Any:
        """A polars.DataFrame.  Raises LIBRARY_MISSING, WRONG_TYPE."""
        return to_polars(self._table)

    def to_duckdb(self, connection: Any = None) -> Any:
        """A duckdb.DuckDBPyRelation, which further statements read: `relation.query("a", "SELECT … FROM a")`.

        The rows are those of this answer; they don't change with the job.

        connection:  a duckdb.DuckDBPyConnection, whose tables can be joined; None for DuckDB's own
        Raises:  LIBRARY_MISSING; INVALID_REQUEST for what isn't an open connection.
        """
        return to_relation(self._table, connection)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """For libraries that take Arrow's streams: `pyarrow.table(answer)`, `polars.DataFrame(answer)`."""
        return self._table.__arrow_c_stream__(requested_schema)

    def _batches(self) -> str:
        return ", ".join(f"{cut.position.batch} of {cut.job}" for cut in self.cuts) or "none"


def values_of(columns: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The rows of Arrow columns as tuples.  Raises WRONG_TYPE if Python has no value for one."""
    try:
        return list(zip(*(column.to_pylist() for column in columns), strict=True))
    except (ValueError, OverflowError) as wrong:
        raise RequestError(
            "WRONG_TYPE", f"A value of the answer has no form in Python: {wrong}.", hint="Read the answer as Arrow."
        ) from wrong


def check_names(columns: Sequence[str]) -> None:
    """Raise WRONG_TYPE if two columns have one name."""
    if len(set(columns)) < len(columns):
        raise RequestError(
            "WRONG_TYPE",
            "Two columns of the answer have the same name.",
            hint="Name them by AS, or read the answer as Arrow.",
        )

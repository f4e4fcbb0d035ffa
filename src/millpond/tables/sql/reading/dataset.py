"""What DuckDB reads: a pyarrow dataset that asks a relation for the columns and rows which a query needs.

pyarrow's own scanner reads several pieces ahead.  This one reads a piece when DuckDB asks for it, so
that LIMIT ends the read, and no more than one piece is in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Protocol

from millpond.tables.sql.reading.filters import filter_bytes, parse_filter
from millpond.tables.sql.reading.order import Hint


class Relation(Protocol):
    """Rows under one name of a statement.

    schema:     of all columns, a pyarrow.Schema
    sortable:   columns by which it may have its rows in order
    """

    @property
    def schema(self) -> Any:
        """See above."""

    @property
    def sortable(self) -> Collection[str]:
        """See above."""

    def batches(self, names: Collection[str], condition: bytes | None, hint: Hint) -> Iterator[Any]:
        """pyarrow.RecordBatches of some columns, in the order of the schema.

        All rows that meet the condition are among them.

        condition:  of `filter_bytes`
        Raises:     Unordered if the hint has an order and they don't come in it.
        """


def dataset(pa: Any, relation: Relation, hint: Hint) -> Any:
    """The dataset that DuckDB reads."""
    import pyarrow.dataset as ds

    class Related(ds.Dataset):  # type: ignore[misc]
        """DuckDB asks it for a scanner, with the columns and the filter that it needs."""

        def __init__(self) -> None:
            """Not pyarrow's own, which refuses to make one."""

        @property
        def schema(self) -> Any:
            return relation.schema

        def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:
            return _Scanner(pa, relation, hint, columns, filter)

    return Related()


class _Scanner:
    """What DuckDB takes for a pyarrow scanner."""

    def __init__(self, pa: Any, relation: Relation, hint: Hint, columns: list[str] | None, expression: Any) -> None:
        self._pa, self._relation, self._hint, self._expression = pa, relation, hint, expression
        self._wanted = list(columns if columns is not None else relation.schema.names)
        self.projected_schema = pa.schema([relation.schema.field(name) for name in self._wanted])

    def to_reader(self) -> Any:
        """The rows for which the expression is true, as a pyarrow.RecordBatchReader."""
        return self._pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[Any]:
        condition = filter_bytes(self._expression)
        needed = parse_filter(self._pa, condition).columns
        names = set(self._relation.schema.names) if needed is None else {*self._wanted, *needed}
        for batch in self._relation.batches(names, condition, self._hint):
            for part in self._filtered(batch) if condition is not None else (batch,):
                yield part.select(self._wanted)

    def _filtered(self, batch: Any) -> list[Any]:
        from pyarrow import acero

        steps = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(self._pa.Table.from_batches([batch]))),
            acero.Declaration("filter", acero.FilterNodeOptions(self._expression)),
        ]
        # In one thread: the order of the rows stays.
        found: list[Any] = acero.Declaration.from_sequence(steps).to_table(use_threads=False).to_batches()
        return found

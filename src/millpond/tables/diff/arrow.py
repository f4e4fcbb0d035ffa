"""Rows that differ as Arrow tables.

    _kind      added, removed or changed
    …          the key's columns
    _old       a struct of the other columns on the left, NULL for an added row
    _new       the same on the right, NULL for a removed row
    _columns   names of the columns that differ, of a changed row

A side whose table has only a key has no struct, since Parquet can't hold an empty one.
If a key column has one of these names, ours gets one more underscore in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from millpond.schema.definition.table import TableDefinition, ValueColumn
from millpond.tables.diff.compare import RowDiff
from millpond.tables.failed import free_name
from millpond.tables.forms.arrow import arrow_type, pyarrow, python_array
from millpond.tables.forms.arrow_errors import Failures, make_table

# How many rows are in memory at a time.
PAGE_ROWS = 10_000


def diff_pages(left: TableDefinition, right: TableDefinition, rows: Iterator[RowDiff]) -> Iterator[Any]:
    """pyarrow.Tables of the rows, at least one.

    Raises:  LIBRARY_MISSING; WRONG_TYPE for a column that Arrow has no type for.
    """
    pa = pyarrow()
    keys = [column.name for column in left.key]
    kind, old, new, columns = (free_name(name, keys) for name in ("_kind", "_old", "_new", "_columns"))
    sides = [(name, definition.values) for name, definition in ((old, left), (new, right)) if definition.values]
    schema = pa.schema(
        [
            pa.field(kind, pa.string()),
            *(pa.field(column.name, arrow_type(pa, column.type)) for column in left.key),
            *(pa.field(name, _struct(pa, values)) for name, values in sides),
            pa.field(columns, pa.list_(pa.string())),
        ]
    )
    page = list(islice(rows, PAGE_ROWS))
    while True:
        failures = Failures()
        arrays = [
            pa.array([row.kind for row in page], pa.string()),
            *(_array(pa, column.name, column.type, [row.key for row in page], failures) for column in left.key),
            *(_structs(pa, values, [row.old if name == old else row.new for row in page], failures) for name, values in sides),
            pa.array([list(row.columns) for row in page], pa.list_(pa.string())),
        ]
        yield make_table(pa, arrays, schema, failures)
        page = list(islice(rows, PAGE_ROWS))
        if not page:
            return


def _struct(pa: Any, columns: tuple[ValueColumn, ...]) -> Any:
    return pa.struct([pa.field(column.name, arrow_type(pa, column.type)) for column in columns])


def _structs(pa: Any, columns: tuple[ValueColumn, ...], rows: list[dict[str, Any] | None], failures: Failures) -> Any:
    members = [_array(pa, column.name, column.type, rows, failures) for column in columns]
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(members, fields=list(_struct(pa, columns)), mask=mask)


def _array(pa: Any, name: str, type_: Any, rows: list[Any], failures: Failures) -> Any:
    # Bypass the row's own reads: reading a failed value would raise its error.
    values = (None if row is None else dict.__getitem__(row, name) for row in rows)
    return python_array(pa, type_, values, failures, name)

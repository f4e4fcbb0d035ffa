"""Rows as JSON objects, their columns in the table's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.schema.values import to_json
from millpond.tables.failed import ERRORS, FailingValues, errors_json, free_name

JsonRow = dict[str, Any]
WriteRow = Callable[[Mapping[str, Any]], "JsonRow | None"]


def typed_columns(definition: TableDefinition) -> list[tuple[str, SparkType]]:
    """Name and type of each column, key first."""
    return [(c.name, c.type) for c in definition.key] + [(c.name, c.type) for c in definition.values]


def row_writer(definition: TableDefinition) -> WriteRow:
    """A function from a row to its JSON object; null for a missing row.

    A value that can't be computed is null, and the member `_errors` says why, see `tables.failed`.
    """
    return columns_writer(typed_columns(definition))


def columns_writer(columns: list[tuple[str, SparkType]]) -> WriteRow:
    """The same for some columns, by name and type."""
    writers = [(name, to_json(type_)) for name, type_ in columns]
    errors = free_name(ERRORS, [name for name, _ in columns])

    def write(row: Mapping[str, Any]) -> JsonRow | None:
        if isinstance(row, FailingValues):
            failed = errors_json(row)
            return {name: None if name in failed else writer(row[name]) for name, writer in writers} | {errors: failed}
        return {name: writer(row[name]) for name, writer in writers} if row else None

    return write

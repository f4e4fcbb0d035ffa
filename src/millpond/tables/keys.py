"""From column names and Python values to the key row that the state has."""

from __future__ import annotations

from typing import Any

from millpond.errors import RequestError
from millpond.replica.ordered import KeyCodec
from millpond.schema.convert import to_stored
from millpond.schema.definition import KeyColumn, TableDefinition

Key = dict[str, Any]
"""column name -> Python value"""


class KeyReader:
    """Reads the keys of one table.

    order:  the key columns in the order rows are sorted by: those that aren't times in grouping order, then the times
    """

    def __init__(self, definition: TableDefinition) -> None:
        self._definition = definition
        self._converters = {column.name: to_stored(column.type) for column in definition.key}
        # The commonest kind of key: every column is a column of the state's key row.
        plain = not any(c.path for c in definition.key) and len(definition.key) == len(definition.key_fields)
        self._plain = tuple(c.name for c in definition.key) if plain else None
        rank = {index: place for place, index in enumerate(KeyCodec(definition.key_schema).order)}
        # A place in a list comes last.
        self.order = tuple(c.name for c in sorted(definition.key, key=lambda c: rank.get(c.index, len(rank))))

    def stored(self, key: Key) -> dict[str, Any]:
        """The values in stored form.  Raises UNKNOWN_COLUMN, NOT_A_KEY_COLUMN, WRONG_TYPE."""
        out: dict[str, Any] = {}
        for name, value in key.items():
            convert = self._converters.get(name)
            if convert is None:
                raise self._not_a_key(name)
            try:
                out[name] = None if value is None else convert(value)
            except RequestError as error:
                raise type(error)(
                    error.condition, f"Column {name!r}: {error.message}", hint=error.hint, **{**error.context, "column": name}
                ) from None
        return out

    def row(self, columns: dict[str, Any]) -> tuple[Any, ...] | None:
        """The state's key row of stored values; None where only the ends of windows are missing.  Raises KEY_MISSING."""
        if self._plain is not None and len(columns) == len(self._plain):
            return tuple([columns[name] for name in self._plain])
        definition = self._definition
        missing = [c for c in definition.key if c.name not in columns]
        if missing:
            if all(_is_part_of_a_window(c) and _begins(c, columns, definition.key) for c in missing):
                return None
            raise RequestError(
                "KEY_MISSING",
                f"A key of {definition.table} needs {', '.join(c.name for c in missing)} as well.",
                hint=f"Name every key column, or scan by the first ones: {', '.join(self.order)}.",
                table=definition.table,
                missing=[c.name for c in missing],
            )
        row: list[Any] = [None] * len(definition.key_fields)
        for column in definition.key:
            if column.path:
                row[column.index] = (*(row[column.index] or ()), columns[column.name])
            else:
                row[column.index] = columns[column.name]
        return tuple(row)

    def _not_a_key(self, name: str) -> RequestError:
        definition = self._definition
        keys = ", ".join(c.name for c in definition.key)
        if name in definition.columns:
            return RequestError(
                "NOT_A_KEY_COLUMN",
                f"{name!r} is a value column of {definition.table}; rows are found by their key.",
                hint=f"Name key columns: {keys}.",
                table=definition.table,
                column=name,
            )
        return RequestError(
            "UNKNOWN_COLUMN",
            f"{definition.table} has no column {name!r}.",
            hint=f"Its key columns are: {keys or 'none'}.",
            table=definition.table,
            column=name,
        )


def _is_part_of_a_window(column: KeyColumn) -> bool:
    return bool(column.path) and column.type.is_time


def _begins(column: KeyColumn, given: dict[str, Any], key: tuple[KeyColumn, ...]) -> bool:
    """Whether an earlier member of the same window is given."""
    return any(c.index == column.index and c.name in given and c is not column for c in key)

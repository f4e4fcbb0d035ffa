"""From column names and Python values to the state's key row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millpond.errors import RequestError
from millpond.replica.keys.codec import KeyCodec
from millpond.schema.convert import to_stored
from millpond.schema.definition.table import KeyColumn, TableDefinition, key_parts
from millpond.schema.types import TIMES, SparkType
from millpond.schema.values import from_text

Key = dict[str, Any]
"""column name -> Python value"""
Convert = Callable[[Any], Any]
_TIMES = frozenset({"timestamp", "timestamp_ntz", "date", "time"})


class KeyReader:
    """Reads the keys of one table.

    order:  the key columns by which rows are sorted: first all but times in grouping order, then
            times
    """

    def __init__(self, definition: TableDefinition) -> None:
        self._definition = definition
        self._converters = {column.name: _converter(column.type, column.name) for column in key_parts(definition)}
        # The most common kind of key: every column is a column of the state's key row.
        plain = not any(c.path for c in definition.key) and len(definition.key) == len(definition.key_fields)
        self._plain = tuple(c.name for c in definition.key) if plain else None
        rank = {index: place for place, index in enumerate(KeyCodec(definition.key_schema).order)}
        # The place in a list comes last.
        self.order = tuple(c.name for c in sorted(definition.key, key=lambda c: rank.get(c.index, len(rank))))

    def given(self, key: Any, columns: Key | None = None) -> Key:
        """A key, or a part of it, by column name.

        It is a dict, or the columns beside it, or the bare value of a key of one column.

        Raises:  KEY_MISSING if a bare value is given and the key doesn't have exactly one column.
        """
        named = columns or {}
        if isinstance(key, Mapping):
            return {**key, **named}
        if key is None:
            return named
        keys = [column.name for column in self._definition.key]
        if len(keys) == 1 and not named:
            return {keys[0]: key}
        example = ", ".join(f"{name}=…" for name in keys if name.isidentifier()) or "…"
        raise RequestError(
            "KEY_MISSING",
            f"{key!r:.80} names no key column; the key of {self._definition.table} is {', '.join(keys) or 'empty'}.",
            hint=f"Name each column: ({example}), or give a dict of them.",
            table=self._definition.table,
        )

    def stored(self, key: Key) -> dict[str, Any]:
        """The values in stored form.  Raises UNKNOWN_COLUMN, NOT_A_KEY_COLUMN, WRONG_TYPE."""
        out: dict[str, Any] = {}
        for name, value in key.items():
            convert = self._converters.get(name)
            if convert is None:
                raise self._not_a_key(name)
            out[name] = _stored(name, convert, value)
        return out

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns in the order of the state's key row; None if a column is a part of a struct."""
        return self._plain

    def window_start(self, given: Key) -> str:
        """The time column of a range of windows: the first time in key order that isn't given.

        Raises:  NO_WINDOW if there is none; KEY_MISSING if a column before it isn't given.
        """
        definition = self._definition
        times = {c.name for c in definition.key if c.type.kind in TIMES}
        column = next((name for name in self.order if name in times and name not in given), None)
        if column is None:
            raise RequestError(
                "NO_WINDOW",
                f"The key of {definition.table} has no window or other time left to range over: {', '.join(self.order) or 'none'}.",
                hint="Use `get` or `range`.",
                table=definition.table,
            )
        missing = [name for name in self.order[: self.order.index(column)] if name not in given]
        if missing:
            raise RequestError(
                "KEY_MISSING",
                f"For windows of {definition.table}, the key needs {', '.join(missing)} as well.",
                hint="Name every column before the time, or scan and filter.",
                table=definition.table,
                missing=missing,
            )
        return column

    def row(self, columns: dict[str, Any]) -> tuple[Any, ...] | None:
        """The state's key row of stored values; None if only ends of windows are missing.

        Raises:  KEY_MISSING.
        """
        if self._plain is not None and len(columns) == len(self._plain):
            try:
                return tuple([columns[name] for name in self._plain])
            except KeyError:
                pass  # the name is that of a struct's member, which isn't a key column
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
        return tuple([stored_window(v) if f.window else v for f, v in zip(definition.key_fields, row, strict=True)])

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


def stored_values(definition: TableDefinition, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of any columns in stored form.  Raises UNKNOWN_COLUMN, WRONG_TYPE."""
    types = definition.types
    for name in given:
        if name not in types:
            raise unknown_column(definition, name)
    return {name: _stored(name, _converter(types[name], name), value) for name, value in given.items()}


def unknown_column(definition: TableDefinition, name: str) -> RequestError:
    """The error of a column that the table doesn't have."""
    return RequestError(
        "UNKNOWN_COLUMN",
        f"{definition.table} has no column {name!r:.80}.",
        hint=f"Its columns are: {', '.join(definition.columns)}.",
        table=definition.table,
        column=name,
    )


def _stored(name: str, convert: Convert, value: Any) -> Any:
    """A column's value in stored form.  Raises WRONG_TYPE, which names the column."""
    try:
        return None if value is None else convert(value)
    except RequestError as error:
        raise type(error)(
            error.condition, f"Column {name!r}: {error.message}", hint=error.hint, **{**error.context, "column": name}
        ) from None


def given_keys(keys: Iterable[Any]) -> list[Any]:
    """Several keys.

    Raises:  INVALID_REQUEST for a single key, whose characters or columns would count as keys.
    """
    if isinstance(keys, str | bytes | Mapping):
        raise RequestError("INVALID_REQUEST", "get_all takes several keys, and got one.", hint="Write get_all([KEY]), or get(KEY).")
    return list(keys)


def stored_window(ends: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A window in stored form, from its start and end, or from its start; NULL without a start.

    A window never has NULL members; an outer join makes the whole window NULL.
    """
    return None if ends[0] is None and all(end is None for end in ends) else ends


def _converter(type_: SparkType, column: str) -> Convert:
    """A function to stored form, which also takes ISO texts for times."""
    stored, read = to_stored(type_), _text_reader(type_, column)
    return stored if read is None else lambda value: stored(read(value))


def _text_reader(type_: SparkType, column: str) -> Convert | None:
    """A function that turns ISO texts in a value into times; None if the type has no times."""
    if type_.kind in _TIMES:
        parse = from_text(type_, column=column)
        return lambda value: parse(value) if isinstance(value, str) else value
    if type_.kind == "array":
        assert type_.element is not None
        element = _text_reader(type_.element, f"{column}[]")
        return element and (lambda value: [element(v) for v in value] if isinstance(value, list | tuple) else value)
    if type_.kind == "struct":
        members = {f.name: read for f in type_.fields if (read := _text_reader(f.type, f"{column}.{f.name}"))}
        if members:
            return lambda value: (
                {n: members[n](v) if n in members else v for n, v in value.items()} if isinstance(value, dict) else value
            )
    return None


def _is_part_of_a_window(column: KeyColumn) -> bool:
    return bool(column.path) and column.type.is_time


def _begins(column: KeyColumn, given: dict[str, Any], key: tuple[KeyColumn, ...]) -> bool:
    """Whether an earlier member of the same window is given."""
    return any(c.index == column.index and c.name in given and c is not column for c in key)

"""Rows in the order that a statement asks for, when the replica has them in it: then LIMIT ends the read.

A statement may then leave its ORDER BY out.  Whether the order fits is known only when DuckDB says
which filters it leaves to the scan: a key column with one value doesn't count.  If it doesn't fit,
the scan raises `Unordered`, and the statement runs as it was written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.schema.definition.table import key_parts
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.key_range import Span, prefix_span
from millpond.tables.scan.keys import KeyReader
from millpond.tables.sql.reading.access import is_exact, stored_values
from millpond.tables.sql.reading.filters import Condition


@dataclass(frozen=True, slots=True)
class Order:
    """ORDER BY of key columns.

    names:       of the columns, as the statement writes them
    descending:  all of them, or none
    nulls_first: whether rows with NULL come first
    """

    names: tuple[str, ...]
    descending: bool
    nulls_first: bool

    @property
    def is_natural(self) -> bool:
        """Whether rows with NULL are where the replica has them: before all others."""
        return self.nulls_first is not self.descending


@dataclass(frozen=True, slots=True)
class Hint:
    """How much of a scan a statement needs.

    rows:   it ends after so many rows of its own; None if it reads all
    order:  in which the rows must come; None for any order
    """

    rows: int | None = None
    order: Order | None = None


class Unordered(Exception):
    """The rows can't be read in that order."""


def order_columns(order: Order, binding: Binding, keys: KeyReader, conditions: Mapping[str, Condition]) -> tuple[str, ...]:
    """The key columns that decide the order, beside those that have one value.  Raises Unordered."""
    types = {column.name: column for column in key_parts(binding.definition)}
    known = {name.lower(): name for name in keys.order}
    pinned = set(_pinned(binding, conditions))
    names = [known.get(name.lower(), "") for name in order.names]
    wanted = tuple(dict.fromkeys(name for name in names if name not in pinned))
    left = tuple(name for name in keys.order if name not in pinned)
    if "" in names or left[: len(wanted)] != wanted or not all(is_exact(types[name]) for name in wanted):
        raise Unordered
    return wanted


def _pinned(binding: Binding, conditions: Mapping[str, Condition]) -> list[str]:
    """The key columns that have one value in all rows."""
    exact = [column.name for column in key_parts(binding.definition) if is_exact(column)]
    return [n for n in exact if (c := conditions.get(n)) is not None and c.values is not None and len(c.values) == 1]


def nulls_last(
    spans: tuple[Span, ...], column: str, binding: Binding, keys: KeyReader, conditions: Mapping[str, Condition]
) -> tuple[Span, ...]:
    """The same rows, those with NULL in a column after the others, if spans can have them apart.

    column:  the first of the key that doesn't have one value
    """
    definition = binding.definition
    parts = {each.name: each for each in key_parts(definition)}
    before = keys.order[: keys.order.index(column)]
    if len(spans) != 1 or parts[column].path or any(parts[name].path for name in before):
        return spans
    prefix: dict[str, Any] = {}
    for name in before:
        values = stored_values(keys, name, list(conditions[name].values or ()))
        if not values:
            return spans
        prefix[name] = values[0]
    (span,) = spans
    null = prefix_span(definition, binding.codec, {**prefix, column: None})
    if null.high is None or not span.low <= null.low or (span.high is not None and null.high > span.high):
        return spans
    return replace(span, low=null.high), null


def has_nulls(table: Any, columns: Collection[str]) -> bool:
    """Whether one of these columns has NULL."""
    return any(table.column(name).null_count for name in columns)

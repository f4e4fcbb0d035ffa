"""Which part of a table a filter needs: single keys, ranges of keys, or all rows.

Columns of a key that have floats in them are compared by DuckDB only: -0.0 equals 0.0 there, but
they are two keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from millpond.errors import RequestError
from millpond.schema.definition.table import KeyColumn, key_parts
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.key_range import Span, prefix_span
from millpond.tables.scan.keys import KeyReader
from millpond.tables.sql.reading.filters import Condition

_MOST_SPANS = 10_000
# Types whose values are equal in DuckDB exactly if Spark's keys are.
EXACT = frozenset(
    {"boolean", "byte", "short", "integer", "long", "string", "binary", "date", "timestamp", "timestamp_ntz", "decimal"}
)


@dataclass(frozen=True, slots=True)
class Access:
    """How a table is read.

    how:    get, range, index or scan
    spans:  of rows, in the order of the key or of the index
    by:     the columns of the key, or of the index, that choose or sort them
    """

    how: str
    spans: tuple[Span, ...]
    by: tuple[str, ...]

    def __str__(self) -> str:
        """`get by page`, `3 ranges by site, page`, `index by hits`, `scan`."""
        if self.how == "scan":
            return "scan"
        if self.how == "index":
            return f"index by {', '.join(self.by)}"
        many = f"{len(self.spans)} {self.how}s" if len(self.spans) != 1 else self.how
        return f"{many} by {', '.join(self.by)}"


def choose_access(binding: Binding, keys: KeyReader, conditions: Mapping[str, Condition]) -> Access:
    """The fewest rows that have all that meet the conditions."""
    definition = binding.definition
    columns = {column.name: column for column in key_parts(definition)}
    given: list[list[Any]] = []
    names: list[str] = []
    ranged: tuple[str, Condition] | None = None
    count = 1
    for name in keys.order:
        condition = conditions.get(name)
        if condition is None or name not in columns or not is_exact(columns[name]):
            break
        if condition.values is not None:
            stored = stored_values(keys, name, [value for value in condition.values if _is_within(value, condition)])
            if stored is not None and columns[name].path and None in stored:
                break  # a struct that is NULL itself shows such a member too
            if stored is None or count * len(stored) > _MOST_SPANS:
                break
            given.append(stored)
            names.append(name)
            count *= len(stored)
            continue
        if condition.low is not None or condition.high is not None:
            ranged = name, condition
        break
    if not names and ranged is None:
        return Access("scan", (prefix_span(definition, binding.codec, {}),), ())
    spans = [_span(binding, keys, dict(zip(names, values, strict=True)), ranged) for values in product(*given)]
    if ranged is not None:
        names.append(ranged[0])
    is_get = ranged is None and len(names) == len(keys.order)
    ordered = sorted({span.low: span for span in spans}.values(), key=lambda span: span.low)
    return Access("get" if is_get else "range", tuple(ordered), tuple(names))


def is_exact(column: KeyColumn) -> bool:
    """Whether DuckDB compares and sorts the column's values as the replica does."""
    return str(column.type) == "string" if column.type.kind == "string" else column.type.kind in EXACT


def _is_within(value: Any, condition: Condition) -> bool:
    if value is None:
        return condition.low is None and condition.high is None
    return (condition.low is None or value >= condition.low) and (condition.high is None or value <= condition.high)


def stored_values(keys: KeyReader, name: str, values: list[Any]) -> list[Any] | None:
    """The values in stored form; None if one has none, such as a time that Spark can't hold."""
    try:
        return [keys.stored({name: value})[name] for value in values]
    except (RequestError, OverflowError, ValueError):
        return None


def _span(binding: Binding, keys: KeyReader, prefix: dict[str, Any], ranged: tuple[str, Condition] | None) -> Span:
    whole = prefix_span(binding.definition, binding.codec, prefix)
    if ranged is None:
        return whole
    name, condition = ranged
    low, high = whole.low, whole.high
    # Both ends are included here; DuckDB's filter leaves out those that aren't meant.
    for limit in (condition.low, condition.high):
        stored = None if limit is None else stored_values(keys, name, [limit])
        if not stored:
            continue
        at = prefix_span(binding.definition, binding.codec, {**prefix, name: stored[0]})
        if limit is condition.low:
            low = at.low
        if limit is condition.high:
            high = at.high
    return Span(low, high)

"""How a statement uses a table's indexes: for conditions on values that few rows meet, and for ORDER BY with LIMIT."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from millpond.errors import RequestError
from millpond.replica.backends.table_names import index_table
from millpond.replica.keys.codec import NULL
from millpond.replica.scan import after_prefix, iter_range
from millpond.schema.definition.indexes import Index
from millpond.tables.by_value.entries import value_writer
from millpond.tables.finish.columns import always_has_value
from millpond.tables.scan.binding import StoredElsewhere, is_earlier
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.keys import stored_values
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.sql.reading.access import EXACT, Access
from millpond.tables.sql.reading.filters import Condition
from millpond.tables.sql.reading.order import Order, Unordered

# A row by an index takes about as long as twenty by a scan.
_SHARE = 20
# So few rows an index reads more quickly than a filter over columns in memory.
FEW_ROWS = 1000
# DuckDB has the index's order of these: NaN above all numbers, and one zero.
_SORTED = EXACT | {"float", "double"}
_BEFORE_ALL = -1
Conditions = Mapping[str, Condition]


def most_rows(read: OpenRead) -> int | None:
    """With more rows than this, a scan is quicker than an index.

    None for rows that others have: the way from there takes longer than either, so that half of the
    rows by an index are quicker than all by a scan; and to count them takes as long as to read them.
    """
    rows = read.view.rows
    return None if isinstance(rows, StoredElsewhere) else max(FEW_ROWS, rows.count(read.binding.table) // _SHARE)


def choose_index(read: OpenRead, conditions: Conditions, *, most: int | None) -> Access | None:
    """The index that leaves the fewest rows by conditions on its first columns; None if they are more than `most`."""
    best: tuple[int, Index, Span] | None = None
    for index, number in _usable(read).items():
        known = _one_valued(read, index, conditions)
        span = _span(read, index, number, known, conditions)
        by = index[: len(known) + _is_ranged(index, len(known), conditions)]
        if by and (best is None or len(by) > best[0]):
            best = len(by), by, span
    if best is None:
        return None
    _, by, span = best
    assert span.index is not None
    if most is not None:
        entries = iter_range(read.view.rows, index_table(read.binding.table, span.index), *span.keys)
        if next(islice(entries, most, None), None) is not None:
            return None
    return Access("index", (span,), by)


def order_by_index(read: OpenRead, order: Order, conditions: Conditions) -> tuple[Access, tuple[str, ...]]:
    """The index that has the rows in this order, and its columns that decide it; the one with the fewest rows to read.

    Raises:  Unordered.
    """
    names = {name.lower(): name for name in read.binding.definition.columns}
    wanted = [names.get(name.lower(), "") for name in order.names]
    fitting: list[tuple[list[bytes], Index, int, Index]] = []
    for index, number in _usable(read).items():
        known = _one_valued(read, index, conditions)
        left = tuple(dict.fromkeys(name for name in wanted if name not in index[: len(known)]))
        if left and index[len(known) :][: len(left)] == left:
            fitting.append((known, index, number, left))
    if not fitting:
        raise Unordered
    known, index, number, left = max(fitting, key=lambda each: len(each[0]))
    span = _span(read, index, number, known, conditions)
    spans = (span,) if order.is_natural else _nulls_last(span, known)
    return Access("index", spans, index[: len(known) + len(left)]), left


def _usable(read: OpenRead) -> Mapping[Index, int]:
    """The indexes whose columns DuckDB compares as they do, and whose values can be computed for every row.

    An index has a value that can't be computed beside NULL.  A statement would not see the row, and
    so not raise its error.
    """
    definition = read.binding.definition
    if not read.binding.indexes or is_earlier(read.view.rows) or definition.having is not None:
        return {}
    sure = {c.name for c in definition.key} | {c.name for c in definition.values if always_has_value(c.expression)}
    sure = {name for name in sure if definition.types[name].kind in _SORTED}
    return {index: number for index, number in read.binding.indexes.items() if sure.issuperset(index)}


def _one_valued(read: OpenRead, index: Index, conditions: Conditions) -> list[bytes]:
    """The first columns of an index that have one value in all rows, as ordered bytes."""
    out: list[bytes] = []
    for name in index:
        condition = conditions.get(name)
        values = None if condition is None else condition.values
        written = None if values is None or len(values) != 1 else _written(read, name, values[0])
        if written is None:
            break
        out.append(written)
    return out


def _is_ranged(index: Index, place: int, conditions: Conditions) -> bool:
    condition = conditions.get(index[place]) if place < len(index) else None
    return condition is not None and (condition.low is not None or condition.high is not None)


def _span(read: OpenRead, index: Index, number: int, known: list[bytes], conditions: Conditions) -> Span:
    """The entries with these values of the first columns, within the limits of the next one; both ends are included."""
    prefix = b"".join(known)
    low, high = prefix, after_prefix(prefix) if prefix else None
    if _is_ranged(index, len(known), conditions):
        name = index[len(known)]
        condition = conditions[name]
        least = None if condition.low is None else _written(read, name, condition.low)
        most = None if condition.high is None else _written(read, name, condition.high)
        low = low if least is None else prefix + least
        high = high if most is None else after_prefix(prefix + most)
    return Span((low, _BEFORE_ALL), None if high is None else (high, _BEFORE_ALL), index=number)


def _nulls_last(span: Span, known: list[bytes]) -> tuple[Span, ...]:
    """The same entries, those with NULL in the first column after the known ones at the end."""
    null = b"".join(known) + NULL
    after = after_prefix(null)
    assert after is not None
    (low, _), high = span.low, span.high
    if low > null:
        return (span,)  # from a value on: without NULL
    return (
        Span((after, _BEFORE_ALL), high, index=span.index),
        Span((null, _BEFORE_ALL), (after, _BEFORE_ALL), index=span.index),
    )


def _written(read: OpenRead, name: str, value: Any) -> bytes | None:
    """The ordered bytes of a value; None if the column has no such value."""
    definition = read.binding.definition
    try:
        return value_writer(definition.types[name])(stored_values(definition, {name: value})[name])
    except (RequestError, OverflowError, ValueError):
        return None

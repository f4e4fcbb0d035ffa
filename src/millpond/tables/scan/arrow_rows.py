"""The rows of spans as Arrow tables, many at a time; only the columns that somebody wants are computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from millpond.checkpoint.rows.columns import span as span_of
from millpond.replica.backends.base import Snapshot
from millpond.replica.keys.codec import split_value, store_key
from millpond.replica.row_stamp import without_stamp
from millpond.replica.scan import iter_range
from millpond.schema.definition.default_table import EXPIRES_AT
from millpond.schema.definition.resolutions import BUCKET, RESOLUTION
from millpond.schema.definition.table import TableDefinition
from millpond.tables.finish.columns import ColumnFinish, OrderedKeys
from millpond.tables.forms.arrow import rows_table, shown_rows, table_schema
from millpond.tables.forms.arrow_errors import Failures, make_table
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.scan.rows import iter_rows

# How many rows become columns at a time: enough for numpy, and their texts stay far below the limit
# of an array.
_MOST_ROWS = 1 << 16
# Wide rows: fewer at a time, so that a piece stays near this size.
_PIECE_BYTES = 32 << 20


def with_columns(definition: TableDefinition, names: Collection[str]) -> TableDefinition:
    """The same table with some of its columns."""
    key = tuple(column for column in definition.key if column.name in names)
    return replace(definition, key=key, values=tuple(column for column in definition.values if column.name in names))


def iter_arrow(
    pa: Any,
    read: OpenRead,
    definition: TableDefinition,
    spans: Sequence[Span],
    job: str,
    deadline: Deadline,
    *,
    first_rows: int = _MOST_ROWS,
    reverse: bool = False,
) -> Iterator[Any]:
    """pyarrow.Tables of the rows of spans, in their order.

    definition:  of the read's table, or the same with some of its columns
    spans:       that don't overlap
    first_rows:  of the first table; each following one has four times as many, up to 65,536, or
                 fewer if rows are wide
    reverse:     against key order, with the last span first
    Raises:      READ_TOO_LONG, CORRUPT_FILE; WRONG_TYPE for a column that Arrow has no type for.
    """
    binding, rows, batch = read.binding, read.shown(), read.view.record.batch
    judged_ms = None if read.shows_closed else read.cut.judged_ms
    hidden = None if read.shows_hidden else read.hidden
    computed, names = definition, list(definition.columns)
    # What says whether a row is shown.
    asked = {EXPIRES_AT} if judged_ms is not None else set()
    asked |= {RESOLUTION, BUCKET} if hidden is not None else set()
    if asked - set(names):
        computed = with_columns(binding.definition, {*names, *asked})
    size = first_rows
    shape = table_schema(pa, computed, job, batch)
    by_row = binding.many or any(each.checks for each in spans)
    finish = None if by_row else ColumnFinish(computed)
    found: Iterable[Any] = chain.from_iterable(
        iter_rows(rows, binding, each, judge=read.judge, reverse=reverse, deadline=deadline)
        if by_row
        else _stored(read, rows, each, reverse=reverse)
        for each in (reversed(spans) if reverse else spans)
    )
    found = iter(found)
    while some := list(islice(found, size)):
        deadline.check()
        if finish is None:
            table = rows_table(pa, computed, [values for _, values, _ in some], job, batch)
        else:
            failures = Failures()
            keys = OrderedKeys(binding.definition.key_fields, binding.codec, [key for key, _ in some])
            arrays = finish.arrays(pa, keys, span_of([without_stamp(stored) for _, stored in some]), None, failures)
            table = shown_rows(pa, make_table(pa, arrays, shape, failures), judged_ms, hidden)
        yield table.select(names) if computed is not definition else table
        wide = sum(len(stored) for *_, stored in some) // len(some) + 1
        size = max(1, min(size * 4, _MOST_ROWS, _PIECE_BYTES // wide))


def _stored(read: OpenRead, rows: Snapshot, span: Span, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    """(ordered key, stored row) of a span."""
    if span.index is None:
        return iter_range(rows, read.binding.table, *span.keys, reverse=reverse)
    found = read.by_index(span, reverse=reverse)
    return ((ordered, split_value(store_key(ordered), stored)[1]) for _, ordered, stored in found)

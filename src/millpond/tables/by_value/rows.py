"""Rows in the order of an index: which span of it a read means, and the finished rows of that span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millpond.errors import RequestError
from millpond.replica.keys.codec import split_value, store_key
from millpond.replica.row_stamp import without_stamp
from millpond.replica.scan import after_prefix
from millpond.schema.definition.indexes import Index, name_of
from millpond.tables.by_value.entries import value_writer
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.keys import stored_values, unknown_column
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.scan.rows import Found

Given = Mapping[str, Any]
_BEFORE_ALL = -1


def index_span(binding: Binding, by: Index, within: Given, start: Given | None, end: Given | None) -> Span:
    """The entries of an index by these columns, of rows with the values of `within`.

    start, end:  the first columns of `by`: from these values on, and below those
    Raises:  NO_INDEX; UNKNOWN_COLUMN, WRONG_TYPE; INVALID_RANGE if `start` or `end` leaves out a column.
    """
    for name in by:
        if name not in binding.definition.columns:
            raise unknown_column(binding.definition, name)
    index, number = _choose(binding, by, within)
    prefix = _encode(binding, index[: len(within)], within)
    low = prefix + _encode(binding, _leading(binding, by, start, "start"), start) if start else prefix
    high = after_prefix(prefix) if prefix else None
    if end:
        high = prefix + _encode(binding, _leading(binding, by, end, "end"), end)
    return Span((low, _BEFORE_ALL), None if high is None else (high, _BEFORE_ALL), index=number)


def _choose(binding: Binding, by: Index, within: Given) -> tuple[Index, int]:
    """The index that begins with the columns of `within`, in any order, and goes on with those of `by`."""
    stored_values(binding.definition, within)
    for index, number in sorted(binding.indexes.items(), key=lambda item: len(item[0])):
        if set(index[: len(within)]) == within.keys() and index[len(within) :][: len(by)] == by:
            return index, number
    definition = binding.definition
    there = [name_of(index) for index in binding.indexes]
    raise RequestError(
        "NO_INDEX",
        f"{definition.table} has no index by {name_of((*within, *by))}; it has {'; '.join(there) or 'none'}.",
        hint="Declare it with indexes=…, and ask again when it is built; or sort the rows of a scan.",
        table=definition.table,
        indexes=there,
    )


def _leading(binding: Binding, by: Index, given: Given, what: str) -> Index:
    """The first columns of `by`, which are those that are given."""
    leading = by[: len(given)]
    if set(leading) != given.keys():
        raise RequestError(
            "INVALID_RANGE",
            f"{what} of {binding.definition.table} names {', '.join(given)}, but the rows are sorted by {', '.join(by)}.",
            hint="Name the first of these columns without a gap.",
            table=binding.definition.table,
        )
    return leading


def _encode(binding: Binding, names: Index, given: Given) -> bytes:
    types, stored = binding.definition.types, stored_values(binding.definition, given)
    return b"".join([value_writer(types[name])(stored[name]) for name in names])


def iter_index_rows(read: OpenRead, span: Span, *, reverse: bool, deadline: Deadline) -> Iterator[Found]:
    """(place, row, stored value) of the rows of a span of an index, in its order, or against it with `reverse`.

    Raises:  READ_TOO_LONG; INVALID_REQUEST for a batch before the newest.
    """
    binding, judge = read.binding, read.judge
    decode_key, decode_value, finish = binding.codec.decode, binding.decode_value, binding.finish
    for entry, ordered, stored in deadline.watch(read.by_index(span, reverse=reverse)):
        place = (entry, 0)
        if place not in span:
            continue
        key, value = decode_key(ordered), decode_value(split_value(store_key(ordered), without_stamp(stored))[1])
        marked = stored if judge is None else judge(key, value, stored)
        if marked is None:
            continue
        values = finish(key, value)
        if values is not None:
            yield place, values, marked

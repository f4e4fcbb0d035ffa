"""The finished rows of a span, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from millpond.checkpoint.encoding import iter_elements
from millpond.replica.backends.base import Snapshot
from millpond.replica.row_stamp import without_stamp
from millpond.replica.scan import iter_range
from millpond.schema.definition.table import KeyColumn
from millpond.schema.types import Field
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import Place, Span
from millpond.tables.scan.ttl import Judge

Found = tuple[Place, dict[str, Any], bytes]


def iter_rows(
    rows: Snapshot, binding: Binding, span: Span, *, judge: Judge | None, reverse: bool = False, deadline: Deadline
) -> Iterator[Found]:
    """(place, row, stored value) of the rows of a span, in key order, or against it with `reverse`.

    judge:   says which rows have expired; None if none has
    Raises:  READ_TOO_LONG.
    """
    low, high = span.keys
    edges = {low, span.high[0] if span.high is not None else low}
    fields, checks = binding.definition.key_fields, span.checks
    decode_key, decode_value, finish, many = binding.codec.decode, binding.decode_value, binding.finish, binding.many
    for ordered, stored in deadline.watch(iter_range(rows, binding.table, low, high, reverse=reverse)):
        key, row, at_edge = decode_key(ordered), without_stamp(stored), ordered in edges
        for number_in_list, whole, element in _elements(key, row, reverse=reverse) if many else ((0, key, row),):
            place = (ordered, number_in_list)
            if at_edge and place not in span:
                continue
            if checks and not all(_same(_member(whole, c, fields), value) for c, value in checks):
                continue
            value = decode_value(element)
            marked = stored if judge is None else judge(whole, value, stored)
            if marked is None:
                continue
            values = finish(whole, value)
            if values is not None:
                yield place, values, marked


def _elements(key: tuple[Any, ...], rows: bytes, *, reverse: bool) -> Iterable[tuple[int, tuple[Any, ...], bytes]]:
    """Each row of a list: its place, the key with its place, its bytes."""
    each = ((place, (*key, place), element) for place, element in enumerate(iter_elements(rows)))
    return reversed(list(each)) if reverse else each


def _member(key: tuple[Any, ...], column: KeyColumn, fields: tuple[Field, ...]) -> Any:
    value, type_ = key[column.index], fields[column.index].type
    for name in column.path:
        if value is None:
            return None
        place = [f.name for f in type_.fields].index(name)
        value, type_ = value[place], type_.fields[place].type
    return value


def _same(left: Any, right: Any) -> bool:
    """Equality as Spark groups: NULL equals NULL, NaN equals NaN."""
    return bool(left == right) or (left != left and right != right)

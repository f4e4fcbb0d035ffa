"""Which rows a read means: a range in the key's order, and columns to compare row by row.

A place in that order is (ordered key, place in the key's list).  A table without lists has one row
for each key, at place 0.  The first columns of a key sort before every key that begins with them,
as a shorter tuple does in Python.  So a start includes those keys, and an end excludes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from millpond.errors import RequestError
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.scan import after_prefix
from millpond.schema.definition.resolutions import BUCKET, LETTER
from millpond.schema.definition.table import KeyColumn, TableDefinition, key_parts
from millpond.tables.scan.keys import stored_window

Place = tuple[bytes, int]
_BEFORE_ALL = -1
Stored = dict[str, Any]
"""column name -> value in stored form"""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows from the place `low` on and before `high` whose columns have the values of `checks`.

    high:   None for no end
    index:  the number of the index whose entries the places are; None if they are keys
    """

    low: Place
    high: Place | None
    checks: list[tuple[KeyColumn, Any]] = field(default_factory=list)
    index: int | None = None

    def beyond(self, place: Place, *, reverse: bool) -> Span:
        """The rest of the span after the rows up to this place."""
        return replace(self, high=place) if reverse else replace(self, low=(place[0], place[1] + 1))

    def __contains__(self, place: Place) -> bool:
        return self.low <= place and (self.high is None or place < self.high)

    @property
    def keys(self) -> tuple[bytes, bytes | None]:
        """The ordered keys of the span: from the first on, below the second."""
        if self.high is None:
            return self.low[0], None
        key, place = self.high
        return self.low[0], key + b"\0" if place > 0 else key


def prefix_span(definition: TableDefinition, codec: KeyCodec, columns: Stored) -> Span:
    """Rows whose key columns have these values.

    Columns that aren't the first of the key are compared row by row.
    """
    prefix, rest = encode_leading(definition, codec, columns)
    checks = [(column, columns[column.name]) for column in key_parts(definition) if column.name in rest]
    return Span((prefix, _BEFORE_ALL), _after(prefix), checks)


def range_span(
    definition: TableDefinition, codec: KeyCodec, order: tuple[str, ...], prefix: Stored, start: Stored | None, end: Stored | None
) -> Span:
    """Rows whose first key columns have the values of `prefix`, from `start` on and before `end`.

    A range of buckets has no dead letters, which have no bucket.

    Raises:  INVALID_RANGE if a column is left out before a named one, is named twice, or has no
             order.
    """
    named = {*prefix, *(start or ()), *(end or ())}
    if definition.resolutions is not None and LETTER in order and BUCKET in named - prefix.keys() and LETTER not in named:
        prefix = {**prefix, LETTER: None}
    bytes_, _ = _encode(definition, codec, order, prefix, "The range")
    low: Place = (bytes_, _BEFORE_ALL)
    high = _after(bytes_)
    if start:
        low = _encode(definition, codec, order, _joined(prefix, start, definition), "start")
    if end:
        high = _encode(definition, codec, order, _joined(prefix, end, definition), "end")
    return Span(low, high)


def encode_leading(definition: TableDefinition, codec: KeyCodec, columns: Stored) -> tuple[bytes, set[str]]:
    """The longest prefix of ordered keys that the columns give, and the columns outside it."""
    rest = set(columns)
    whole: list[Any] = []
    for index in codec.order:
        parts = [c for c in definition.key if c.index == index]
        given = [c for c in parts if c.name in columns]
        if not given and parts and not parts[0].path:
            members = _leading_members(definition, index, columns)
            rest -= set(members)
            return codec.encode_prefix(whole, [columns[name] for name in members]), rest
        if given != parts[: len(given)] or not given:
            break
        values = [columns[c.name] for c in given]
        if parts[0].path:
            struct = stored_window(tuple(values)) if definition.key_fields[index].window else tuple(values)
            if len(given) < len(parts):
                rest -= {c.name for c in given}
                return codec.encode_prefix([*whole, None], []) if struct is None else codec.encode_prefix(whole, values), rest
            whole.append(struct)
        else:
            whole.append(values[0])
        rest -= {c.name for c in given}
    return codec.encode_prefix(whole, []), rest


def _leading_members(definition: TableDefinition, index: int, columns: Stored) -> list[str]:
    """The first members of a struct that the columns give.

    None if all of them are NULL: a struct that is NULL itself shows such members too, but its bytes
    don't begin with theirs.
    """
    of_it = [c.name for c in key_parts(definition) if c.index == index and len(c.path) == 1]
    given = list(takewhile(columns.__contains__, of_it))
    return given if any(columns[name] is not None for name in given) else []


def _encode(definition: TableDefinition, codec: KeyCodec, order: tuple[str, ...], columns: Stored, what: str) -> Place:
    prefix, rest = encode_leading(definition, codec, columns)
    last = order[-1] if order else ""
    if definition.many and rest == {last} and len(columns) == len(order):
        place = columns[last]
        return prefix, _BEFORE_ALL if place is None else place
    if rest:
        left_out = next((name for name in order if name not in columns), last)
        raise RequestError(
            "INVALID_RANGE",
            f"{what} of {definition.table} names {', '.join(sorted(rest))} but not all of {left_out}, which rows are sorted by.",
            hint=f"Rows are sorted by {', '.join(order)}: name the first of them without a gap, or use `scan`.",
            table=definition.table,
            key_order=list(order),
        )
    return prefix, _BEFORE_ALL


def _joined(prefix: Stored, limit: Stored, definition: TableDefinition) -> Stored:
    for column in key_parts(definition):
        if column.name in limit and column.name in prefix:
            raise RequestError(
                "INVALID_RANGE",
                f"{column.name} is given twice: for all rows, and as a limit of the range.",
                hint="Leave it out of `start` and `end`.",
                table=definition.table,
                column=column.name,
            )
        if column.name in limit and not column.type.is_ordered:
            raise RequestError(
                "INVALID_RANGE",
                f"{column.name} is of type {column.type}, which Spark gives no order.",
                hint="Give its value for all rows of the range, or use `scan`.",
                table=definition.table,
                column=column.name,
            )
    return {**prefix, **limit}


def _after(prefix: bytes) -> Place | None:
    end = after_prefix(prefix)
    return None if end is None else (end, _BEFORE_ALL)

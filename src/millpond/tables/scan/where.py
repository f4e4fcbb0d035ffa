"""Conditions on the values of rows, and the order of rows by a value, as Spark compares them.

    hits > 100      a column, one of = != < <= > >=, and a value as in a URL; blanks around the sign may be left out
    page__isnull=1  the column is NULL; `=0`: it isn't

NULL meets no comparison.  NaN equals itself and is larger than every number.  Texts sort by their
bytes, and NULL sorts first.  A value that can't be computed meets no condition, and sorts like
NULL.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from millpond.errors import RequestError
from millpond.schema.convert import to_stored
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.schema.values import from_text
from millpond.tables.answer import Row
from millpond.tables.failed import FailedValue
from millpond.tables.scan.keys import unknown_column

Condition = Callable[[Row], bool]
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_UNORDERED = frozenset({"struct", "array", "map", "variant", "calendar_interval", "void"})
_ISNULL = "__isnull"


def parse_condition(definition: TableDefinition, text: str) -> Condition:
    """A condition on the rows of a table, from its text.

    Raises:  INVALID_REQUEST if the text isn't a condition; UNKNOWN_COLUMN; WRONG_TYPE if the value
             isn't of the column's type, or that type has no order.
    """
    types = definition.types
    # Try the longest name first: a column may be called `a>b`, beside one called `a`.
    for name in sorted(types, key=len, reverse=True):
        if not text.startswith(name):
            continue
        rest = text[len(name) :].lstrip()
        if rest.startswith(_ISNULL):
            wanted = {"=1": True, "=0": False}.get(rest.removeprefix(_ISNULL).replace(" ", ""))
            if wanted is not None:
                return _null(name, wanted=wanted)
        sign = next((sign for sign in _SIGNS if rest.startswith(sign)), None)
        if sign is not None:
            return _comparison(name, types[name], sign, rest.removeprefix(sign).lstrip())
    signs = " ".join(_SIGNS)
    unknown = next((text.partition(sign)[0].strip() for sign in _SIGNS if sign in text), None)
    if unknown is not None and unknown.removesuffix(_ISNULL) not in types:
        raise unknown_column(definition, unknown.removesuffix(_ISNULL))
    raise RequestError(
        "INVALID_REQUEST", f"{text!r:.80} isn't a condition.", hint=f"Write a column, one of {signs}, and a value: 'hits > 100'."
    )


def first_by(definition: TableDefinition, column: str, rows: Iterable[Row], limit: int, *, reverse: bool) -> tuple[list[Row], bool]:
    """The first rows by a column's value (the last with `reverse`), and whether there are more.

    Rows with equal values stay in the order in which they come.  No more rows than the limit are in
    memory.

    Raises:  UNKNOWN_COLUMN; WRONG_TYPE if the column's type has no order.
    """
    type_ = definition.types.get(column)
    if type_ is None:
        raise unknown_column(definition, column)
    place = _place(column, type_)
    # Of equal values, the one that came first stays first in both directions.
    numbered = ((row, number) for number, row in enumerate(rows))
    if reverse:
        found = heapq.nlargest(limit + 1, numbered, key=lambda pair: (place(dict.get(pair[0], column)), -pair[1]))
    else:
        found = heapq.nsmallest(limit + 1, numbered, key=lambda pair: (place(dict.get(pair[0], column)), pair[1]))
    return [row for row, _ in found[:limit]], len(found) > limit


def met(rows: Iterable[Row], conditions: list[Condition]) -> Iterator[Row]:
    """The rows that meet all conditions."""
    return (row for row in rows if all(is_met(row) for is_met in conditions))


def _comparison(name: str, type_: SparkType, sign: str, text: str) -> Condition:
    place = _place(name, type_)
    value, holds = place(from_text(type_, column=name)(text)), _SIGNS[sign]

    def is_met(row: Row) -> bool:
        found = dict.get(row, name)  # reading it would raise its error
        return found is not None and type(found) is not FailedValue and holds(place(found), value)

    return is_met


def _null(name: str, *, wanted: bool) -> Condition:
    def is_met(row: Row) -> bool:
        found = dict.get(row, name)
        return type(found) is not FailedValue and (found is None) is wanted

    return is_met


def _place(name: str, type_: SparkType) -> Callable[[Any], Any]:
    """A function from a value to what is compared in its place."""
    if type_.kind in _UNORDERED:
        raise RequestError(
            "WRONG_TYPE", f"Column {name!r} is a {type_}, which has no order.", hint="Name a column of numbers, texts or times."
        )

    stored = to_stored(type_)  # times as whole numbers, which don't end in the year 9999

    def place(value: Any) -> Any:
        if value is None or type(value) is FailedValue:
            return (0,)
        if isinstance(value, float):
            return (2,) if math.isnan(value) else (1, value)
        return 1, stored(value)

    return place

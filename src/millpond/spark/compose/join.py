"""A join of two tables, kept by their changes, equal to the join of the tables' rows.

1. Changes of each side become signed rows (`signed_rows`), grouped by the joined columns.
2. State holds the rows of both sides and the joined rows (`joined`).  Each changed row is joined
   anew with the group's rows of the other side.
3. NULL equals nothing, as in SQL: such rows are left out, or stand alone in an outer join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.errors import RequestError
from millpond.spark.buffered import STATE_TYPES
from millpond.spark.compose.aggregate import signed_rows
from millpond.spark.compose.joined import SIDE, JoinedRows, SideShape, input_name
from millpond.spark.shards import quoted
from millpond.spark.source.columns import BATCH, KIND, NEW, OWN, PART_OF_KEY, SIGN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

HOW = ("inner", "left", "right")
_NAMES = ("left", "right")


@dataclass(frozen=True, slots=True)
class _Side:
    """One table of a join.

    on:      its joined columns
    key:     the other columns of its key
    values:  its value columns that aren't joined
    """

    name: str
    rows: DataFrame
    on: tuple[str, ...]
    key: tuple[StructField, ...]
    values: tuple[StructField, ...]

    @property
    def own(self) -> tuple[StructField, ...]:
        return (*self.key, *self.values)


def join_changes(
    left: DataFrame,
    right: DataFrame,
    on: Sequence[str] | Mapping[str, str],
    how: str = "inner",
    *,
    suffixes: tuple[str, str] = ("", ""),
) -> DataFrame:
    """The join of two tables, kept by their changes; give it to `start`.

    The result equals the join of the tables' rows, each table as of the batch up to which it has
    been read.  The joined columns need not be the tables' keys: a row of one table may match many
    of the other.  A change to a row reads the rows of the other table that match it.

    left, right:  of `read_changes`, with all columns of the table's key
    on:           columns of both tables, or the left one's -> the right one's
    how:          `inner`, `left` or `right`
    suffixes:     for the left and the right columns that both tables have and that aren't joined
    Key:          the joined columns, and the other key columns of the left and the right table
    Tables:       `<table>_result`; `<table>_left` and `<table>_right` are the held rows
    Raises:       UNKNOWN_COLUMN; WRONG_TYPE if joined columns differ in type, or the state would
                  change values of a type; INVALID_REQUEST, such as for columns of one name.
    """
    if how not in HOW:
        raise _invalid(f"how is {how!r:.40}", f"Use {', '.join(HOW)}.")
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in ([on] if isinstance(on, str) else on)}
    if not pairs:
        raise _invalid("on is empty", "Name the columns that must be equal.")
    sides = [_parse_side(*one) for one in zip(_NAMES, (left, right), (tuple(pairs), tuple(pairs.values())), strict=True)]
    for names in zip(*(side.on for side in sides), strict=True):
        _check_joined(sides, names)
    for side in sides:
        for field in side.own:
            _check_type(side, field)
        for field in side.key:
            _check_key_type(side, field)
    renamed = _renamed(sides, suffixes)
    return _joined(sides, renamed, how)


def _parse_side(name: str, changes: DataFrame, on: tuple[str, ...]) -> _Side:
    rows = signed_rows(changes)  # 1
    if PART_OF_KEY in changes.schema[KIND].metadata:
        raise _invalid(f"the {name} changes lack columns of the table's key", "Name the whole key in the option `columns`.")
    fields = {field.name: field for field in rows.schema.fields if field.name not in (SIGN, BATCH)}
    for column in on:
        if column not in fields:
            raise RequestError(
                "UNKNOWN_COLUMN",
                f"The {name} rows have no column {column!r:.80}.",
                hint=f"Their columns are {', '.join(fields)}.",
                column=column,
            )
    if len(set(on)) < len(on):
        raise _invalid(f"a {name} column is joined twice", "Name each column once.")
    key = tuple(fields[column] for column in changes.columns if column not in OWN and column not in on)
    kept = changes.schema[NEW].dataType.names if NEW in changes.columns else []
    return _Side(name, rows, on, key, tuple(fields[column] for column in kept if column not in on))


def _check_joined(sides: list[_Side], names: tuple[str, ...]) -> None:
    left, right = (side.rows.schema[name].dataType for side, name in zip(sides, names, strict=True))
    if left != right:
        raise RequestError(
            "WRONG_TYPE",
            f"The left {names[0]} is of type {left.simpleString()}, the right {names[1]} of type {right.simpleString()}.",
            hint="Cast one of them in its job, so that both have one type.",
            column=names[0],
        )
    for side, name in zip(sides, names, strict=True):
        _check_type(side, side.rows.schema[name])
        _check_key_type(side, side.rows.schema[name])


def _check_key_type(side: _Side, field: StructField) -> None:
    """NaN isn't equal to itself in Python, and there are two zeros."""
    if field.dataType.typeName() in ("float", "double"):
        raise RequestError(
            "WRONG_TYPE",
            f"The {side.name} column {field.name} is a {field.dataType.simpleString()}, by which changes can't be joined.",
            hint="Keys may be whole numbers, decimals, texts, booleans, bytes, dates and times.",
            column=field.name,
        )


def _check_type(side: _Side, field: StructField) -> None:
    kind = field.dataType.typeName()
    if kind not in STATE_TYPES or (kind == "string" and field.dataType.simpleString() != "string"):
        raise RequestError(
            "WRONG_TYPE",
            f"The {side.name} column {field.name} is of type {field.dataType.simpleString()}, whose values the state would change.",
            hint="Leave it out by the option `columns` of read_changes, or make a text, number, date or time of it in its job.",
            column=field.name,
        )


def _renamed(sides: list[_Side], suffixes: tuple[str, str]) -> list[list[str]]:
    """The names of each side's own columns in the result."""
    lower = [{field.name.lower() for field in side.own} for side in sides]
    both = lower[0] & lower[1]
    names = [
        [field.name + (suffix if field.name.lower() in both else "") for field in side.own]
        for side, suffix in zip(sides, suffixes, strict=True)
    ]
    seen: set[str] = set()
    for name in (*sides[0].on, *names[0], *names[1]):
        if name.lower() in seen:
            raise _invalid(
                f"the result would have two columns {name}",
                'Give suffixes, such as suffixes=("_left", "_right"), or leave one out by the option `columns` of read_changes.',
            )
        seen.add(name.lower())
    return names


def _joined(sides: list[_Side], renamed: list[list[str]], how: str) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    named = [
        [StructField(name, field.dataType) for name, field in zip(names, side.own, strict=True)]
        for side, names in zip(sides, renamed, strict=True)
    ]
    shapes, parts = [], []
    for number, side in enumerate(sides):
        width = len(side.key)
        shapes.append(SideShape(StructType(named[number][:width]), StructType(named[number][width:])))
        rows = side.rows
        if how != side.name:  # 3
            rows = rows.dropna(how="any", subset=[quoted(name) for name in side.on])
        columns = [F.col(quoted(name)).alias(result) for name, result in zip(side.on, sides[0].on, strict=True)]
        for other, one in enumerate(sides):
            for place, field in enumerate(one.own):
                value = F.col(quoted(field.name)) if other == number else F.lit(None).cast(field.dataType)
                columns.append(value.alias(input_name(other, place)))
        parts.append(rows.select(*columns, F.lit(number).alias(SIDE), F.col(SIGN), F.col(BATCH)))
    both = parts[0].unionByName(parts[1])
    joined = [StructField(name, both.schema[name].dataType) for name in sides[0].on]
    output = StructType([*joined, *shapes[0].key, *shapes[1].key, *shapes[0].values, *shapes[1].values])
    outer = (how == "left", how == "right")
    return both.groupBy(*(quoted(name) for name in sides[0].on)).transformWithState(  # 2
        JoinedRows((shapes[0], shapes[1]), outer, output), outputStructType=output, outputMode="update", timeMode="none"
    )


def _invalid(found: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"The changes can't be joined: {found}.", hint=hint)

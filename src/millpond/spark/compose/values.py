"""The values of an aggregate over changes: which functions can take a row back, and what they read.

Spark resolves each value over the table's rows, and its plan says which function it is.  So a value
may be written by `F.sum("hits")`, by `F.expr("sum(hits)")`, or over an expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.errors import RequestError
from millpond.spark.derive.plan import class_name, elements
from millpond.spark.shards import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

# Spark's class -> our word
_FUNCTIONS = {"Count": "count", "Sum": "sum", "Average": "avg", "Min": "min", "Max": "max"}
_WHOLE = ("byte", "short", "integer", "long")
# Values of these types are the same in Python as in Spark, with the same order.
_HELD_TYPES = frozenset({*_WHOLE, "boolean", "string", "date", "decimal", "float", "double", "binary"})


@dataclass(frozen=True, slots=True)
class Top:
    """The rows of a group with the greatest values.

    label:  the column that names a row
    by:     the column by which rows are ordered
    most:   how many rows
    """

    label: str
    by: str
    most: int


def top(label: str, *, by: str, most: int) -> Top:
    """The rows of a group with the greatest values of a column, as an array of structs, greatest first.

    Rows with equal values are ordered by their label.  Rows whose value is NULL don't count.

    label:  the column that names a row
    by:     the column by which rows are ordered
    most:   how many rows, from 1
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise RequestError("INVALID_REQUEST", f"most is {most!r:.40}.", hint="Use a whole number from 1.")
    return Top(label, by, most)


@dataclass(frozen=True, slots=True)
class Value:
    """One value of an aggregate over changes.

    function:  count, sum, avg, min, max, distinct, top
    inputs:    SQL of what it reads; empty for `count(*)`
    kinds:     the type name of each input
    type:      of the result
    is_signed: whether signed updates give it exactly; else state must hold its inputs
    """

    name: str
    function: str
    inputs: tuple[str, ...]
    kinds: tuple[str, ...]
    type: DataType
    is_signed: bool
    most: int = 0


def parse_values(rows: DataFrame, values: Mapping[str, Column | Top]) -> list[Value]:
    """What each value is, over the table's rows.

    Raises:  NOT_RETRACTABLE for a function that can't take a row back, such as a sketch; WRONG_TYPE;
             UNKNOWN_COLUMN; Spark's AnalysisException for an expression that it refuses.
    """
    schema = rows.schema
    return [
        _parse_top(schema, name, value) if isinstance(value, Top) else _parse(rows, name, value) for name, value in values.items()
    ]


def _parse(rows: DataFrame, name: str, value: Column) -> Value:
    found = rows.groupBy().agg(value.alias(name))
    aggregates = elements(found._jdf.queryExecution().analyzed().aggregateExpressions())
    expression = aggregates[0].child()
    if class_name(expression) != "AggregateExpression" or expression.filter().isDefined():
        raise _refused(name, value, "it isn't one function alone")
    function = expression.aggregateFunction()
    word = _FUNCTIONS.get(class_name(function))
    if word is None:
        raise _refused(name, value, "its function can't take a row back")
    children = elements(function.children())
    if word == "count":
        texts = [str(child.sql()) for child in children]
        constant = len(children) == 1 and bool(children[0].foldable()) and not bool(children[0].nullable())
        if not expression.isDistinct() and constant:
            return Value(name, "count", (), (), found.schema[0].dataType, is_signed=True)
        if len(children) != 1:
            raise _refused(name, value, "it counts several columns")
    elif expression.isDistinct() and word in ("sum", "avg"):
        raise _refused(name, value, "of distinct values only their number is known")
    else:
        texts = [str(children[0].sql())]
    kinds = tuple(str(child.dataType().typeName()).partition("(")[0] for child in children)
    if word == "count" and expression.isDistinct():
        word = "distinct"
    is_signed = word == "count" or (word == "sum" and kinds[0] in (*_WHOLE, "decimal")) or (word == "avg" and kinds[0] in _WHOLE)
    if not is_signed:
        _check_held(name, kinds[0])
    return Value(name, word, (texts[0],), (kinds[0],), found.schema[0].dataType, is_signed=is_signed)


def _parse_top(schema: StructType, name: str, value: Top) -> Value:
    from pyspark.sql.types import ArrayType, StructField, StructType

    fields = {f.name: f for f in schema.fields}
    for column in (value.label, value.by):
        if column not in fields:
            raise RequestError(
                "UNKNOWN_COLUMN",
                f"The rows have no column {column!r:.80}.",
                hint=f"Their columns are {', '.join(fields)}.",
                column=column,
            )
        _check_held(name, fields[column].dataType.typeName())
    type_ = ArrayType(StructType([StructField(c, fields[c].dataType) for c in (value.label, value.by)]))
    inputs = (quoted(value.label), quoted(value.by))
    kinds = tuple(fields[c].dataType.typeName() for c in (value.label, value.by))
    return Value(name, "top", inputs, kinds, type_, is_signed=False, most=value.most)


def _check_held(name: str, kind: str) -> None:
    if kind not in _HELD_TYPES:
        raise RequestError(
            "WRONG_TYPE",
            f"{name} would hold values of type {kind} in state, which an aggregate over changes can't.",
            hint="Cast them to a number, a string or a date.",
            type=kind,
        )


def _refused(name: str, value: Any, why: str) -> RequestError:
    return RequestError(
        "NOT_RETRACTABLE",
        f"The value {name} can't be kept over changes: {why} ({str(value)[:200]}).",
        hint="Use count, sum, avg, min, max, count_distinct or millpond.top; compute sketches over the events themselves.",
        value=name,
    )

"""Aggregate functions: the final value from the buffers that Spark keeps.

Most buffers are the result already (a count, a maximum).  For functions that Spark declares by
expressions (statistics), the definition has the expression of the result: see `definition`.

Source:  evaluateExpression of the classes in org.apache.spark.sql.catalyst.expressions.aggregate,
         Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import DefinitionError
from millpond.scalar.number.ranges import divide_half_up, fit, overflow, quotient
from millpond.schema.definition.expression import Expression
from millpond.schema.types import Field, SparkType, atomic
from millpond.tables.finish.buffers.counted import COUNTED, compile_counted
from millpond.tables.finish.buffers.histogram import compile_histogram
from millpond.tables.finish.buffers.hllpp import estimator
from millpond.tables.finish.buffers.items import TopItems
from millpond.tables.finish.buffers.java_order import set_order
from millpond.tables.finish.buffers.joined import compile_joined
from millpond.tables.finish.buffers.quantiles import compile_quantiles
from millpond.tables.finish.buffers.top_k import TOP, top
from millpond.tables.variant_schema import compile_variant_schema

Stored = Any
Finisher = Callable[[Sequence[Stored]], Stored]
"""All buffers of a row -> the function's final value."""

# The first buffer is the result.
AS_STORED = frozenset(
    {
        "count", "min", "max", "first", "last", "bit_and", "bit_or", "bit_xor", "max_by", "min_by", "product",
        "count_min_sketch", "bitmap_construct_agg", "bitmap_or_agg", "bitmap_and_agg", "hll_sketch", "theta_sketch", "kll_sketch",
    }
)  # fmt: skip


def compile_aggregate(expression: Expression, *, is_operand: bool = False) -> Finisher:
    """The function for an `aggregate` expression.

    is_operand:  whether another expression uses the result: then a set's elements are put in
                 Spark's order, which takes time
    Raises:  DEFINITION_MISMATCH if this version of Millpond doesn't know the function.
    """
    function, places = expression.options["function"], list(expression.options["buffers"])
    if function in AS_STORED:
        return _as_stored(places[0])
    if function == "sum":
        return _sum(expression, places)
    if function == "avg":
        return _average(expression, places)
    if function == "approx_count_distinct":
        return _distinct(expression, places)
    if function in ("collect_list", "collect_set"):
        return _collection(expression, places[0], is_operand=is_operand)
    if function in TOP:
        return _top(expression, places)
    if function in _BYTES:
        return _of_one(_BYTES[function](expression), places[0])
    raise DefinitionError(
        "DEFINITION_MISMATCH",
        f"The definition uses an aggregate function that this Millpond doesn't know: {function!r}.",
        hint="Read this table with the Millpond version that wrote its definition, or a newer one.",
        function=function,
    )


def _as_stored(place: int) -> Finisher:
    def finish(buffers: Sequence[Stored]) -> Stored:
        return buffers[place]

    return finish


def _sum(expression: Expression, places: list[int]) -> Finisher:
    """A sum alone, or with `isEmpty` if NULL can mean an overflow (decimals, try_sum)."""
    if len(places) == 1:
        return _as_stored(places[0])
    place, empty = places
    type_, strict = expression.type, expression.options["mode"] == "ansi"

    def finish(buffers: Sequence[Stored]) -> Stored:
        if buffers[empty]:
            return None
        total = buffers[place]
        if total is None and strict:
            raise overflow(type_)
        return total

    return finish


_BYTES: dict[str, Callable[[Expression], Callable[[bytes | None], Stored]]] = {
    **dict.fromkeys(COUNTED, compile_counted),
    "percentile_approx": compile_quantiles,
    "histogram_numeric": compile_histogram,
    "listagg": compile_joined,
    "schema_of_variant_agg": compile_variant_schema,
    "approx_top_k": lambda expression: TopItems(expression).values,
}


def _of_one(finish_bytes: Callable[[bytes | None], Stored], place: int) -> Finisher:
    def finish(buffers: Sequence[Stored]) -> Stored:
        return finish_bytes(buffers[place])

    return finish


def _top(expression: Expression, places: list[int]) -> Finisher:
    values = top(expression).values

    def finish(buffers: Sequence[Stored]) -> Stored:
        return values([buffers[place] for place in places])

    return finish


def _average(expression: Expression, places: list[int]) -> Finisher:
    total_at, count_at = places
    divide = _division(expression.type, expression.options)

    def finish(buffers: Sequence[Stored]) -> Stored:
        count = buffers[count_at]
        return divide(buffers[total_at], count) if count else None

    return finish


def _division(type_: SparkType, options: dict[str, Any]) -> Callable[[Stored, int], Stored]:
    """Sum and count (not zero) -> average."""
    mode = options["mode"]

    def decimals(total: Stored, count: int) -> Stored:
        if total is None:
            if mode == "ansi":
                raise overflow(type_)
            return None
        return fit(quotient(total, Decimal(count)), type_, mode)

    def intervals(total: Stored, count: int) -> Stored:
        return None if total is None else divide_half_up(total, count)

    def doubles(total: Stored, count: int) -> Stored:
        return None if total is None else total / count

    if type_.kind == "decimal":
        return decimals
    return intervals if type_.kind in ("day_time_interval", "year_month_interval") else doubles


# ---------------------------------------------------------------- sketches and collections


def _distinct(expression: Expression, places: list[int]) -> Finisher:
    estimate = estimator(expression.options["precision"])
    first, last = places[0], places[-1] + 1

    def finish(buffers: Sequence[Stored]) -> Stored:
        return estimate(buffers[first:last])

    return finish


def _collection(expression: Expression, place: int, *, is_operand: bool) -> Finisher:
    """collect_list and collect_set keep an UnsafeRow with one array in a binary column.

    collect_set keeps binary elements as array<byte>, since its hash set needs their equality.
    """
    element = expression.type.element
    assert element is not None
    is_set = expression.options["function"] == "collect_set"
    as_bytes = element.kind == "binary" and is_set
    if as_bytes:
        element = SparkType("array", "array", element=atomic("byte"))
    decode = decoder((Field("buf", SparkType("array", "array", element=element)),))
    in_order = set_order(element) if is_set and is_operand else list

    def finish(buffers: Sequence[Stored]) -> Stored:
        data = buffers[place]
        if not data:
            return []
        items = in_order(decode(data)[0])
        return [bytes(b & 255 for b in item) for item in items] if as_bytes else items

    return finish

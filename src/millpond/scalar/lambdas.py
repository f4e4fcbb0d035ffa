"""Functions of arrays that take a function: its arguments stand behind the buffers while it is evaluated.

A variable says how far from their end it stands.

Source:  higherOrderFunctions.scala, Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key

from millpond.errors import RequestError
from millpond.scalar.function import Evaluate, Row, Stored, function
from millpond.schema.expression import Expression


def _variable(e: Expression, __: Sequence[Evaluate]) -> Evaluate:
    place = -int(e.options["from_end"])
    return lambda _, buffers: buffers[place]


def _each(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """transform and filter: of the element, and of its place where the function has two arguments."""
    whole, body = operands
    indexed, keeps = e.options["arguments"] == 2, e.op == "array_filter"

    def evaluate(key: Row, buffers: Row) -> list[Stored] | None:
        values = whole(key, buffers)
        if values is None:
            return None
        made = [body(key, (*buffers, v, n) if indexed else (*buffers, v)) for n, v in enumerate(values)]
        return [v for v, kept in zip(values, made, strict=True) if kept is True] if keeps else made

    return evaluate


def _exists(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Whether the function is true of some element; NULL where that isn't known, or by a legacy setting false."""
    whole, body = operands
    unknown = None if e.options["three_valued"] else False

    def evaluate(key: Row, buffers: Row) -> bool | None:
        values = whole(key, buffers)
        if values is None:
            return None
        missing = False
        for value in values:
            found = body(key, (*buffers, value))
            if found is True:
                return True
            missing = missing or found is None
        return unknown if missing else False

    return evaluate


def _forall(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    whole, body = operands

    def evaluate(key: Row, buffers: Row) -> bool | None:
        values = whole(key, buffers)
        if values is None:
            return None
        missing = False
        for value in values:
            found = body(key, (*buffers, value))
            if found is False:
                return False
            missing = missing or found is None
        return None if missing else True

    return evaluate


def _aggregate(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    whole, zero, merge, finish = operands

    def evaluate(key: Row, buffers: Row) -> Stored:
        values = whole(key, buffers)
        if values is None:
            return None
        total = zero(key, buffers)
        for value in values:
            total = merge(key, (*buffers, total, value))
        return finish(key, (*buffers, total))

    return evaluate


def _sort(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """By a function that compares two elements."""
    whole, compare = operands

    def evaluate(key: Row, buffers: Row) -> list[Stored] | None:
        values = whole(key, buffers)
        if values is None:
            return None

        def order(a: Stored, b: Stored) -> int:
            found = compare(key, (*buffers, a, b))
            if found is None:
                raise RequestError(
                    "VALUE_OUT_OF_RANGE",
                    "Its expression sorts by a comparison that is NULL.",
                    hint="Let the function give a number.",
                )
            return int(found)

        return sorted(values, key=cmp_to_key(order))

    return evaluate


FUNCTIONS = (
    function("array_sort", _sort, "ArraySort"),
    function("variable", _variable, "NamedLambdaVariable", reads=("from_end",)),
    function("array_transform", _each, "ArrayTransform", reads=("arguments",)),
    function("array_filter", _each, "ArrayFilter", reads=("arguments",)),
    function("array_exists", _exists, "ArrayExists", reads=("three_valued",)),
    function("array_forall", _forall, "ArrayForAll"),
    function("array_aggregate", _aggregate, "ArrayAggregate"),
)

"""Functions of arrays and maps that take a function.

While it is evaluated, its arguments follow the buffers; a variable has its distance from their end.

Source:  higherOrderFunctions.scala, Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from itertools import zip_longest

from millpond.errors import RequestError
from millpond.scalar.collection.functions import frozen_form, map_of_arrays, refuse_map
from millpond.scalar.function import Evaluate, Row, Stored, function
from millpond.schema.definition.expression import Expression


def _variable(e: Expression, __: Sequence[Evaluate]) -> Evaluate:
    place = -int(e.options["from_end"])
    return lambda _, buffers: buffers[place]


def _each(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """transform and filter: with the element, and its place if the function has two arguments."""
    whole, body = operands
    indexed, keeps = e.options["arguments"] == 2, e.op == "array_filter"

    def evaluate(key: Row, buffers: Row) -> list[Stored] | None:
        values = whole(key, buffers)
        if values is None:
            return None
        made = [body(key, (*buffers, v, n) if indexed else (*buffers, v)) for n, v in enumerate(values)]
        return [v for v, keep in zip(values, made, strict=True) if keep is True] if keeps else made

    return evaluate


def _exists(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Whether the function is true for some element; NULL if unknown, or false by a legacy setting."""
    return _until(operands, wanted=True, unknown=None if e.options["three_valued"] else False)


def _forall(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _until(operands, wanted=False, unknown=None)


def _until(operands: Sequence[Evaluate], *, wanted: bool, unknown: bool | None) -> Evaluate:
    """`wanted` if some element gives it; else its opposite, or `unknown` if some element gives NULL."""
    whole, body = operands

    def evaluate(key: Row, buffers: Row) -> bool | None:
        values = whole(key, buffers)
        if values is None:
            return None
        missing = False
        for value in values:
            found: bool | None = body(key, (*buffers, value))
            if found is wanted:
                return wanted
            missing = missing or found is None
        return unknown if missing else not wanted

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


# ---------------------------------------------------------------- maps, and two arrays


def _entries(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """map_filter, transform_keys and transform_values: with a key and its value."""
    whole, body = operands
    put = map_of_arrays(e) if e.op == "transform_keys" else None

    def evaluate(key: Row, buffers: Row) -> list[tuple[Stored, Stored]] | None:
        pairs = whole(key, buffers)
        if pairs is None:
            return None
        made = [body(key, (*buffers, k, v)) for k, v in pairs]
        if put is not None:
            return put(made, [v for _, v in pairs])
        if e.op == "map_filter":
            return [pair for pair, stays in zip(pairs, made, strict=True) if stays is True]
        return [(k, new) for new, (k, _) in zip(made, pairs, strict=True)]

    return evaluate


def _refuse_entries(e: Expression) -> str | None:
    return refuse_map(e) if e.op == "transform_keys" else None


def _zip_with(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Missing elements of the shorter array are NULL."""
    first, second, body = operands

    def evaluate(key: Row, buffers: Row) -> list[Stored] | None:
        a, b = first(key, buffers), second(key, buffers)
        if a is None or b is None:
            return None
        return [body(key, (*buffers, v, w)) for v, w in zip_longest(a, b)]

    return evaluate


def _map_zip_with(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """The keys of the first map, then those only in the second; missing values are NULL."""
    first, second, body = operands
    assert e.type.key is not None
    frozen = frozen_form(e.type.key)

    def evaluate(key: Row, buffers: Row) -> list[tuple[Stored, Stored]] | None:
        a, b = first(key, buffers), second(key, buffers)
        if a is None or b is None:
            return None
        left, right = ({frozen(k): v for k, v in pairs} for pairs in (a, b))
        names = {frozen(k): k for k, _ in (*b, *a)}
        order = dict.fromkeys((*left, *right))
        return [(names[k], body(key, (*buffers, names[k], left.get(k), right.get(k)))) for k in order]

    return evaluate


# ---------------------------------------------------------------- order


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
    function("map_filter", _entries, "MapFilter"),
    function("transform_keys", _entries, "TransformKeys", refuse=_refuse_entries, reads=("dedup",)),
    function("transform_values", _entries, "TransformValues"),
    function("zip_with", _zip_with, "ZipWith"),
    function("map_zip_with", _map_zip_with, "MapZipWith", refuse=refuse_map),
    function("array_aggregate", _aggregate, "ArrayAggregate"),
)

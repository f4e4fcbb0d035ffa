"""Comparisons, conditions and choices.

Source:  predicates.scala, nullExpressions.scala, conditionalExpressions.scala, Spark 4.3.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from millpond.scalar.function import (
    ATOMS,
    FLOATS,
    Evaluate,
    Row,
    Stored,
    Values,
    function,
    plain,
    refuse_collation,
    strict,
    takes,
)
from millpond.scalar.order import rank
from millpond.scalar.spark_fails import SparkFails
from millpond.schema.definition.expression import Expression
from millpond.schema.types import SparkType

_COMPARE: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "eq": ("EqualTo", operator.eq),
    "lt": ("LessThan", operator.lt),
    "le": ("LessThanOrEqual", operator.le),
    "gt": ("GreaterThan", operator.gt),
    "ge": ("GreaterThanOrEqual", operator.ge),
}


def refuse_unordered(op: str, type_: SparkType) -> str | None:
    """Why values of a type can't be compared here: they have no order, or one that isn't known here."""
    if not type_.is_ordered or not _is_comparable(type_):
        return f"{op} on {type_} isn't known here"
    return refuse_collation(op, type_)


def _is_comparable(type_: SparkType) -> bool:
    if type_.kind == "struct":
        return all(_is_comparable(f.type) for f in type_.fields)
    if type_.kind == "array":
        return type_.element is not None and _is_comparable(type_.element)
    return type_.kind in ATOMS or type_.kind == "void"


def _refuse_compared(e: Expression) -> str | None:
    return next((reason for a in e.args if (reason := refuse_unordered(e.op, a.type))), None)


def _compare(e: Expression) -> Values:
    compare, ranked = _COMPARE[e.op][1], rank(e.args[0].type)
    return lambda a, b: compare(ranked(a), ranked(b))


def _equal_null_safe(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    left, right = operands
    ranked = rank(e.args[0].type)

    def evaluate(key: Row, buffers: Row) -> bool:
        a, b = left(key, buffers), right(key, buffers)
        if a is None or b is None:
            return a is b
        return bool(ranked(a) == ranked(b))

    return evaluate


def _in(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    wanted, *candidates = operands
    ranked_of = rank(e.args[0].type)

    def evaluate(key: Row, buffers: Row) -> bool | None:
        value = wanted(key, buffers)
        if value is None:
            return None
        ranked, unknown = ranked_of(value), False
        for candidate in candidates:
            other = candidate(key, buffers)
            if other is None:
                unknown = True
            elif ranked_of(other) == ranked:
                return True
        return None if unknown else False

    return evaluate


def _extreme(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """greatest and least: ignore NULLs, and take the first of equal values."""
    ranked = rank(e.type)
    better = operator.gt if e.op == "greatest" else operator.lt

    def evaluate(key: Row, buffers: Row) -> Stored:
        best = None
        for operand in operands:
            value = operand(key, buffers)
            if value is not None and (best is None or better(ranked(value), ranked(best))):
                best = value
        return best

    return evaluate


def _and(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    left, right = operands

    def evaluate(key: Row, buffers: Row) -> bool | None:
        a = left(key, buffers)
        if a is False:
            return False
        b = right(key, buffers)
        return False if b is False else (None if a is None or b is None else True)

    return evaluate


def _or(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    left, right = operands

    def evaluate(key: Row, buffers: Row) -> bool | None:
        a = left(key, buffers)
        if a is True:
            return True
        b = right(key, buffers)
        return True if b is True else (None if a is None or b is None else False)

    return evaluate


def _is_null(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    operand, wanted = operands[0], e.op == "is_null"
    return lambda key, buffers: (operand(key, buffers) is None) == wanted


def _is_nan(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    operand = operands[0]

    def evaluate(key: Row, buffers: Row) -> bool:
        value = operand(key, buffers)
        return bool(value is not None and value != value)

    return evaluate


def _nan_value(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """The second operand if the first is NaN."""
    first, second = operands

    def evaluate(key: Row, buffers: Row) -> Stored:
        value = first(key, buffers)
        return second(key, buffers) if value is not None and value != value else value

    return evaluate


def _coalesce(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    def evaluate(key: Row, buffers: Row) -> Stored:
        for operand in operands:
            value = operand(key, buffers)
            if value is not None:
                return value
        return None

    return evaluate


def _at_least(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Whether so many operands are neither NULL nor NaN."""
    wanted = e.options["least"]

    def evaluate(key: Row, buffers: Row) -> bool:
        values = (operand(key, buffers) for operand in operands)
        return bool(sum(value is not None and value == value for value in values) >= wanted)

    return evaluate


def _case(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Alternating conditions and values, with an optional default at the end; `if` has three operands."""
    branches = list(zip(operands[0::2], operands[1::2], strict=False))
    otherwise = operands[-1] if len(operands) % 2 else None

    def evaluate(key: Row, buffers: Row) -> Stored:
        for condition, value in branches:
            if condition(key, buffers) is True:
                return value(key, buffers)
        return otherwise(key, buffers) if otherwise else None

    return evaluate


def _try(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """NULL if Spark would fail; a value that isn't known here stays an error."""
    (operand,) = operands

    def evaluate(key: Row, buffers: Row) -> Stored:
        try:
            return operand(key, buffers)
        except SparkFails:
            return None

    return evaluate


def _fail(_: Expression, __: Sequence[Evaluate]) -> Evaluate:
    def evaluate(_: Row, __: Row) -> Stored:
        raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression raises an error of the user's own.", hint="Mend the value it is of.")

    return evaluate


FUNCTIONS = (
    function("try", _try, "TryEval"),
    function("raise_error", _fail, "RaiseError"),
    *(function(op, strict(_compare), name, refuse=_refuse_compared) for op, (name, _) in _COMPARE.items()),
    function("eq_null_safe", _equal_null_safe, "EqualNullSafe", refuse=_refuse_compared),
    function("in", _in, "In", "InSet", refuse=_refuse_compared),
    function("greatest", _extreme, "Greatest", refuse=_refuse_compared),
    function("least", _extreme, "Least", refuse=_refuse_compared),
    function("and", _and, "And"),
    function("or", _or, "Or"),
    function("not", plain(operator.not_), "Not"),
    function("is_null", _is_null, "IsNull"),
    function("is_not_null", _is_null, "IsNotNull"),
    function("is_nan", _is_nan, "IsNaN", refuse=takes(FLOATS)),
    function("nan_value", _nan_value, "NaNvl", refuse=takes(FLOATS)),
    function("coalesce", _coalesce, "Coalesce"),
    function("at_least", _at_least, "AtLeastNNonNulls", reads=("least",)),
    function("if", _case, "If"),
    function("case", _case, "CaseWhen"),
)

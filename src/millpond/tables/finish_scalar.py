"""Scalar operations on stored form, with Spark's rules for NULL, NaN and overflow.

An evaluator takes the key row and the buffers.  Operands are evaluated when they are needed, as Spark does it: the branch of a
CASE that isn't taken can't fail.

Source:  the classes of org.apache.spark.sql.catalyst.expressions that spark/derive_expression.py names, Spark 4.3.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any

from millpond.schema.expression import Expression
from millpond.schema.types import SparkType
from millpond.tables.finish_cast import compile_cast, single
from millpond.tables.finish_decimal import (
    EXACT,
    divide_down,
    division_by_zero,
    fit,
    overflow,
    product,
    quotient,
    truncated,
    unscaled,
    wrap,
)

Stored = Any
Row = Sequence[Stored]
Evaluate = Callable[[Row, Row], Stored]
_FLOATS = frozenset({"float", "double"})


# ---------------------------------------------------------------- how operands are evaluated


def _one(function: Callable[[Stored], Stored], operand: Evaluate) -> Evaluate:
    """NULL where the operand is NULL."""

    def evaluate(key: Row, buffers: Row) -> Stored:
        value = operand(key, buffers)
        return None if value is None else function(value)

    return evaluate


def _two(function: Callable[[Stored, Stored], Stored], operands: Sequence[Evaluate]) -> Evaluate:
    """NULL where either operand is NULL."""
    left, right = operands

    def evaluate(key: Row, buffers: Row) -> Stored:
        a = left(key, buffers)
        if a is None:
            return None
        b = right(key, buffers)
        return None if b is None else function(a, b)

    return evaluate


# ---------------------------------------------------------------- arithmetic


def _arithmetic(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    kind, mode = e.args[0].type.kind, e.options["mode"]
    function: Callable[[Any, Any], Stored]
    if kind in _FLOATS:
        wide = function = _float_arithmetic(e.op, mode)
        if e.type.kind == "float":
            return _two(lambda a, b: _single_or_null(wide(a, b)), operands)
    elif kind == "decimal":
        function = _decimal_arithmetic(e.op, e.type, mode)
    else:
        function = _integer_arithmetic(e.op, e.type, mode)
    return _two(function, operands)


def _single_or_null(value: float | None) -> float | None:
    return None if value is None else single(value)


def _by_zero(mode: str) -> Stored:
    if mode == "ansi":
        raise division_by_zero()
    return None


def _float_remainder(a: float, b: float) -> float:
    return math.nan if abs(a) == math.inf else math.fmod(a, b)


def _float_pmod(a: float, b: float) -> float:
    rest = _float_remainder(a, b)
    return _float_remainder(rest + b, b) if rest < 0 else rest


_FLOAT: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "remainder": _float_remainder,
    "pmod": _float_pmod,
}


def _float_arithmetic(op: str, mode: str) -> Callable[[float, float], float | None]:
    compute = _FLOAT[op]
    if op in ("add", "subtract", "multiply"):
        return compute

    def divide(a: float, b: float) -> float | None:
        return _by_zero(mode) if b == 0 else compute(a, b)

    return divide


def _integer_remainder(a: int, b: int) -> int:
    return a - b * divide_down(a, b)


def _integer_pmod(a: int, b: int) -> int:
    rest = _integer_remainder(a, b)
    return _integer_remainder(rest + b, b) if rest < 0 else rest


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "integral_divide": divide_down,
    "remainder": _integer_remainder,
    "pmod": _integer_pmod,
}


def _integer_arithmetic(op: str, type_: SparkType, mode: str) -> Callable[[int, int], int | None]:
    compute = _INTEGER[op]
    if op in ("add", "subtract", "multiply"):
        return lambda a, b: wrap(compute(a, b), type_, mode)

    def divide(a: int, b: int) -> int | None:
        return _by_zero(mode) if b == 0 else wrap(compute(a, b), type_, mode)

    return divide


def _decimal_pmod(a: Decimal, b: Decimal) -> Decimal:
    rest = EXACT.remainder(a, b)
    return EXACT.remainder(EXACT.add(rest, b), b) if rest < 0 else rest


_DECIMAL: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "add": EXACT.add,
    "subtract": EXACT.subtract,
    "multiply": product,
    "divide": quotient,
    "remainder": EXACT.remainder,
    "pmod": _decimal_pmod,
}


def _decimal_arithmetic(op: str, type_: SparkType, mode: str) -> Callable[[Decimal, Decimal], Stored]:
    if op == "integral_divide":

        def integral(a: Decimal, b: Decimal) -> int | None:
            return _by_zero(mode) if b == 0 else wrap(truncated(EXACT.divide_int(a, b)), type_, mode)

        return integral
    compute = _DECIMAL[op]
    if op in ("add", "subtract", "multiply"):
        return lambda a, b: fit(compute(a, b), type_, mode)

    def divide(a: Decimal, b: Decimal) -> Decimal | None:
        return _by_zero(mode) if b == 0 else fit(compute(a, b), type_, mode)

    return divide


def _negate(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _signed(e, operands, operator.neg)


def _abs(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _signed(e, operands, abs)


def _signed(e: Expression, operands: Sequence[Evaluate], function: Callable[[Any], Any]) -> Evaluate:
    if e.type.kind in _FLOATS:
        return _one(function, operands[0])
    if e.type.kind == "decimal":
        # Python would round to 28 digits without a context.
        exact = EXACT.minus if function is operator.neg else EXACT.abs
        return _one(exact, operands[0])
    return _one(lambda v: wrap(function(v), e.type, e.options["mode"]), operands[0])


# ---------------------------------------------------------------- comparison


def _rank(type_: SparkType) -> Callable[[Stored], Any] | None:
    """A sort key that orders as Spark does: NaN is above all numbers and equal to itself, strings go by their bytes."""
    if type_.kind in _FLOATS:
        return lambda v: (1, 0.0) if v != v else (0, v)
    if type_.kind == "string":
        return lambda v: v.encode("utf-8", "surrogateescape")
    return None


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _compare(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    compare, rank = _COMPARE[e.op], _rank(e.args[0].type)
    if rank is None:
        return _two(compare, operands)
    ranked = rank
    return _two(lambda a, b: compare(ranked(a), ranked(b)), operands)


def _equal_null_safe(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    left, right = operands
    rank = _rank(e.args[0].type) or (lambda v: v)

    def evaluate(key: Row, buffers: Row) -> bool:
        a, b = left(key, buffers), right(key, buffers)
        if a is None or b is None:
            return a is b
        return bool(rank(a) == rank(b))

    return evaluate


def _in(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    wanted, *candidates = operands
    rank = _rank(e.args[0].type) or (lambda v: v)

    def evaluate(key: Row, buffers: Row) -> bool | None:
        value = wanted(key, buffers)
        if value is None:
            return None
        ranked, unknown = rank(value), False
        for candidate in candidates:
            other = candidate(key, buffers)
            if other is None:
                unknown = True
            elif rank(other) == ranked:
                return True
        return None if unknown else False

    return evaluate


def _extreme(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """greatest and least: NULLs are passed over, and of equals the first stays."""
    rank = _rank(e.type) or (lambda v: v)
    better = operator.gt if e.op == "greatest" else operator.lt

    def evaluate(key: Row, buffers: Row) -> Stored:
        best = None
        for operand in operands:
            value = operand(key, buffers)
            if value is not None and (best is None or better(rank(value), rank(best))):
                best = value
        return best

    return evaluate


# ---------------------------------------------------------------- logic


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
        return value is not None and value != value

    return evaluate


def _coalesce(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    def evaluate(key: Row, buffers: Row) -> Stored:
        for operand in operands:
            value = operand(key, buffers)
            if value is not None:
                return value
        return None

    return evaluate


def _case(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Conditions and values by turns, at the end perhaps a value for the rest; `if` is the same with three operands."""
    branches = list(zip(operands[0::2], operands[1::2], strict=False))
    otherwise = operands[-1] if len(operands) % 2 else None

    def evaluate(key: Row, buffers: Row) -> Stored:
        for condition, value in branches:
            if condition(key, buffers) is True:
                return value(key, buffers)
        return otherwise(key, buffers) if otherwise else None

    return evaluate


# ---------------------------------------------------------------- numbers


def _cast(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _one(compile_cast(e.args[0].type, e.type, e.options["mode"]), operands[0])


def _make_decimal(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    exponent, mode = -e.type.scale, e.options["mode"]
    return _one(lambda v: fit(EXACT.scaleb(Decimal(v), exponent), e.type, mode), operands[0])


def _unscaled_value(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    scale = e.args[0].type.scale
    return _one(lambda v: unscaled(v, scale), operands[0])


def _check_overflow(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _one(lambda v: fit(v, e.type, e.options["mode"]), operands[0])


def _round(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    scale, source, mode = e.options["scale"], e.args[0].type, e.options["mode"]
    rounding = ROUND_HALF_EVEN if e.options["rounding"] == "half_even" else ROUND_HALF_UP
    context = EXACT.copy()
    context.rounding = rounding
    exponent = Decimal((0, (1,), -scale))

    def exact(value: Decimal) -> Decimal:
        return context.quantize(value, exponent)

    if source.kind == "decimal":
        return _one(lambda v: fit(exact(v), e.type, mode), operands[0])
    if source.kind == "double":
        # Spark rounds the shortest decimal text of the double; its decimals have no negative zero.
        return _one(lambda v: v if v != v or abs(v) == math.inf else float(exact(Decimal(repr(v)))) + 0.0, operands[0])
    if scale >= 0:
        return operands[0]
    return _one(lambda v: wrap(int(exact(Decimal(v))), e.type, mode), operands[0])


def _floor(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    whole = math.floor if e.op == "floor" else math.ceil
    source = e.args[0].type
    if source.kind == "decimal":
        return _one(lambda v: fit(Decimal(whole(v)), e.type, "ansi"), operands[0])
    if source.kind in _FLOATS:
        mode = e.options["mode"]
        narrow = compile_cast(source, e.type, mode)

        def to_long(value: float) -> Stored:
            if value != value or abs(value) == math.inf:
                return narrow(value)
            number = whole(value)
            if -(2**63) <= number < 2**63:
                return number
            if mode == "ansi":
                raise overflow(e.type)
            return narrow(value)

        return _one(to_long, operands[0])
    return operands[0]


def _sqrt(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _one(lambda v: math.sqrt(v) if v >= 0 else math.nan, operands[0])


def _normalize_float(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _one(lambda v: v + 0.0, operands[0])


def _timestamp_of(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """A number of milliseconds or microseconds since 1970 as a timestamp, whose stored form is microseconds."""
    scale = 1000 if e.op == "timestamp_millis" else 1
    return _one(lambda value: value * scale, operands[0])


def _truncate_time(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    micros = e.options["micros"]
    return _one(lambda v: v - v % micros, operands[0])


# ---------------------------------------------------------------- composed values


def _get_field(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _one(operator.itemgetter(e.options["ordinal"]), operands[0])


def _named_struct(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return lambda key, buffers: tuple([operand(key, buffers) for operand in operands])


def _size(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    operand, of_null = operands[0], e.options["of_null"]

    def evaluate(key: Row, buffers: Row) -> int | None:
        value = operand(key, buffers)
        return of_null if value is None else len(value)

    return evaluate


def _sort_array(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """NULLs first when ascending, last when descending."""
    element = e.type.element
    assert element is not None
    rank = _rank(element) or (lambda v: v)
    ascending = e.options["ascending"]

    def ordered(values: list[Stored]) -> list[Stored]:
        known = sorted((v for v in values if v is not None), key=rank, reverse=not ascending)
        nulls = [None] * (len(values) - len(known))
        return nulls + known if ascending else known + nulls

    return _one(ordered, operands[0])


def _concat(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    def evaluate(key: Row, buffers: Row) -> str | None:
        parts = [operand(key, buffers) for operand in operands]
        return None if None in parts else "".join(parts)

    return evaluate


def _not(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    return _one(operator.not_, operands[0])


_ARITHMETIC = dict.fromkeys(("add", "subtract", "multiply", "divide", "integral_divide", "remainder", "pmod"), _arithmetic)
SCALARS: dict[str, Callable[[Expression, Sequence[Evaluate]], Evaluate]] = {
    **_ARITHMETIC,
    **dict.fromkeys(_COMPARE, _compare),
    "abs": _abs,
    "and": _and,
    "case": _case,
    "cast": _cast,
    "ceil": _floor,
    "check_overflow": _check_overflow,
    "coalesce": _coalesce,
    "concat": _concat,
    "eq_null_safe": _equal_null_safe,
    "floor": _floor,
    "get_field": _get_field,
    "greatest": _extreme,
    "if": _case,
    "in": _in,
    "is_nan": _is_nan,
    "is_not_null": _is_null,
    "is_null": _is_null,
    "least": _extreme,
    "make_decimal": _make_decimal,
    "named_struct": _named_struct,
    "negate": _negate,
    "normalize_float": _normalize_float,
    "not": _not,
    "or": _or,
    "round": _round,
    "size": _size,
    "sort_array": _sort_array,
    "sqrt": _sqrt,
    "timestamp_micros": _timestamp_of,
    "timestamp_millis": _timestamp_of,
    "truncate_time": _truncate_time,
    "unscaled_value": _unscaled_value,
}

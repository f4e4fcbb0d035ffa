"""Arithmetic on numbers and intervals, with Spark's rules for overflow and division by zero.

Source:  arithmetic.scala, bitwiseExpressions.scala, decimalExpressions.scala,
         intervalExpressions.scala in org.apache.spark.sql.catalyst.expressions, Spark 4.3.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from decimal import Decimal

from millpond.scalar.function import (
    FLOATS,
    INTERVALS,
    NUMBERS,
    Evaluate,
    Row,
    Stored,
    Values,
    function,
    refuse_type,
    strict,
    takes,
)
from millpond.scalar.number.ranges import (
    BITS,
    EXACT,
    SCALA,
    divide_down,
    divide_half_up,
    division_by_zero,
    fit,
    overflow,
    product,
    quotient,
    single,
    truncated,
    unscaled,
    wrap,
)
from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS, SparkType


def _arithmetic(e: Expression) -> Values:
    kind, mode = e.args[0].type.kind, e.options["mode"]
    if kind in FLOATS:
        narrow = single if e.type.kind == "float" else _same
        wide = _float_arithmetic(e.op, mode, narrow)
        return (lambda a, b: _narrow_or_null(narrow, wide(a, b))) if e.type.kind == "float" else wide
    if kind == "decimal":
        return _decimal_arithmetic(e.op, e.type, mode)
    return _integer_arithmetic(e.op, e.type, mode, e.args[0].type)


def _divided(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Spark evaluates the divisor first; if it is NULL, or zero without an error, nothing else."""
    compute = _arithmetic(e)
    left, right = operands
    lenient = e.options["mode"] != "ansi"

    def evaluate(key: Row, buffers: Row) -> Stored:
        b = right(key, buffers)
        if b is None or (lenient and b == 0):
            return None
        a = left(key, buffers)
        return None if a is None else compute(a, b)

    return evaluate


def _same(value: float) -> float:
    return value


def _narrow_or_null(narrow: Callable[[float], float], value: float | None) -> float | None:
    return None if value is None else narrow(value)


def _by_zero(mode: str) -> Stored:
    if mode == "ansi":
        raise division_by_zero()
    return None


def _float_remainder(a: float, b: float) -> float:
    return math.nan if abs(a) == math.inf else math.fmod(a, b)


_FLOAT: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "remainder": _float_remainder,
}


def _float_arithmetic(op: str, mode: str, narrow: Callable[[float], float]) -> Callable[[float, float], float | None]:
    def pmod(a: float, b: float) -> float:
        rest = _float_remainder(a, b)
        return _float_remainder(narrow(rest + b), b) if rest < 0 else rest

    compute = pmod if op == "pmod" else _FLOAT[op]
    if op in ("add", "subtract", "multiply"):
        return compute

    def divide(a: float, b: float) -> float | None:
        return _by_zero(mode) if b == 0 else compute(a, b)

    return divide


def _integer_remainder(a: int, b: int) -> int:
    return a - b * divide_down(a, b)


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "integral_divide": divide_down,
    "remainder": _integer_remainder,
}


def _integer_arithmetic(op: str, type_: SparkType, mode: str, of: SparkType) -> Callable[[int, int], int | None]:
    if type_.kind in INTERVALS and mode == "legacy":
        mode = "ansi"
    # Java adds bytes and shorts as ints.
    wide = type_ if type_.kind == "long" else SparkType("integer", "integer")

    def pmod(a: int, b: int) -> int:
        rest = _integer_remainder(a, b)
        added = wrap(rest + b, wide, "legacy")
        assert added is not None
        return _integer_remainder(added, b) if rest < 0 else rest

    compute = pmod if op == "pmod" else _INTEGER[op]
    if op == "integral_divide" and of.kind in INTERVALS:
        return lambda a, b: _by_zero(mode) if b == 0 else wrap(compute(a, b), of, "legacy")
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
            # The quotient's low bits: Spark calls Java's longValue in all modes.
            return _by_zero(mode) if b == 0 else wrap(truncated(EXACT.divide_int(a, b)), type_, "legacy")

        return integral
    compute = _DECIMAL[op]
    if op in ("add", "subtract", "multiply"):
        return lambda a, b: fit(compute(a, b), type_, mode)

    def divide(a: Decimal, b: Decimal) -> Decimal | None:
        return _by_zero(mode) if b == 0 else fit(compute(a, b), type_, mode)

    return divide


def _refuse_arithmetic(e: Expression) -> str | None:
    allowed = NUMBERS | INTERVALS if e.op in ("add", "subtract", "integral_divide") else NUMBERS
    kinds = {a.type.kind for a in e.args} - {"void"}
    if len(kinds) > 1:
        return f"{e.op} of {e.args[0].type} and {e.args[1].type} isn't known here"
    return takes(allowed)(e)


# ---------------------------------------------------------------- signs


def _signed(compute: Callable[..., Stored]) -> Callable[[Expression], Values]:
    def make(e: Expression) -> Values:
        if e.type.kind in FLOATS:
            return compute
        if e.type.kind == "decimal":
            return _signed_decimal(e, negates=compute is operator.neg)
        # Intervals never wrap.
        type_, mode = e.type, "ansi" if e.type.kind in INTERVALS else e.options["mode"]
        return lambda v: wrap(compute(v), type_, mode)

    return make


def _signed_decimal(e: Expression, *, negates: bool) -> Values:
    """If the sign changes, Spark keeps 34 digits, as Scala's BigDecimal does; overflow is always an error."""
    type_ = e.type
    return lambda v: fit(SCALA.minus(v), type_, "ansi") if negates or v < 0 else v


def _sign(e: Expression) -> Values:
    if e.args[0].type.kind in INTERVALS:
        return lambda v: float((v > 0) - (v < 0))
    return lambda v: v if v != v or v == 0 else math.copysign(1.0, v)


# ---------------------------------------------------------------- decimals by their digits


def _make_decimal(e: Expression) -> Values:
    exponent, type_, mode = -e.type.scale, e.type, e.options["mode"]
    return lambda v: fit(EXACT.scaleb(Decimal(v), exponent), type_, mode)


def _unscaled_value(e: Expression) -> Values:
    scale = e.args[0].type.scale
    return lambda v: unscaled(v, scale)


def _check_overflow(e: Expression) -> Values:
    type_, mode = e.type, e.options["mode"]
    return lambda v: fit(v, type_, mode)


# ---------------------------------------------------------------- bits


def _bits(compute: Callable[[int, int], int]) -> Callable[[Expression], Values]:
    return lambda _: compute


def _shift(e: Expression) -> Values:
    bits = BITS[e.type.kind]
    type_, mask = e.type, bits - 1
    if e.op == "shift_left":
        return lambda v, n: wrap(v << (n & mask), type_, "legacy")
    if e.op == "shift_right":
        return lambda v, n: v >> (n & mask)
    return lambda v, n: wrap((v % (1 << bits)) >> (n & mask), type_, "legacy")


def _bit_count(e: Expression) -> Values:
    # Source: BitwiseCount widens all integers to 64 bits first.
    return (lambda v: int(v)) if e.args[0].type.kind == "boolean" else (lambda v: (v % (1 << 64)).bit_count())


def _bit_get(e: Expression) -> Values:
    bits = BITS[e.args[0].type.kind]

    def get(value: int, place: int) -> int:
        if not 0 <= place < bits:
            raise overflow(e.type)
        return (value >> place) & 1

    return get


# ---------------------------------------------------------------- intervals times numbers


def _scaled_interval(e: Expression) -> Values:
    """An interval times or divided by a number, rounded half up; overflow is always an error."""
    type_, divides = e.type, e.op == "divide_interval"
    of = e.args[1].type.kind

    def scale(value: int, by: Stored) -> int | None:
        if divides and by == 0:
            raise division_by_zero()
        if of in INTEGERS:
            return wrap(divide_half_up(value, by) if divides else value * by, type_, "ansi")
        if of == "decimal":
            exact = quotient_exact(Decimal(value), by) if divides else EXACT.multiply(Decimal(value), by)
            return wrap(int(exact.to_integral_value("ROUND_HALF_UP", EXACT)), type_, "ansi")
        return wrap(_round_half_even_up(value / by if divides else value * by, type_), type_, "ansi")

    return scale


def quotient_exact(a: Decimal, b: Decimal) -> Decimal:
    """a / b to far more digits than any type has."""
    return EXACT.divide(a, b)


def _round_half_even_up(value: float, type_: SparkType) -> int:
    """Guava's DoubleMath with HALF_UP: halves away from zero."""
    if value != value or abs(value) == math.inf:
        raise overflow(type_)
    whole = math.trunc(value)
    if abs(value - whole) >= 0.5:
        whole += 1 if value > 0 else -1
    return whole


_ARITHMETIC = {
    "add": "Add",
    "subtract": "Subtract",
    "multiply": "Multiply",
    "divide": "Divide",
    "integral_divide": "IntegralDivide",
    "remainder": "Remainder",
    "pmod": "Pmod",
}
_DIVISIONS = frozenset({"divide", "integral_divide", "remainder", "pmod"})
_WHOLE = INTEGERS


def _refuse_bit_count(e: Expression) -> str | None:
    return refuse_type(e.op, e.args[0].type, INTEGERS | {"boolean"})


FUNCTIONS = (
    *(
        function(op, _divided if op in _DIVISIONS else strict(_arithmetic), name, refuse=_refuse_arithmetic, reads=("mode",))
        for op, name in _ARITHMETIC.items()
    ),
    function("negate", strict(_signed(operator.neg)), "UnaryMinus", refuse=takes(NUMBERS | INTERVALS), reads=("strict",)),
    function("abs", strict(_signed(abs)), "Abs", refuse=takes(NUMBERS | INTERVALS), reads=("strict",)),
    function("sign", strict(_sign), "Signum", refuse=takes(FLOATS | INTERVALS)),
    function("make_decimal", strict(_make_decimal), "MakeDecimal", refuse=takes({"long"}), reads=("null_on_overflow",)),
    function("unscaled_value", strict(_unscaled_value), "UnscaledValue", refuse=takes({"decimal"})),
    function("check_overflow", strict(_check_overflow), "CheckOverflow", refuse=takes({"decimal"}), reads=("null_on_overflow",)),
    function("bit_and", strict(_bits(operator.and_)), "BitwiseAnd", refuse=takes(_WHOLE)),
    function("bit_or", strict(_bits(operator.or_)), "BitwiseOr", refuse=takes(_WHOLE)),
    function("bit_xor", strict(_bits(operator.xor)), "BitwiseXor", refuse=takes(_WHOLE)),
    function("bit_not", strict(lambda _: operator.invert), "BitwiseNot", refuse=takes(_WHOLE)),
    function("bit_count", strict(_bit_count), "BitwiseCount", refuse=_refuse_bit_count),
    function("bit_get", strict(_bit_get), "BitwiseGet", refuse=takes(_WHOLE)),
    function("shift_left", strict(_shift), "ShiftLeft", refuse=takes(_WHOLE)),
    function("shift_right", strict(_shift), "ShiftRight", refuse=takes(_WHOLE)),
    function("shift_right_unsigned", strict(_shift), "ShiftRightUnsigned", refuse=takes(_WHOLE)),
    function(
        "multiply_interval", strict(_scaled_interval), "MultiplyDTInterval", "MultiplyYMInterval", refuse=takes(INTERVALS, NUMBERS)
    ),
    function("divide_interval", strict(_scaled_interval), "DivideDTInterval", "DivideYMInterval", refuse=takes(INTERVALS, NUMBERS)),
)

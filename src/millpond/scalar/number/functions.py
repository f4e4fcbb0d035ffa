"""Rounding, and functions of doubles that are one operation.

Source:  mathExpressions.scala in org.apache.spark.sql.catalyst.expressions, Spark 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

from millpond.scalar.casts import java_narrow
from millpond.scalar.function import FLOATS, NUMBERS, Stored, Values, function, literal_of, plain, refuse_type, strict
from millpond.scalar.number.ranges import EXACT, fit, overflow, single, wrap
from millpond.scalar.text.showing import float_text
from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS

_ROUNDINGS = {"half_up": ROUND_HALF_UP, "half_even": ROUND_HALF_EVEN, "ceiling": ROUND_CEILING, "floor": ROUND_FLOOR}
_BY_CLASS = {"round": "half_up", "bround": "half_even", "round_ceil": "ceiling", "round_floor": "floor"}


def _round(e: Expression) -> Values:
    source, type_, mode = e.args[0].type, e.type, e.options["mode"]
    scale = literal_of(e.args[1])
    if scale is None:
        return lambda _, __: None
    context = EXACT.copy()
    context.rounding = _ROUNDINGS[_BY_CLASS[e.op]]
    exponent = Decimal((0, (1,), -max(-400, min(scale, 400))))

    def exact(value: Decimal) -> Decimal:
        if -value.as_tuple().exponent <= scale:  # type: ignore[operator]
            return value
        return context.quantize(value, exponent)

    if source.kind == "decimal":
        # Overflow is an error in all modes.
        return lambda v, _: fit(exact(v), type_, "ansi")
    if source.kind in FLOATS:
        return _round_float(exact, narrow=source.kind == "float", java=e.options.get("java"))
    if scale >= 0:
        return lambda v, _: v
    return lambda v, _: wrap(int(exact(Decimal(v))), type_, mode)


def _round_float(exact: Callable[[Decimal], Decimal], *, narrow: bool, java: int | None) -> Values:
    """Spark rounds Java's text of a double, or of a float widened to a double.

    The result has no negative zero.
    """
    text, old, new = (float_text(version, single=False) for version in (java, 17, 25))

    def finish(value: Decimal) -> float:
        number = float(exact(value)) + 0.0
        return single(number) if narrow else number

    def compute(value: float, _: int) -> float:
        if value != value or abs(value) == math.inf:
            return value
        if java is None:
            # Different texts may round to the same value.
            before, since = finish(Decimal(old(value))), finish(Decimal(new(value)))
            if before == since:
                return since
        return finish(Decimal(text(value)))

    return compute


def _refuse_round(e: Expression) -> str | None:
    if e.args[1].op != "literal":
        return f"{e.op} to places that are computed isn't known here"
    return refuse_type(e.op, e.args[0].type, NUMBERS)


def _round_reads(e: Expression) -> tuple[str, ...]:
    return ("ansi", "java") if e.args[0].type.kind in FLOATS else ("ansi",)


def _floor(e: Expression) -> Values:
    whole = math.floor if e.op == "floor" else math.ceil
    source, type_ = e.args[0].type, e.type
    if source.kind == "decimal":
        return lambda v: fit(Decimal(whole(v)), type_, "ansi")
    if source.kind in INTEGERS:
        return lambda v: v
    strict_mode = e.options["mode"] == "ansi"

    def to_long(value: float) -> Stored:
        if value == value and abs(value) != math.inf and -(2**63) <= whole(value) < 2**63:
            return whole(value)
        if strict_mode and value == value:
            raise overflow(type_)
        return java_narrow(value, type_)

    return to_long


def _refuse_floor(e: Expression) -> str | None:
    return refuse_type(e.op, e.args[0].type, NUMBERS)


def _refuse_float(e: Expression) -> str | None:
    return refuse_type(e.op, e.args[0].type, FLOATS)


def _sqrt(value: float) -> float:
    return math.sqrt(value) if value >= 0 else math.nan


def _rint(value: float) -> float:
    if value != value or abs(value) == math.inf:
        return value
    return math.copysign(float(round(value)), value)


def _refuse_whole(e: Expression) -> str | None:
    return refuse_type(e.op, e.args[0].type, {"integer"})


_MOST = 20


def _factorial(value: int) -> int | None:
    return math.factorial(value) if 0 <= value <= _MOST else None


FUNCTIONS = (
    function("factorial", plain(_factorial), "Factorial", refuse=_refuse_whole),
    function("round", strict(_round), "Round", refuse=_refuse_round, reads=_round_reads),
    function("bround", strict(_round), "BRound", refuse=_refuse_round, reads=_round_reads),
    function("round_ceil", strict(_round), "RoundCeil", refuse=_refuse_round, reads=_round_reads),
    function("round_floor", strict(_round), "RoundFloor", refuse=_refuse_round, reads=_round_reads),
    function("floor", strict(_floor), "Floor", refuse=_refuse_floor, reads=("strict",)),
    function("ceil", strict(_floor), "Ceil", refuse=_refuse_floor, reads=("strict",)),
    function("sqrt", plain(_sqrt), "Sqrt", refuse=_refuse_float),
    function("rint", plain(_rint), "Rint", refuse=_refuse_float),
    function("degrees", plain(lambda v: v * 57.29577951308232), "ToDegrees", refuse=_refuse_float),
    function("radians", plain(lambda v: v * 0.017453292519943295), "ToRadians", refuse=_refuse_float),
    function("normalize_float", plain(lambda v: v + 0.0), "NormalizeNaNAndZero", refuse=_refuse_float),
)

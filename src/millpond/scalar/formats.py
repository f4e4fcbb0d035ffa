"""Numbers as text by a format: format_number.

Source:  stringExpressions.scala, Spark 4.3; DigitList of JDK 17, which rounds the exact value of a double to the even neighbour.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal

from millpond.scalar.function import NUMBERS, Values, function, literal_of, strict, takes
from millpond.scalar.java_text import SHORTEST_SINCE
from millpond.scalar.showing import float_text
from millpond.schema.expression import Expression

_WIDE = Context(prec=800, rounding=ROUND_HALF_EVEN, Emin=-9999, Emax=9999)
_MOST_PLACES = 100


def _format_number(e: Expression) -> Values:
    places = literal_of(e.args[1])
    java = e.options.get("java")
    # Which of them formats of later versions go by isn't the same in all.
    text = float_text(java if java is not None and java < SHORTEST_SINCE else None, single=False)

    def rounded(value: Decimal) -> str:
        return f"{_WIDE.quantize(value, Decimal((0, (1,), -places))):,f}"

    def of_float(value: float) -> str:
        if value != value:
            return "NaN"
        if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        exact = _WIDE.create_decimal_from_float(value)
        if -int(exact.as_tuple().exponent) <= places:
            return rounded(Decimal(text(value)))
        digits = Decimal(text(value)) if value else exact
        return rounded(digits if -int(digits.as_tuple().exponent) <= places else exact)

    if places is None or places < 0:
        return lambda _, __: None
    if e.args[0].type.kind in ("float", "double"):
        return lambda v, _: of_float(v)
    return lambda v, _: rounded(Decimal(v))


def _refuse_number(e: Expression) -> str | None:
    if reason := takes(NUMBERS, {"integer"}, literal=(1,))(e):
        return "format_number by a pattern isn't known here" if e.args[1].type.kind == "string" else reason
    places = literal_of(e.args[1])
    return f"format_number to {places} places isn't known here" if places is not None and places > _MOST_PLACES else None


def _reads_number(e: Expression) -> tuple[str, ...]:
    return ("java",) if e.args[0].type.kind in ("float", "double") else ()


FUNCTIONS = (function("format_number", strict(_format_number), "FormatNumber", refuse=_refuse_number, reads=_reads_number),)

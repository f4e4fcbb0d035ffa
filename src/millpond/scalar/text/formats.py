"""Values as text by a format: format_number and format_string.

Source:  stringExpressions.scala, Spark 4.3; DigitList of JDK 17, which rounds the exact value of a
         double to the even neighbour; java.util.Formatter, which rounds the digits of its text half
         up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import NamedTuple

from millpond.errors import RequestError
from millpond.scalar.function import (
    FLOATS,
    NUMBERS,
    Evaluate,
    Row,
    Stored,
    Values,
    function,
    literal_of,
    refuse_type,
    strict,
    takes,
)
from millpond.scalar.text.functions import valid
from millpond.scalar.text.java_text import SHORTEST_SINCE
from millpond.scalar.text.showing import compile_show, float_text
from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS

_WIDE = Context(prec=800, rounding=ROUND_HALF_EVEN, Emin=-9999, Emax=9999)
_HALF_UP = Context(prec=800, rounding=ROUND_HALF_UP, Emin=-9999, Emax=9999)
_MOST_PLACES = 100


def _format_number(e: Expression) -> Values:
    places = literal_of(e.args[1])
    java = e.options.get("java")
    # Formats of later versions differ in which of them they use.
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


# ---------------------------------------------------------------- format_string

_DIRECTIVE = re.compile(r"%(?:(\d+)\$)?([-+ 0,(#]*)(\d+)?(?:\.(\d+))?([a-zA-Z%])|%", re.ASCII)
_SHOWN = INTEGERS | {"string", "boolean", "float", "double", "decimal"}
_KINDS = {"s": frozenset(_SHOWN), "b": frozenset({"boolean"}), "d": frozenset(INTEGERS), "f": FLOATS}
_WIDEST = 1000


class _Directive(NamedTuple):
    """One directive: its operand, flags, width, places, and letter."""

    place: int
    flags: str
    width: int
    places: int | None
    letter: str


def _directives(pattern: str) -> list[str | _Directive] | None:
    """The fixed texts and directives of a format; None if it isn't known here."""
    parts: list[str | _Directive] = []
    end = place = 0
    for found in _DIRECTIVE.finditer(pattern):
        parts.append(pattern[end : found.start()])
        end = found.end()
        index, flags, width, places, letter = found.groups()
        if letter is None or int(width or 0) > _WIDEST or int(places or 0) > _WIDEST or len(set(flags)) != len(flags):
            return None
        if letter in "%n":
            if index or flags or width or places:
                return None
            parts.append("%" if letter == "%" else "\n")
            continue
        place += not index
        if not _is_sound(letter, flags, width, places):
            return None
        parts.append(_Directive(int(index or place) - 1, flags, int(width or 0), None if places is None else int(places), letter))
    return [*parts, pattern[end:]]


def _is_sound(letter: str, flags: str, width: str | None, places: str | None) -> bool:
    """Whether Java accepts the directive, and it is known here."""
    allowed = {"s": "-", "b": "-", "d": "-+ 0,", "f": "-+ 0,"}.get(letter)
    if allowed is None or set(flags) - set(allowed) or (letter == "d" and places is not None):
        return False
    clash = ("-" in flags and "0" in flags) or ("+" in flags and " " in flags)
    return not clash and (width is not None or not set(flags) & {"-", "0"})


def _refuse_string(e: Expression) -> str | None:
    first, *rest = e.args
    if first.op != "literal" or literal_of(first) is None:
        return "format_string with a format that is computed isn't known here"
    parts = _directives(literal_of(first))
    if parts is None:
        return f"the format {literal_of(first)!r} isn't known here"
    for part in parts:
        if isinstance(part, _Directive):
            if not 0 <= part.place < len(rest):
                return "format_string with too few operands isn't known here"
            if reason := refuse_type(e.op, rest[part.place].type, _KINDS[part.letter]):
                return reason
    return None


def _format_string(e: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """A NULL is shown as `null`; all operands are evaluated."""
    java = e.options.get("java")
    parts = _directives(literal_of(e.args[0])) or []
    # Formats of later versions differ in which digits they use.
    digits = float_text(java if java is not None and java < SHORTEST_SINCE else None, single=False)
    pieces = [p if isinstance(p, str) else (p, _show(p, e.args[p.place + 1], java, digits)) for p in parts]

    def evaluate(key: Row, buffers: Row) -> str:
        values = [operand(key, buffers) for operand in operands[1:]]
        return "".join([p if isinstance(p, str) else _aligned(p[0], values[p[0].place], p[1]) for p in pieces])

    return evaluate


def _aligned(part: _Directive, value: Stored, show: Callable[[Stored], str]) -> str:
    if value is None:
        text = "false" if part.letter == "b" else "null"
        text = text if part.places is None else text[: part.places]
    else:
        text = show(value)
    if "0" in part.flags and value is not None and not (isinstance(value, float) and not math.isfinite(value)):
        sign = text[:1] if text[:1] in ("-", "+", " ") else ""
        return sign + text[len(sign) :].rjust(part.width - len(sign), "0")
    missing = " " * (part.width - len(text) - sum(c > "\uffff" for c in text))
    return text + missing if "-" in part.flags else missing + text


def _first(text: str, count: int | None) -> str:
    """The first characters of a text, as Java counts them."""
    if not text.isascii() and max(text) > "\uffff":
        raise RequestError(
            "VALUE_OUT_OF_RANGE",
            "Its expression cuts a text with characters that are two in Java, and may cut one of them in half.",
            hint="Use substring in the job.",
        )
    return text[:count]


def _show(part: _Directive, operand: Expression, java: int | None, digits: Callable[[float], str]) -> Callable[[Stored], str]:
    kind = operand.type.kind
    if part.letter in "sb":
        whole = valid if kind == "string" else compile_show(operand.type, "legacy", java, None)
        return whole if part.places is None else (lambda v: _first(whole(v), part.places))
    plus = "+" if "+" in part.flags else (" " if " " in part.flags else "")
    comma = "," if "," in part.flags else ""
    if kind in INTEGERS:
        return lambda v: f"{plus if v >= 0 else ''}{v:{comma}d}"
    step = Decimal((0, (1,), -(6 if part.places is None else part.places)))

    def number(value: float) -> str:
        sign = "-" if math.copysign(1.0, value) < 0 else plus
        if value != value:
            return "NaN"
        if math.isinf(value):
            return f"{sign}Infinity"
        return f"{sign}{_HALF_UP.quantize(Decimal(digits(abs(value))), step):{comma}f}"

    return number


FUNCTIONS = (
    function("format_string", _format_string, "FormatString", refuse=_refuse_string, reads=("java",)),
    function("format_number", strict(_format_number), "FormatNumber", refuse=_refuse_number, reads=_reads_number),
)

"""Decimals as text and back by a format of digits: to_char, to_number and try_to_number.

Source:  ToNumberParser, Spark 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from millpond.errors import RequestError
from millpond.scalar.function import STRING, Values, function, literal_of, strict, takes
from millpond.scalar.number.ranges import EXACT, overflow
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.text.functions import valid
from millpond.schema.definition.expression import Expression

Part = str | tuple[int, ...]
"""A sign of the format, or a group: at most so many digits; negative: exactly so many; 0: a thousands separator"""

_FORMAT = re.compile(r"(0[09]*)|(9[09]*)|([.D])|([,G])|(\$|S|MI|PR)")
_DIGITS = frozenset("0123456789")
_SIGNS = {"<": "<", ">": ">", ".": ".", "$": "$", "MI": "-", "S": "+-"}


def parts_of(pattern: str) -> list[Part] | None:
    """The parts of a format; None if a character isn't part of a format."""
    out: list[Part] = []
    group: list[int] = []
    place, is_fraction, is_wrapped = 0, False, False
    for found in _FORMAT.finditer(pattern):
        if found.start() != place:
            return None
        place = found.end()
        zeros, nines, point, comma, sign = found.groups()
        if zeros or nines or comma:
            group.append(0 if comma else (-len(found[0]) if zeros and not is_fraction else len(found[0])))
            continue
        if group:
            out.append(tuple(group))
            group = []
        is_fraction = is_fraction or bool(point)
        is_wrapped = is_wrapped or sign == "PR"
        out.append("." if point else (">" if sign == "PR" else sign))
    if place != len(pattern):
        return None
    if group:
        out.append(tuple(group))
    return ["<", *out] if is_wrapped else out


def _digit_counts(parts: Sequence[Part]) -> tuple[int, int]:
    """How many digits a format has before and after the point."""
    counts = [0, 0]
    is_fraction = 0
    for part in parts:
        if part == ".":
            is_fraction = 1
        elif isinstance(part, tuple):
            counts[is_fraction] += sum(map(abs, part))
    return counts[0], counts[1]


# ---------------------------------------------------------------- reading


class _Reading:
    """One text that is read by a format."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.digits = ["", ""]
        self.is_fraction = False
        self.is_negative = False
        self.opened = self.closed = False

    def take(self, part: Part) -> bool:
        """Whether a part of the format is next in the text; then move past it."""
        if isinstance(part, tuple):
            return self._take_group(part)
        here = self.text[self.place : self.place + 1]
        if not here or here not in _SIGNS[part]:
            return part != "$" or not here
        self.place += 1
        self.is_fraction |= here == "."
        self.is_negative ^= here in "->"
        self.closed |= here == ">"
        self.opened |= here == "<"
        return self.opened or not self.closed

    def _take_group(self, group: tuple[int, ...]) -> bool:
        sizes, size = [], 0
        while self.place < len(self.text):
            here = self.text[self.place]
            if here in _DIGITS:
                size += 1
                self.digits[self.is_fraction] += here
            elif here == ",":
                sizes.append(size)
                size = 0
            elif not here.isspace():
                break
            self.place += 1
        sizes.append(size)
        expected = [count for count in group if count]
        if len(sizes) > len(expected):
            return False
        sizes = [0] * (len(expected) - len(sizes)) + sizes
        return all(size == -count if count < 0 else size <= count for size, count in zip(sizes, expected, strict=True))


def _read(e: Expression) -> Values:
    parts = parts_of(_pattern(e)) or []
    scale = _digit_counts(parts)[1]

    def compute(text: str, _: str) -> Decimal | None:
        if not text.isascii() and any(c > "\x7f" and (c.isdecimal() or c.isspace()) for c in valid(text)):
            raise RequestError(
                "VALUE_OUT_OF_RANGE",
                "Its expression reads a number with digits or blanks of another script.",
                hint="Use digits of ASCII in the job.",
            )
        reading = _Reading(text)
        is_one = all(reading.take(part) for part in parts)
        whole, fraction = reading.digits
        if is_one and reading.place == len(text) and reading.opened == reading.closed and (whole or fraction):
            number = int(whole + fraction.ljust(scale, "0"))
            if number >= 10**e.type.precision:
                raise overflow(e.type)
            return EXACT.scaleb(Decimal(-number if reading.is_negative else number), -scale)
        if e.op == "to_number":
            raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression reads a number that is none.", hint="Use try_to_number.")
        return None

    return compute


# ---------------------------------------------------------------- writing


def _write(e: Expression) -> Values:
    parts = parts_of(_pattern(e)) or []
    counts = _digit_counts(parts)
    return lambda value, _: _written(value, parts, counts)


def _written(value: Decimal, parts: Sequence[Part], counts: tuple[int, int]) -> str:
    whole, _, fraction = f"{abs(value):f}".partition(".")
    whole, fraction = whole.lstrip("0"), fraction.rstrip("0")
    if len(whole) > counts[0] or len(fraction) > counts[1]:
        whole, fraction = "#" * counts[0], "#" * counts[1]
    digits = [iter(whole.rjust(counts[0])), iter(fraction.ljust(counts[1], "0"))]
    is_negative = value < 0
    out: list[str] = []
    is_fraction = False
    for part in parts:
        if isinstance(part, tuple):
            _write_group(out, part, digits[is_fraction], is_fraction=is_fraction)
        elif part == ".":
            if out and out[-1] == " ":
                out[-1] = "0"
            out.append(".")
            is_fraction = True
        elif part == "$":
            out.append("$")
        elif part == "<":
            out += "<" if is_negative else ""
        else:
            _write_sign(out, part, is_negative=is_negative)
    _strip_point(out)
    text = "".join(out)
    return "0" if text in ("", "+", "-") else text


def _write_group(out: list[str], group: tuple[int, ...], digits: object, *, is_fraction: bool) -> None:
    for count in group:
        if count == 0:
            if out and out[-1] in _DIGITS:
                out.append(",")
            else:
                _add_blank(out)
            continue
        for _ in range(abs(count)):
            digit = next(digits)  # type: ignore[call-overload]
            if digit != " " or is_fraction:
                out.append(digit)
            elif count < 0:
                out.append("0")
            else:
                _add_blank(out)


def _write_sign(out: list[str], part: str, *, is_negative: bool) -> None:
    if part != "MI" or is_negative:
        _strip_point(out)
    if is_negative:
        _add_before_blanks(out, ">" if part == ">" else "-")
    elif part == "S":
        _add_before_blanks(out, "+")
    else:
        out += "  " if part == ">" else " "


def _add_before_blanks(out: list[str], sign: str) -> None:
    place = len(out)
    while place > 0 and out[place - 1] == " ":
        place -= 1
    out.insert(place, sign)


def _add_blank(out: list[str]) -> None:
    """A blank goes before the signs at the end."""
    place = len(out)
    while place > 0 and out[place - 1] in "+-<":
        place -= 1
    out.insert(place, " ")


def _strip_point(out: list[str]) -> None:
    if "." in out:
        place = out.index(".")
        if place == len(out) - 1 or out[place + 1] == " ":
            out[place] = " "


# ---------------------------------------------------------------- which are known


def _pattern(e: Expression) -> str:
    return str(literal_of(e.args[1])).upper()


def _refuse(e: Expression) -> str | None:
    if reason := takes({"decimal"} if e.op == "to_char" else STRING, STRING, literal=(1,))(e):
        return reason
    if literal_of(e.args[1]) is None or not _pattern(e).isascii() or parts_of(_pattern(e)) is None:
        return f"the format {literal_of(e.args[1])!r} isn't known here"
    return None


FUNCTIONS = (
    function("to_char", strict(_write), "ToCharacter", refuse=_refuse),
    function("to_number", strict(_read), "ToNumber", refuse=_refuse),
    function("try_to_number", strict(_read), "TryToNumber", refuse=_refuse),
)

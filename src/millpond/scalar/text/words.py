"""Codes and masks of words: soundex, mask, conv, Luhn's check, text into a map.

Source:  UTF8String.soundex, maskExpressions.scala, NumberConverter, ExpressionImplUtils,
         complexTypeCreator.scala, Spark 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from millpond.scalar.collection.functions import map_of
from millpond.scalar.function import STRING, Evaluate, Row, Stored, Values, function, literal_of, plain, strict, takes
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.text.functions import encoded, valid
from millpond.scalar.text.letters import known_letters
from millpond.schema.definition.expression import Expression

_INT = frozenset({"integer"})
_CODES = "01230127022455012623017202"


def _soundex(text: str) -> str:
    """A letter and three digits; text that doesn't begin with a letter stays as it is."""
    data = encoded(text).upper() if text.isascii() else bytes(b - 32 if 97 <= b <= 122 else b for b in encoded(text))
    if not data or not 65 <= data[0] <= 90:
        return text
    code, last = chr(data[0]), _CODES[data[0] - 65]
    for letter in data[1:]:
        if not 65 <= letter <= 90:
            last = "0"
            continue
        digit = _CODES[letter - 65]
        if digit == "7":
            continue
        if digit not in ("0", last):
            code += digit
            if len(code) > 3:
                break
        last = digit
    return f"{code:0<4}"


def _mask(_: Expression, operands: Sequence[Evaluate]) -> Evaluate:
    """Replace upper case, lower case, digits and others by a character each; NULL leaves them unchanged."""

    def evaluate(key: Row, buffers: Row) -> str | None:
        text, *given = [operand(key, buffers) for operand in operands]
        if text is None:
            return None
        upper, lower, digit, other = given

        def masked(c: str) -> str:
            found = upper if c.isupper() else lower if c.islower() else digit if c.isdecimal() else other
            return c if found is None else found[:1]

        return "".join([masked(c) for c in known_letters(valid(text))])

    return evaluate


def _is_luhn(text: str) -> bool:
    if not text or not all(c.isdecimal() and c <= "\uffff" for c in text):
        return False
    total = 0
    for place, c in enumerate(reversed(text)):
        digit = int(c) * (1 + place % 2)
        total += digit - 9 * (digit > 9)
    return total % 10 == 0


def _quote(text: str) -> str:
    return "'" + valid(text).replace("'", "\\'") + "'"


# ---------------------------------------------------------------- numbers to a base

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALL = 1 << 64


def _signed(value: int) -> int:
    return value - _ALL if value >= _ALL >> 1 else value


def _conv(e: Expression) -> Values:
    ansi = e.options["mode"] == "ansi"

    def compute(text: str, source: int, target: int) -> str | None:
        data = encoded(text.strip(" "))
        if not data or not 2 <= source <= 36 or not 2 <= abs(target) <= 36:
            return None
        negative = data.startswith(b"-")
        value = 0
        for byte in data[negative:]:
            digit = _DIGITS.find(chr(byte).upper()) if byte < 128 else -1
            if not 0 <= digit < source:
                break
            value = value * source + digit
            if value >= _ALL:
                if ansi:
                    raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression converts too large a number.", hint="Use a smaller one.")
                value = _ALL - 1
                break
        if negative and target > 0:
            value = _ALL - 1 if _signed(value) < 0 else -value % _ALL
        if target < 0 and _signed(value) < 0:
            value, negative = -value % _ALL, True
        out = ""
        while value:
            value, digit = divmod(value, abs(target))
            out = _DIGITS[digit] + out
        return ("-" if negative and target < 0 else "") + (out or "0")

    return compute


# ---------------------------------------------------------------- text to a map


def _str_to_map(e: Expression) -> Values:
    put = map_of(e)

    def compute(text: str, between: str, after_key: str) -> Stored:
        pairs = [part.split(after_key, 1) for part in valid(text).split(between)]
        return put((pair[0], pair[1] if len(pair) > 1 else None) for pair in pairs)

    return compute


def _refuse_str_to_map(e: Expression) -> str | None:
    if reason := takes(STRING, literal=(1, 2))(e):
        return reason
    if not all(re.fullmatch(r"[\w ,:;=&/-]+", str(literal_of(a) or "")) for a in e.args[1:]):
        return "str_to_map by a regular expression isn't known here"
    return None


def _units(text: str) -> list[bytes]:
    """The text in Java's UTF-16 units."""
    data = valid(text).encode("utf-16-be")
    return [data[n : n + 2] for n in range(0, len(data), 2)]


def _jaro_winkler(text: str, other: str) -> float:
    """The similarity of two texts, from 0 to 1."""
    a, b = _units(text), _units(other)
    if not a or not b:
        return float(not a and not b)
    reach = max(0, max(len(a), len(b)) // 2 - 1)
    matched: list[bytes] = []
    used = [False] * len(b)
    for i, unit in enumerate(a):
        for j in range(max(0, i - reach), min(i + reach + 1, len(b))):
            if not used[j] and b[j] == unit:
                used[j] = True
                matched.append(unit)
                break
    if not matched:
        return 0.0
    count = float(len(matched))
    moved = sum(x != y for x, y in zip(matched, (b[j] for j in range(len(b)) if used[j]), strict=True))
    jaro = (count / len(a) + count / len(b) + (count - moved / 2.0) / count) / 3.0
    prefix = 0
    while prefix < min(4, len(a), len(b)) and a[prefix] == b[prefix]:
        prefix += 1
    return jaro + prefix * 0.1 * (1.0 - jaro)


FUNCTIONS = (
    function("jaro_winkler", plain(_jaro_winkler), "ExpressionImplUtils.jaroWinklerSimilarity", refuse=takes(STRING)),
    function("soundex", plain(_soundex), "SoundEx", refuse=takes(STRING)),
    function("mask", _mask, "Mask", refuse=takes(STRING)),
    function("luhn_check", plain(_is_luhn), "ExpressionImplUtils.isLuhnNumber", refuse=takes(STRING)),
    function("quote", plain(_quote), "ExpressionImplUtils.quote", refuse=takes(STRING)),
    function("conv", strict(_conv), "Conv", refuse=takes(STRING, _INT, _INT), reads=("ansi",)),
    function("str_to_map", strict(_str_to_map), "StringToMap", refuse=_refuse_str_to_map, reads=("dedup",)),
)

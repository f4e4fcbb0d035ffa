"""JSON of files that somebody else may have written: one meaning, or an error.

Python's own parser takes more than JSON says.  Of two members of one name it takes the last, where another parser takes the first.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

# Whoever takes the value apart calls itself for each level.  No tree of Spark's types or expressions is half as deep.
MOST_DEEP = 500
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What taking apart a value of JSON raises where it isn't of the form that was expected."""
# More than any whole number that Spark, or a decimal of 38 digits, needs; and no number of so few digits is beyond a double.
_MOST_DIGITS = 100


def parse_json(text: bytes | str, *, exact: bool = False) -> Any:
    """The value that a JSON text means.

    exact:   numbers with a fraction or an exponent are Decimal; one beyond a double is refused all the same
    Raises:  ValueError where it isn't JSON in UTF-8, or says what has no one meaning: two members of one name, NaN, an infinite
             number; where it is nested more than 500 deep, or a whole number has more than 100 digits.
    """
    try:
        found = (_EXACT if exact else _DECODER).decode(text.decode() if isinstance(text, bytes) else text)
        _check_depth(found)
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEEP} deep") from None
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the member {name!r:.80} is there twice")
            seen.add(name)
    return found


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _fraction(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"the number {text:.40} is too large")
    return found


def _exact(text: str) -> Decimal:
    _fraction(text)  # an exponent without end is no number that Spark has
    return Decimal(text)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON's")


def _check_depth(found: Any) -> None:
    level = [found]
    for _ in range(MOST_DEEP + 1):
        level = [
            v for outer in level if isinstance(outer, dict | list) for v in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_DEEP} deep")


_EXACT = json.JSONDecoder(object_pairs_hook=_members, parse_int=_whole, parse_float=_exact, parse_constant=_no_number)
_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_int=_whole, parse_float=_fraction, parse_constant=_no_number)

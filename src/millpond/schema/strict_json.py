"""JSON of untrusted files: it has exactly one meaning, or it is an error.

Python's own parser accepts more than JSON.  Of two members of one name it takes the last, while
another parser may take the first.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

# Code that takes the value apart recurses for each level. No tree of Spark's types or expressions
# is half as deep.
MOST_DEEP = 500
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The errors of code that takes apart a JSON value of an unexpected form."""
# More than any whole number of Spark, or a decimal of 38 digits, needs; and few enough for a
# double.
_MOST_DIGITS = 100


def parse_json(text: bytes | str, *, exact: bool = False) -> Any:
    """The value of a JSON text.

    exact:   numbers with a fraction or an exponent become Decimal; a number too large for a double
             is refused all the same
    Raises:  ValueError if it isn't JSON in UTF-8, or has no single meaning: two members of one
             name, NaN, an infinite number; if it is nested more than 500 deep, or a whole number
             has more than 100 digits.
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
                raise ValueError(f"the member {name!r:.80} occurs twice")
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
    _fraction(text)  # Spark has no number with such an exponent
    return Decimal(text)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} isn't a JSON number")


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

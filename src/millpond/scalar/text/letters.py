"""ICU's upper, lower and title case, for any Unicode version of Python.

The case of some letters has changed since Unicode 14 (Python 3.11), so versions of ICU and Python
differ: a text with such a letter is an error.

Source:  CollationAwareUTF8String.toUpperCase, toLowerCase and toTitleCaseICU, Spark 4.3.  Held
         against ICU for every code point by tests/spark/derive/test_scalar.py.
"""

from __future__ import annotations

import re

from millpond.errors import RequestError

_NEWER = re.compile(
    "[\u019b\u0264\u1c89\u1c8a\ua7cb-\ua7cf\ua7d2-\ua7d5\ua7da-\ua7dc\U00010d50-\U00010d65\U00010d70-\U00010d85\U00016ea0-\U00016ed3]"
)
# Besides these, a capital sigma becomes small or final sigma by properties that are the same in all
# versions of Unicode.
_BESIDE_SIGMA = re.compile("[\0-\u0294\u0296-\u052f\u1f00-\u206f]*")
_DOTTED = "\u0130"
_BROKEN = re.compile("[\udc80-\udcff]+")


def upper(text: str) -> str:
    """The text in upper case, without a language's own rules.

    Raises:  VALUE_OUT_OF_RANGE for letters that differ between versions of Unicode.
    """
    return text.upper() if text.isascii() else known_letters(text).upper()


def lower(text: str) -> str:
    """The same in lower case."""
    if text.isascii():
        return text.lower()
    whole = known_letters(text)
    if "\u03a3" in whole and not _BESIDE_SIGMA.fullmatch(whole):
        raise _unknown()
    return whole.lower()


def title(text: str) -> str:
    """The first letter after each space, and of the text, in title case; all others in lower case."""
    small = lower(text.replace(_DOTTED, "I"))  # of as many letters, which no other capital is in lower case
    out, is_first = [], True
    for letter, lowered in zip(text if text.isascii() else known_letters(text), small, strict=True):
        out.append(letter.title() if is_first else (letter.lower() if letter == _DOTTED else lowered))
        is_first = letter == " "
    return "".join(out)


def known_letters(text: str) -> str:
    """The text made valid, if its letters are the same in all versions of Unicode.  Raises as `upper`."""
    if _NEWER.search(text):
        raise _unknown()
    # Spark makes text valid first.
    return _BROKEN.sub(lambda bad: bad[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace"), text)


def _unknown() -> RequestError:
    return RequestError(
        "VALUE_OUT_OF_RANGE",
        "Its expression changes the case of a letter that versions of Unicode have in different ways.",
        hint="Show the text as it is, and change its case where it is read.",
    )

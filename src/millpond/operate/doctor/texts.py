"""Whether all texts of a column are numbers, dates or times in one form, so that nothing would be lost by their type."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass, field

_WORD = 8
_DATE = re.compile(rb"\d{4}-\d\d-\d\d")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?")
_WHOLE = re.compile(rb"-?[1-9]\d{0,17}|0")
# Fewer texts say nothing of a column.
FEWEST = 100


def _is_whole(text: bytes) -> bool:
    """A whole number of 64 bits whose text is as Spark would write it."""
    return _WHOLE.fullmatch(text) is not None


def _is_date(text: bytes) -> bool:
    return _DATE.fullmatch(text) is not None and _parses(text, dt.date.fromisoformat)


def _is_time(text: bytes) -> bool:
    return _TIME.fullmatch(text) is not None and _parses(text, dt.datetime.fromisoformat)


def _parses(text: bytes, parse: Callable[[str], object]) -> bool:
    try:
        parse(text.decode("ascii"))
    except ValueError:
        return False
    return True


_FORMS: dict[str, Callable[[bytes], bool]] = {"bigint": _is_whole, "date": _is_date, "timestamp": _is_time}


@dataclass(slots=True)
class TextColumn:
    """A column of texts, of which some were tried.

    rows:    how many rows were tried, with NULLs
    tried:   how many texts
    saved_bytes:  how many bytes of the row's variable part they take, which a number doesn't have
    forms:   the types that every text so far could have
    """

    rows: int = 0
    tried: int = 0
    saved_bytes: int = 0
    forms: set[str] = field(default_factory=lambda: set(_FORMS))
    example: bytes = b""

    def add(self, rows: int, texts: list[bytes]) -> None:
        """More texts, out of so many rows."""
        self.rows += rows
        self.tried += len(texts)
        if not self.forms:
            return
        self.saved_bytes += sum(-(-len(text) // _WORD) * _WORD for text in texts)
        self.forms = {form for form in self.forms if all(map(_FORMS[form], texts))}
        self.example = texts[0] if texts else self.example

    @property
    def form(self) -> str | None:
        """Spark's type that fits every text; None if none does, or too few were tried."""
        return min(self.forms) if self.forms and self.tried >= FEWEST else None

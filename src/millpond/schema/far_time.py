"""Dates and times that Python's `datetime` can't hold: before the year 1 and after 9999.

Spark has dates from the year -5877641 to 5881580 and times from -290308 to 294247, in Python's
calendar extended both ways.  A year has four digits; one after 9999 begins with a plus sign, one
before 0 with a minus sign, as ISO 8601 and Spark write
them: +12345-03-01, 0000-01-01, -0044-03-15.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import total_ordering

DAY_MICROSECONDS = 86_400_000_000
YEAR = r"(\+[0-9]{5,7}|-(?!0000)[0-9]{4,7}|[0-9]{4})"
_DATE = re.compile(YEAR + r"-([0-9]{2})-([0-9]{2})")
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
# The calendar repeats after so many years, of so many days.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_MAX_DAYS, _MAX_MICROSECONDS = 2**31, 2**63


@total_ordering
@dataclass(frozen=True, slots=True)
class FarTime:
    """A date or time outside the years 1 to 9999, in place of a `datetime` object.

    `str` is its ISO 8601 text.  It can be given in a key.  It comes before or after every `date` or
    `datetime` of its type.

    type:        date, timestamp or timestamp_ntz
    since_1970:  days of a date, microseconds of the others
    """

    type: str
    since_1970: int

    def __str__(self) -> str:
        if self.type == "date":
            return write_days(self.since_1970)
        return write_micros(self.since_1970) + ("Z" if self.type == "timestamp" else "")

    def __repr__(self) -> str:
        return f"FarTime({self.type}, {self})"

    def __lt__(self, other: object) -> bool:
        if isinstance(other, FarTime):
            return self.since_1970 < other.since_1970 if other.type == self.type else NotImplemented
        if not isinstance(other, dt.date) or _type_of(other) != self.type:
            return NotImplemented
        return self.since_1970 < 0


def _type_of(value: dt.date) -> str:
    if not isinstance(value, dt.datetime):
        return "date"
    return "timestamp_ntz" if value.tzinfo is None else "timestamp"


def write_days(days: int) -> str:
    """+12345-03-01 of days since 1970."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    date = dt.date.fromordinal(_EPOCH_DAY + rest)
    year = date.year + cycles * _CYCLE_YEARS
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{date.month:02d}-{date.day:02d}"


def write_millis(millis: int) -> str:
    """An instant, from milliseconds since 1970, in UTC with its `Z`."""
    return f"{write_micros(millis * 1000)}Z"


def write_micros(micros: int) -> str:
    """+12345-03-01T12:00:00.5 of microseconds since 1970, with as many digits of a fraction as it needs."""
    days, rest = divmod(micros, DAY_MICROSECONDS)
    clock = (dt.datetime.min + dt.timedelta(microseconds=rest)).time().isoformat()
    return f"{write_days(days)}T{clock.rstrip('0') if '.' in clock else clock}"


def read_days(text: str) -> int:
    """Days since 1970 of a date.  Raises ValueError if it isn't a date, or isn't one of Spark's."""
    found = _DATE.fullmatch(text)
    if not found:
        raise ValueError("it must be a date, YYYY-MM-DD")
    cycles, year = divmod(int(found[1]), _CYCLE_YEARS)
    # Move the year into a cycle of Python's years.
    date = dt.date(year + 5 * _CYCLE_YEARS, int(found[2]), int(found[3]))
    days = date.toordinal() - _EPOCH_DAY + (cycles - 5) * _CYCLE_DAYS
    if not -_MAX_DAYS <= days < _MAX_DAYS:
        raise ValueError("Spark has no date as far as that")
    return days


def check_micros(micros: int) -> int:
    """The same microseconds.  Raises ValueError if Spark has no such time."""
    if not -_MAX_MICROSECONDS <= micros < _MAX_MICROSECONDS:
        raise ValueError("Spark has no time as far as that")
    return micros

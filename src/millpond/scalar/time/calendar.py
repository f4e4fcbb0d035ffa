"""Spark's calendar: the proleptic Gregorian one, for all years of an int of days or a long of microseconds.

Python's calendar only has the years 1 to 9999.
"""

from __future__ import annotations

MICROS = 1_000_000
DAY_SECONDS = 86_400
DAY_MICROS = DAY_SECONDS * MICROS
_CYCLE_DAYS = 146_097
# 1 March of the year 0, from 1 January 1970.
_SHIFT = 719_468


def civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day counted from 1970."""
    days += _SHIFT
    cycle, day = divmod(days, _CYCLE_DAYS)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    return year + cycle * 400 + (month > 9), month + 3 - 12 * (month > 9), day - (153 * month + 2) // 5 + 1


def days_of(year: int, month: int, day: int) -> int:
    """The inverse, for a valid day of the month."""
    year -= month < 3
    cycle, rest = divmod(year, 400)
    in_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return cycle * _CYCLE_DAYS + rest * 365 + rest // 4 - rest // 100 + in_year - _SHIFT


def is_leap(year: int) -> bool:
    """Whether a year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def month_length(year: int, month: int) -> int:
    """How many days a month has."""
    if month == 2:
        return 29 if is_leap(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def add_months(days: int, months: int) -> int:
    """The same day so many months later, or the last day of a shorter month."""
    year, month, day = civil(days)
    whole = year * 12 + month - 1 + months
    year, month = whole // 12, whole % 12 + 1
    return days_of(year, month, min(day, month_length(year, month)))


def weekday(days: int) -> int:
    """0 for Monday … 6 for Sunday."""
    return (days + 3) % 7


def iso_week(days: int) -> tuple[int, int]:
    """Year and week by ISO 8601: a week belongs to the year of its Thursday."""
    thursday = days - weekday(days) + 3
    year = civil(thursday)[0]
    return year, (thursday - days_of(year, 1, 1)) // 7 + 1

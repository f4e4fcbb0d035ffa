"""Parses text as Spark's casts from string do.

Each function returns None if the text isn't a value.

Source:  UTF8String.toLong and toLongExact, Cast.processFloatingPointSpecialLiterals,
         Decimal.fromString, StringUtils.isTrueString, DateTimeUtils.stringToDate, Spark 4.3.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal, InvalidOperation

from millpond.errors import RequestError
from millpond.scalar.number.ranges import EXACT, single
from millpond.scalar.time.calendar import DAY_SECONDS, MICROS, days_of, month_length

# UTF8String.trimAll: all of ISO control characters and the space.
_BLANK = "".join(map(chr, (*range(33), *range(0x7F, 0xA0))))
# String.trim of Java.
_JAVA_BLANK = "".join(map(chr, range(33)))
_TRUE, _FALSE = frozenset({"t", "true", "y", "yes", "1"}), frozenset({"f", "false", "n", "no", "0"})
_WHOLE = re.compile(r"([+-]?)([0-9]+)?(\.[0-9]*)?", re.ASCII)
_JAVA_FLOAT = re.compile(r"([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)", re.ASCII)
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?", re.ASCII)
_SPECIAL = {
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
    "nan": math.nan,
}
# BigDecimal accepts digits of all scripts that are one UTF-16 unit.
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,10})?")
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_MAX_DIGITS = 38


def blank_off(text: str) -> str:
    """Without the blanks and control characters at both ends."""
    return text.strip(_BLANK)


def parse_boolean(text: str) -> bool | None:
    """t, true, y, yes, 1 and their opposites, in any case."""
    word = blank_off(text).lower()
    return True if word in _TRUE else (False if word in _FALSE else None)


def parse_whole(text: str, *, exact: bool) -> int | None:
    """A whole number of any size.  exact: without decimal places; else these are cut off."""
    found = _WHOLE.fullmatch(blank_off(text))
    if found is None or (found[2] is None and (exact or not found[3])) or (exact and found[3] is not None):
        return None
    number = int(found[2] or 0)
    return -number if found[1] == "-" else number


def parse_double(text: str) -> float | None:
    """A double by the rules of Java's Double.valueOf, or a word for infinity or NaN in any case."""
    stripped = text.strip(_JAVA_BLANK)
    found = _JAVA_FLOAT.fullmatch(stripped)
    if found is not None:
        return float(found[1] + (found[2] or found[3] or found[4]))
    if _HEX_FLOAT.fullmatch(stripped):
        try:
            return float.fromhex(stripped.rstrip("fFdD") if stripped[-1] in "fFdD" else stripped)
        except OverflowError:
            return -math.inf if stripped[0] == "-" else math.inf
    return _SPECIAL.get(stripped.lower())


def parse_float(text: str) -> float | None:
    """The same for a float: rounded once, from the decimal text."""
    wide = parse_double(text)
    if wide is None or wide != wide or math.isinf(wide):
        return wide
    found = _JAVA_FLOAT.fullmatch(text.strip(_JAVA_BLANK))
    if found is not None and found[4] is not None:
        exact, near = Decimal(found[4]), Decimal(abs(wide))
        if exact != near and struct.unpack(">Q", struct.pack(">d", wide))[0] & 0xFFFFFFF == 0:
            wide = math.nextafter(wide, math.copysign(math.inf, wide) if exact > near else 0.0)
    return single(wide)


def parse_decimal(text: str) -> Decimal | None:
    """A decimal by the rules of Java's BigDecimal."""
    stripped = text.strip(_JAVA_BLANK)
    if not _DECIMAL.fullmatch(stripped) or (not stripped.isascii() and max(stripped) > "\uffff"):
        return None
    try:
        return EXACT.create_decimal(stripped) if len(stripped) < 300 else Decimal(stripped)
    except InvalidOperation:
        return None


def parse_date(text: str) -> int | None:
    """[+-]yyyy[-MM[-dd]] in days, with anything after a blank or a T."""
    found = _DATE.fullmatch(blank_off(text))
    if found is None:
        return None
    year = int(found[2]) * (-1 if found[1] == "-" else 1)
    month, day = int(found[3] or 1), int(found[4] or 1)
    if not 1 <= month <= 12 or not 1 <= day <= month_length(year, month):
        return None
    days = days_of(year, month, day)
    return days if -(2**31) <= days < 2**31 else None


# ---------------------------------------------------------------- times of a day

_CLOCK = re.compile(r"(?:T|(?=[0-9]{1,2}:))([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)?)?", re.ASCII)
_HALF = re.compile(r"(.+)([AaPp])[Mm]", re.DOTALL)


def parse_time(text: str, places: int) -> int | None:
    """h[:m[:s[.fraction]]] in nanoseconds; T may precede it, AM or PM may follow.

    places: of a second; further digits are cut off
    """
    cut = text.rstrip(" ")
    half = _HALF.fullmatch(cut)
    found = _CLOCK.fullmatch((half[1] if half else cut).strip(_JAVA_BLANK + "\x7f"))
    if found is None:
        return None
    hour, minute, second = (int(found[n] or 0) for n in (1, 2, 3))
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half[2] in "Pp")
    if hour > 23 or minute > 59 or second > 59:
        return None
    step: int = 10 ** (9 - places)
    nanos = int(f"{found[4] or '':0<9}"[:9])
    return (hour * 3600 + minute * 60 + second) * 1_000_000_000 + nanos - nanos % step


# ---------------------------------------------------------------- timestamps

_STAMP = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_TIME_ALONE = re.compile(r"T|[0-9]{1,2}:", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?:([+-])([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{2}))?|([0-9]{2})([0-9]{2})?)?)?", re.ASCII)
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+", re.ASCII)
_FURTHEST = 18 * 3600


def parse_timestamp(text: str) -> tuple[int, int | None] | None:
    """A local time in microseconds, as if it were UTC, and the offset in seconds if the text has one.

    Raises:  VALUE_OUT_OF_RANGE for a time without a date, which would mean today, and for the name
             of a time zone.
    """
    stripped = blank_off(text)
    if _TIME_ALONE.match(stripped):
        raise _unknown("a time without a date")
    found = _STAMP.fullmatch(stripped)
    if found is None:
        return None
    year = int(found[2]) * (-1 if found[1] == "-" else 1)
    month, day = int(found[3] or 1), int(found[4] or 1)
    hour, minute, second = (int(found[n] or 0) for n in (5, 6, 7))
    if not 1 <= month <= 12 or not 1 <= day <= month_length(year, month) or hour > 23 or minute > 59 or second > 59:
        return None
    offset = _offset(found[9].strip(_JAVA_BLANK)) if found[9] else None
    if offset is _NOT_ONE:
        return None
    local = days_of(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second
    return local * MICROS + int(f"{found[8] or '':0<6}"[:6]), offset


_NOT_ONE = -(10**9)


def _offset(zone: str) -> int:
    """Z, UTC, +5, +05:30, UTC+5, +0530 in seconds; _NOT_ONE if Java has no such zone."""
    if zone == "Z":
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is None or not zone:
        if _REGION.fullmatch(zone):
            raise _unknown("a text with the name of a time zone")
        return _NOT_ONE
    if found[1] is None:
        return 0
    minutes, seconds = int(found[3] or found[5] or 0), int(found[4] or found[6] or 0)
    size = int(found[2]) * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or size > _FURTHEST:
        return _NOT_ONE
    return -size if found[1] == "-" else size


def _unknown(what: str) -> RequestError:
    return RequestError(
        "VALUE_OUT_OF_RANGE",
        f"Its expression casts {what} to a timestamp, which isn't known here.",
        hint="Write date, time and offset in the job.",
    )

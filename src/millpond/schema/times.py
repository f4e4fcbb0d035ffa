"""Times and intervals as text: ISO 8601, read strictly.

Python's own `fromisoformat` accepts too much (week dates, digits cut off after the sixth), so each
form is matched first.  Fractions have as many digits as necessary.  Readers raise ValueError with
the reason.  `schema.far_time` writes and reads years that Python lacks.
"""

from __future__ import annotations

import datetime as dt
import re

from millpond.schema.convert import to_python
from millpond.schema.far_time import DAY_MICROSECONDS, YEAR, FarTime, check_micros, read_days, write_micros
from millpond.schema.types import SparkType

_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,%d})?)?"
_TIME = re.compile(_CLOCK % 6)
_LOCAL = re.compile(rf"(?P<date>{YEAR}-[0-9]{{2}}-[0-9]{{2}})([T ](?P<clock>{_CLOCK % 6}))?")
_ZONE = re.compile(r"(Z|[+-][0-9]{2}:?[0-9]{2})$")
_NANOS = re.compile(r"(?P<seconds>[^.]*[0-9])(\.(?P<fraction>[0-9]{1,9}))?(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?")
_DAY_TIME = re.compile(
    r"(?P<sign>[+-])?P((?P<days>[0-9]{1,9})D)?"
    r"(T(?=[0-9])((?P<hours>[0-9]{1,12})H)?((?P<minutes>[0-9]{1,12})M)?((?P<seconds>[0-9]{1,15})(\.(?P<fraction>[0-9]{1,6}))?S)?)?"
)
_YEAR_MONTH = re.compile(r"(?P<sign>[+-])?P((?P<years>[0-9]{1,9})Y)?((?P<months>[0-9]{1,10})M)?")
_MICROSECOND = dt.timedelta(microseconds=1)
# Spark stores intervals as an int64 of microseconds and an int32 of months.
_MAX_MICROSECONDS = 2**63
_MAX_MONTHS = 2**31


def write_date(value: dt.date | FarTime) -> str:
    """2026-03-01"""
    return str(value)


def read_date(text: str, type_: SparkType) -> dt.date | FarTime:
    day: dt.date | FarTime = to_python(type_)(read_days(text))
    return day


def write_timestamp_ntz(value: dt.datetime | FarTime) -> str:
    """2026-03-01T12:00:00.5"""
    if isinstance(value, FarTime):
        return str(value)
    text = value.isoformat()
    return text.rstrip("0") if value.microsecond else text


def read_timestamp_ntz(text: str, type_: SparkType) -> dt.datetime | FarTime:
    time: dt.datetime | FarTime = to_python(type_)(check_micros(_read_ntz(text)))
    return time


def _read_ntz(text: str) -> int:
    if _ZONE.search(text) and ":" in text:
        raise ValueError("the type has no time zone, so the text may not have one")
    return _read_local(text)


def write_timestamp(value: dt.datetime | FarTime) -> str:
    """2026-03-01T12:00:00.5Z"""
    if isinstance(value, FarTime):
        return str(value)
    return write_timestamp_ntz(value.astimezone(dt.UTC).replace(tzinfo=None)) + "Z"


def read_timestamp(text: str, type_: SparkType) -> dt.datetime | FarTime:
    """A time with Z or an offset; without either it is UTC."""
    time: dt.datetime | FarTime = to_python(type_)(check_micros(_read_zoned(text)))
    return time


def _read_zoned(text: str) -> int:
    zone = _ZONE.search(text) if ":" in text else None
    if zone is None:
        return _read_local(text)
    offset = dt.datetime.fromisoformat(f"1970-01-01T00:00:00{zone[0]}").utcoffset()
    assert offset is not None
    return _read_local(text[: zone.start()]) - offset // _MICROSECOND


def _read_local(text: str) -> int:
    """Microseconds since 1970 of a local time, as if it were UTC."""
    found = _LOCAL.fullmatch(text)
    if not found:
        raise ValueError("it must be a time, YYYY-MM-DDTHH:MM:SS with at most six digits of a fraction")
    clock = dt.time.fromisoformat(found["clock"] or "00:00")
    seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
    return read_days(found["date"]) * DAY_MICROSECONDS + seconds * 1_000_000 + clock.microsecond


def write_time(value: dt.time) -> str:
    """12:00:00.5"""
    text = value.isoformat()
    return text.rstrip("0") if value.microsecond else text


def read_time(text: str, _type: SparkType) -> dt.time:
    if not _TIME.fullmatch(text):
        raise ValueError("it must be a time of day, HH:MM:SS with at most six digits of a fraction")
    return dt.time.fromisoformat(text)


def write_nanos(value: tuple[int, int]) -> str:
    """2026-03-01T12:00:00.123456789 of (microseconds since 1970, nanoseconds within the microsecond)."""
    microseconds, nanoseconds = value
    seconds, rest = divmod(microseconds, 1_000_000)
    fraction = f"{rest:06d}{nanoseconds:03d}".rstrip("0")
    return write_micros(seconds * 1_000_000) + (f".{fraction}" if fraction else "")


def read_nanos(text: str, type_: SparkType) -> tuple[int, int]:
    found = _NANOS.fullmatch(text)
    if not found:
        raise ValueError("it must be a time, YYYY-MM-DDTHH:MM:SS with at most nine digits of a fraction")
    fraction = (found["fraction"] or "").ljust(9, "0")
    whole = found["seconds"] + (found["zone"] or "")
    read = _read_zoned if "ltz" in type_.name else _read_ntz
    return check_micros(read(whole) + int(fraction[:6])), int(fraction[6:])


def write_day_time(value: dt.timedelta) -> str:
    """P1DT2H3M4.5S; a negative interval has one sign, in front; zero is PT0S."""
    total = value // _MICROSECOND
    seconds, fraction = divmod(abs(total), 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = "".join(f"{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M")) if n)
    if seconds or fraction:
        clock += f"{seconds}" + (f".{fraction:06d}".rstrip("0") if fraction else "") + "S"
    text = (f"{days}D" if days else "") + (f"T{clock}" if clock else "")
    return ("-P" if total < 0 else "P") + (text or "T0S")


def read_day_time(text: str, _type: SparkType) -> dt.timedelta:
    found = _DAY_TIME.fullmatch(text)
    if not found or text[-1] in "PT":
        raise ValueError("it must be an ISO 8601 duration of days, hours, minutes and seconds")
    days, hours, minutes, seconds = (int(found[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    microseconds = total * 1_000_000 + int((found["fraction"] or "").ljust(6, "0"))
    signed = -microseconds if found["sign"] == "-" else microseconds
    if not -_MAX_MICROSECONDS <= signed < _MAX_MICROSECONDS:
        raise ValueError("it is longer than Spark's longest interval")
    return dt.timedelta(microseconds=signed)


def write_year_month(value: int) -> str:
    """P1Y2M of 14 months; a negative interval has one sign, in front; zero is P0M."""
    years, months = divmod(abs(value), 12)
    text = (f"{years}Y" if years else "") + (f"{months}M" if months else "")
    return ("-P" if value < 0 else "P") + (text or "0M")


def read_year_month(text: str, _type: SparkType) -> int:
    found = _YEAR_MONTH.fullmatch(text)
    if not found or text[-1] == "P":
        raise ValueError("it must be an ISO 8601 duration of years and months")
    total = int(found["years"] or 0) * 12 + int(found["months"] or 0)
    signed = -total if found["sign"] == "-" else total
    if not -_MAX_MONTHS <= signed < _MAX_MONTHS:
        raise ValueError("it is longer than Spark's longest interval")
    return signed

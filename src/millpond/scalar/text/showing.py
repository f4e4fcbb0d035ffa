"""Values as text, as in Spark's cast to string.

Source:  ToStringBase, IntervalUtils.toDayTimeIntervalString, TimestampFormatter, Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from millpond.errors import RequestError
from millpond.scalar.text.java_text import SHORTEST_SINCE, java_text
from millpond.scalar.time.calendar import DAY_MICROS, MICROS, civil
from millpond.scalar.time.zones import Zone
from millpond.schema.types import INTEGERS, SparkType

Stored = Any
Show = Callable[[Stored], str]
_UNITS = ("day", "hour", "minute", "second")
_SIZES = {"day": DAY_MICROS, "hour": 3600 * MICROS, "minute": 60 * MICROS, "second": MICROS}


def float_text(java: int | None, *, single: bool) -> Callable[[float], str]:
    """The text of a double or float by the job's Java.

    java:  its major version; None if it isn't known
    Raises (the function):  JAVA_UNKNOWN if the versions differ.
    """

    def text(value: float) -> str:
        if java is not None:
            return java_text(value, java, single=single)
        old, new = java_text(value, 17, single=single), java_text(value, SHORTEST_SINCE, single=single)
        if old != new:
            raise RequestError(
                "JAVA_UNKNOWN",
                f"Java before version {SHORTEST_SINCE} writes this number as {old}, later ones as {new}; the job's isn't known.",
                hint="Start or publish the job with Millpond, so that the definition says its Java.",
            )
        return new

    return text


def compile_show(type_: SparkType, mode: str, java: int | None, zone: Zone | None) -> Show:
    """A function from a value (not NULL) to its text.  zone: for timestamps."""
    kind = type_.kind
    if kind == "string" or kind in INTEGERS:
        return str
    if kind in ("float", "double"):
        return float_text(java, single=kind == "float")
    if kind == "decimal":
        return decimal_text if mode != "ansi" else _plain_decimal
    if kind in _SHOWN:
        return _SHOWN[kind]
    if kind == "timestamp":
        assert zone is not None
        local = zone.to_local
        return lambda v: local_text(local(v))
    if kind == "year_month_interval":
        return _year_month(type_)
    if kind == "day_time_interval":
        return _day_time(type_)
    return _composed(type_, mode, java, zone)


def decimal_text(value: Decimal) -> str:
    """Java's BigDecimal.toString, which is the same as Python's: with an exponent below 10^-6."""
    return str(value)


def _plain_decimal(value: Decimal) -> str:
    return format(value, "f")


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _binary(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def year_text(year: int) -> str:
    """Four digits; with a sign if there are more, or for years before 0."""
    return f"-{-year:04d}" if year < 0 else (f"{year:04d}" if year <= 9999 else f"+{year}")


def date_text(days: int) -> str:
    """yyyy-MM-dd"""
    year, month, day = civil(days)
    return f"{year_text(year)}-{month:02d}-{day:02d}"


def _clock(micros: int) -> str:
    seconds, rest = divmod(micros, MICROS)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


def local_text(micros: int) -> str:
    """yyyy-MM-dd HH:mm:ss of a local time, with as many digits of a fraction as necessary."""
    days, rest = divmod(micros, DAY_MICROS)
    return f"{date_text(days)} {_clock(rest)}"


def _time(nanos: int) -> str:
    return _clock(nanos // 1000)


_SHOWN: dict[str, Show] = {
    "boolean": _boolean,
    "binary": _binary,
    "date": date_text,
    "timestamp_ntz": local_text,
    "time": _time,
}


# ---------------------------------------------------------------- intervals


def interval_units(type_: SparkType) -> tuple[str, str]:
    """The first and the last unit of an interval type: `interval day to second` has day and second."""
    names = type_.name.removeprefix("interval ").split(" to ")
    return names[0], names[-1]


def _year_month(type_: SparkType) -> Show:
    first, last = interval_units(type_)

    def show(months: int) -> str:
        sign = "-" if months < 0 else ""
        years, rest = divmod(abs(months), 12)
        if first == last:
            number = years if first == "year" else abs(months)
            return f"INTERVAL '{sign}{number}' {first.upper()}"
        return f"INTERVAL '{sign}{years}-{rest}' YEAR TO MONTH"

    return show


def _day_time(type_: SparkType) -> Show:
    first, last = interval_units(type_)
    units = _UNITS[_UNITS.index(first) : _UNITS.index(last) + 1]
    suffix = first.upper() if first == last else f"{first.upper()} TO {last.upper()}"

    def show(micros: int) -> str:
        sign, rest = ("-" if micros < 0 else ""), abs(micros)
        parts: list[str] = []
        for unit in units:
            number, rest = divmod(rest, _SIZES[unit])
            # The first unit has no leading zero, except that Spark also pads hours, minutes and
            # seconds.
            text = str(number) if unit == "day" else f"{number:02d}"
            if unit == "second" and rest:
                text += f".{rest:06d}".rstrip("0")
            parts.append(text)
        body = parts[0] + (" " if units[0] == "day" and len(parts) > 1 else ":" if len(parts) > 1 else "") + ":".join(parts[1:])
        return f"INTERVAL '{sign}{body}' {suffix}"

    return show


# ---------------------------------------------------------------- composed values


def _composed(type_: SparkType, mode: str, java: int | None, zone: Zone | None) -> Show:
    def inner(part: SparkType) -> Show:
        show = compile_show(part, mode, java, zone) if part.kind != "void" else str
        return lambda v: "null" if v is None else show(v)

    if type_.kind == "struct":
        members = [inner(f.type) for f in type_.fields]
        return lambda row: "{" + ", ".join(show(v) for show, v in zip(members, row, strict=True)) + "}"
    if type_.kind == "array":
        assert type_.element is not None
        element = inner(type_.element)
        return lambda values: "[" + ", ".join(map(element, values)) + "]"
    assert type_.key is not None
    assert type_.value is not None
    key, value = inner(type_.key), inner(type_.value)
    return lambda pairs: "{" + ", ".join(f"{key(k)} -> {value(v)}" for k, v in pairs) + "}"

"""Functions of dates and timestamps.

A timestamp's year, day and hour are those of the session's time zone; the expression has its rules.

Source:  datetimeExpressions.scala, DateTimeUtils, intervalExpressions.scala, Spark 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

from millpond.scalar.casts import java_narrow
from millpond.scalar.function import FLOATS, STRING, Stored, Values, function, literal_of, plain, refuse_type, strict, takes
from millpond.scalar.number.ranges import EXACT, overflow, truncated, wrap
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.text.reading import read_by_format, refuse_reading
from millpond.scalar.time.calendar import (
    DAY_MICROS,
    DAY_SECONDS,
    MICROS,
    add_months,
    civil,
    days_of,
    iso_week,
    month_length,
    weekday,
)
from millpond.scalar.time.zones import Zone, parse_zone, resolve, zone_of
from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS, SparkType

_DATE, _STAMP, _LOCAL = frozenset({"date"}), frozenset({"timestamp"}), frozenset({"timestamp_ntz"})
_INSTANTS = _STAMP | _LOCAL
_INT = frozenset({"byte", "short", "integer"})
_MONTHS, _DAYS = frozenset({"year_month_interval"}), frozenset({"day_time_interval"})
_LONG, _INTEGER = SparkType("long", "long"), SparkType("integer", "integer")
_HOUR, _MINUTE = 3600 * MICROS, 60 * MICROS


def _to_day(days: int) -> int:
    """The day, if it fits an int."""
    wrapped = wrap(days, _INTEGER, "ansi")
    assert wrapped is not None
    return wrapped


def _to_instant(micros: int) -> int:
    wrapped = wrap(micros, _LONG, "ansi")
    assert wrapped is not None
    return wrapped


# ---------------------------------------------------------------- parts of a date


def _quarter(days: int) -> int:
    return (civil(days)[1] - 1) // 3 + 1


def _day_of_year(days: int) -> int:
    return days - days_of(civil(days)[0], 1, 1) + 1


def _last_day(days: int) -> int:
    year, month, _ = civil(days)
    return days_of(year, month, month_length(year, month))


_OF_DATE: dict[str, tuple[str, Callable[[int], int]]] = {
    "year": ("Year", lambda d: civil(d)[0]),
    "month": ("Month", lambda d: civil(d)[1]),
    "day": ("DayOfMonth", lambda d: civil(d)[2]),
    "quarter": ("Quarter", _quarter),
    "day_of_week": ("DayOfWeek", lambda d: (weekday(d) + 1) % 7 + 1),
    "weekday": ("WeekDay", weekday),
    "day_of_year": ("DayOfYear", _day_of_year),
    "week_of_year": ("WeekOfYear", lambda d: iso_week(d)[1]),
    "year_of_week": ("YearOfWeek", lambda d: iso_week(d)[0]),
    "last_day": ("LastDay", _last_day),
    "unix_date": ("UnixDate", lambda d: d),
}


# ---------------------------------------------------------------- parts of a timestamp


def local_of(e: Expression, place: int = 0) -> Callable[[int], int]:
    """From an operand to local time in microseconds: a timestamp by the zone, a timestamp_ntz unchanged."""
    return zone_of(e).to_local if e.args[place].type.kind == "timestamp" else (lambda v: v)


def _clock(size: int, count: int) -> Callable[[Expression], Values]:
    def make(e: Expression) -> Values:
        local = local_of(e)
        return lambda v: local(v) // size % count

    return make


def _second_with_fraction(e: Expression) -> Values:
    local = local_of(e)
    return lambda v: EXACT.scaleb(Decimal(local(v) % _MINUTE), -6)


def _zoned(e: Expression) -> tuple[str, ...]:
    return ("zone",) if any(a.type.kind == "timestamp" for a in e.args) else ()


# ---------------------------------------------------------------- truncation

_DATE_LEVELS = {
    "week": "week",
    **dict.fromkeys(("mon", "month", "mm"), "month"),
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
}
_TIME_LEVELS = _DATE_LEVELS | {
    **dict.fromkeys(("day", "dd"), "day"),
    "hour": "hour", "minute": "minute", "second": "second", "millisecond": "millisecond", "microsecond": "microsecond",
}  # fmt: skip
_FIXED = {"millisecond": 1000, "second": MICROS, "minute": _MINUTE}


def truncate_date(days: int, level: str) -> int:
    """The first day of a day's week, month, quarter or year."""
    if level == "week":
        return days - weekday(days)
    year, month, _ = civil(days)
    first = {"month": month, "quarter": (month - 1) // 3 * 3 + 1, "year": 1}[level]
    return days_of(year, first, 1)


def _trunc_date(e: Expression) -> Values:
    level = _DATE_LEVELS.get(str(literal_of(e.args[1])).lower())
    return lambda v, _: None if level is None else truncate_date(v, level)


def _refuse_trunc_date(e: Expression) -> str | None:
    return takes(_DATE, STRING, literal=(1,))(e)


def _trunc_timestamp(e: Expression) -> Values:
    """The format comes first."""
    level = _TIME_LEVELS.get(str(literal_of(e.args[0])).lower())
    zone = zone_of(e)

    def truncate(_: str, micros: int) -> int | None:
        if level is None:
            return None
        if level == "microsecond":
            return micros
        if level in ("millisecond", "second"):
            return micros - micros % _FIXED[level]
        local = zone.to_local(micros)
        if level == "minute":
            return offset_back(zone, micros, local - local % _MINUTE)
        if level in ("hour", "day"):
            return offset_back(zone, micros, local - local % (_HOUR if level == "hour" else DAY_MICROS))
        return zone.start_of_day(truncate_date(local // DAY_MICROS, level))

    return truncate


def offset_back(zone: Zone, micros: int, local: int) -> int:
    """A local time just before an instant as an instant, with the offset of that instant if it is valid.

    Source:  ZonedDateTime.truncatedTo of Java: in an overlap the offset stays.
    """
    offset = zone.offset(micros // MICROS) * MICROS
    near = local - offset
    return near if zone.offset(near // MICROS) * MICROS == offset else zone.from_local(local)


# ---------------------------------------------------------------- adding and subtracting


def _add_days(e: Expression) -> Values:
    sign = 1 if e.op == "date_add" else -1
    return lambda days, count: wrap(days + sign * count, _INTEGER, "legacy")


def _add_months(days: int, months: int) -> int:
    return _to_day(add_months(days, months))


def _timestamp_add_months(e: Expression) -> Values:
    return lambda micros, months: _shift(e, micros, months=months)


def _timestamp_add_interval(e: Expression) -> Values:
    """A day-time interval moves the instant by its microseconds: its days are days of the local calendar."""
    days_first = e.args[0].type.kind == "timestamp"

    def add(micros: int, interval: int) -> int:
        if not days_first:
            return _to_instant(micros + interval)
        whole = abs(interval) // DAY_MICROS * (1 if interval >= 0 else -1)
        return _to_instant(_shift(e, micros, days=whole) + interval - whole * DAY_MICROS)

    return add


def _shift(e: Expression, micros: int, *, days: int = 0, months: int = 0) -> int:
    """Move the local date and keep the time of day; if the zone has it twice, keep the old offset.

    Source:  ZonedDateTime.plusDays and plusMonths of Java.
    """
    zone = zone_of(e) if e.args[0].type.kind == "timestamp" or e.args[-1].type.kind == "timestamp" else None
    local = micros if zone is None else zone.to_local(micros)
    day, time = divmod(local, DAY_MICROS)
    moved = (add_months(day, months) if months else day + days) * DAY_MICROS + time
    if zone is None:
        return _to_instant(moved)
    return _to_instant(resolve(zone, moved, zone.offset(micros // MICROS)))


def _refuse_timestamp_interval(e: Expression) -> str | None:
    return takes(_INSTANTS, _DAYS)(e)


_CLOCK_UNITS = {
    "MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": MICROS, "MINUTE": _MINUTE, "HOUR": _HOUR,
}  # fmt: skip
_MONTH_UNITS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def _timestamp_add(e: Expression) -> Values:
    """The count comes first."""
    unit = e.options["unit"]

    def add(count: int, micros: int) -> int:
        if unit in _CLOCK_UNITS:
            return _to_instant(micros + count * _CLOCK_UNITS[unit])
        if unit in _MONTH_UNITS:
            return _shift(e, micros, months=count * _MONTH_UNITS[unit])
        return _shift(e, micros, days=count * (7 if unit == "WEEK" else 1))

    return add


def _refuse_unit(e: Expression) -> str | None:
    # For units of days and more, Java counts whole local times in several ways.
    if e.op == "timestamp_diff" and e.options["unit"] not in _CLOCK_UNITS:
        return f"{e.op} in units of {e.options['unit']} isn't known here"
    return takes(*((INTEGERS, _INSTANTS) if e.op == "timestamp_add" else (_INSTANTS,)))(e)


def _timestamp_diff(e: Expression) -> Values:
    size = _CLOCK_UNITS[e.options["unit"]]
    first, second = local_of(e, 0), local_of(e, 1)

    def difference(start: int, end: int) -> int:
        apart = second(end) - first(start)
        return abs(apart) // size * (1 if apart >= 0 else -1)

    return difference


def _subtract_dates(_: Expression) -> Values:
    return lambda a, b: _to_instant((a - b) * DAY_MICROS)


def _subtract_timestamps(e: Expression) -> Values:
    """Spark subtracts local times, also for timestamps."""
    left, right = local_of(e, 0), local_of(e, 1)
    return lambda a, b: _to_instant(left(a) - right(b))


def _refuse_subtract(e: Expression) -> str | None:
    if e.type.kind != "day_time_interval":
        return f"{e.op} as {e.type} isn't known here"
    return takes(_DATE if e.op == "subtract_dates" else _INSTANTS)(e)


def _from_utc(e: Expression) -> Values:
    zone = zone_of(e)
    return lambda micros, _: zone.to_local(micros)


def _to_utc(e: Expression) -> Values:
    zone = zone_of(e)
    return lambda micros, _: zone.from_local(micros)


def _months_between(e: Expression) -> Values:
    zone = zone_of(e)

    def compute(later: int, earlier: int, rounded: bool) -> float:
        one, two = zone.to_local(later), zone.to_local(earlier)
        (y1, m1, d1), (y2, m2, d2) = civil(one // DAY_MICROS), civil(two // DAY_MICROS)
        whole = float(y1 * 12 + m1 - (y2 * 12 + m2))
        if d1 == d2 or (d1 == month_length(y1, m1) and d2 == month_length(y2, m2)):
            return whole
        # Seconds since the day began, which a change of the clock makes more or fewer.
        since = [(t - zone.start_of_day(local // DAY_MICROS)) // MICROS for t, local in ((later, one), (earlier, two))]
        seconds = (d1 - d2) * DAY_SECONDS + since[0] - since[1]
        apart = whole + seconds / (31.0 * DAY_SECONDS)
        return math.floor(apart * 1e8 + 0.5) / 1e8 if rounded else apart

    return compute


_WEEKDAYS = {
    name: place
    for place, names in enumerate(
        (
            ("mo", "mon", "monday"),
            ("tu", "tue", "tuesday"),
            ("we", "wed", "wednesday"),
            ("th", "thu", "thursday"),
            ("fr", "fri", "friday"),
            ("sa", "sat", "saturday"),
            ("su", "sun", "sunday"),
        )
    )
    for name in names
}


def _next_day(e: Expression) -> Values:
    ansi = e.options["mode"] == "ansi"

    def compute(days: int, name: str) -> int | None:
        wanted = _WEEKDAYS.get(name.lower())
        if wanted is None:
            if ansi:
                raise SparkFails(
                    "VALUE_OUT_OF_RANGE",
                    "Its expression names a day of the week that is none.",
                    hint="Use SUN to SAT in the job.",
                )
            return None
        return wrap(days + 1 + (wanted - weekday(days) - 1) % 7, _INTEGER, "legacy")

    return compute


# ---------------------------------------------------------------- numbers and times


def _unix_timestamp(e: Expression) -> Values:
    kind = e.args[0].type.kind
    if kind == "string":
        return read_by_format(e)
    if kind == "date":
        zone = zone_of(e)
        return lambda v, _: zone.start_of_day(v) // MICROS
    return lambda v, _: _toward_zero(v, MICROS)


def _refuse_unix_timestamp(e: Expression) -> str | None:
    if e.args[0].type.kind == "string":
        return refuse_reading(e)
    return refuse_type(e.op, e.args[0].type, _INSTANTS | _DATE)


def _reads_unix_timestamp(e: Expression) -> tuple[str, ...]:
    if e.args[0].type.kind == "string":
        return ("strict", "reading", "zone")
    return ("zone",) if e.args[0].type.kind == "date" else ()


def _from_number(e: Expression) -> Values:
    size = {"timestamp_seconds": MICROS, "timestamp_millis": 1000, "timestamp_micros": 1}[e.op]
    of = e.args[0].type.kind
    if of == "decimal":

        def from_decimal(value: Decimal) -> int:
            micros = EXACT.multiply(value, Decimal(size))
            if micros != micros.to_integral_value():
                raise overflow(e.type)
            return _to_instant(truncated(micros))

        return from_decimal
    if of in FLOATS:

        def from_float(value: float) -> int | None:
            return None if value != value or math.isinf(value) else java_narrow(value * 1000000.0, _LONG)

        return from_float
    return lambda v: _to_instant(v * size)


def _refuse_from_number(e: Expression) -> str | None:
    return refuse_type(e.op, e.args[0].type, INTEGERS | ({"decimal", *FLOATS} if e.op == "timestamp_seconds" else set()))


def _to_number(size: int) -> Values:
    return lambda v: v // size


def _make_date(e: Expression) -> Values:
    ansi = e.options["mode"] == "ansi"

    def make(year: int, month: int, day: int) -> int | None:
        # The years that Java's calendar has; a day that no int has is an error in all modes.
        if abs(year) <= 999_999_999 and 1 <= month <= 12 and 1 <= day <= month_length(year, month):
            return _to_day(days_of(year, month, day))
        if ansi:
            raise overflow(e.type)
        return None

    return make


def _make_timestamp(e: Expression) -> Values:
    """Of the session's time zone, or of none; 60 seconds are the next minute.

    Spark takes microseconds as an int, which wraps.
    """
    ansi = e.options["mode"] == "ansi"
    from_local = zone_of(e).from_local if e.type.kind == "timestamp" else (lambda v: v)

    def make(year: int, month: int, day: int, hour: int, minute: int, second: Decimal, *_: str) -> int | None:
        micros = wrap(truncated(EXACT.scaleb(second, 6)), _INTEGER, "legacy") or 0
        is_day = abs(year) <= 999_999_999 and 1 <= month <= 12 and 1 <= day <= month_length(year, month)
        if is_day and 0 <= hour < 24 and 0 <= minute < 60 and 0 <= micros <= _MINUTE:
            return _to_instant(from_local(days_of(year, month, day) * DAY_MICROS + hour * _HOUR + minute * _MINUTE + micros))
        if ansi:
            raise overflow(e.type)
        return None

    return make


def _refuse_make_timestamp(e: Expression) -> str | None:
    return takes({"integer"}, {"integer"}, {"integer"}, {"integer"}, {"integer"}, {"decimal"}, STRING, literal=(6,))(e)


def _reads_make_timestamp(e: Expression) -> tuple[str, ...]:
    if e.type.kind != "timestamp":
        return ("strict",)
    return ("strict", "last_zone" if len(e.args) > 6 else "zone")


def _convert_zone(e: Expression) -> Values:
    source, target = zone_of(e), parse_zone(e.options["to_zone"])
    return lambda _, __, local: target.to_local(source.from_local(local))


# ---------------------------------------------------------------- intervals

_INTERVAL_PARTS: dict[str, tuple[str, Callable[[int], int]]] = {
    "interval_years": ("ExtractANSIIntervalYears", lambda v: _toward_zero(v, 12)),
    "interval_months": ("ExtractANSIIntervalMonths", lambda v: _rest(v, 12)),
    "interval_days": ("ExtractANSIIntervalDays", lambda v: _toward_zero(v, DAY_MICROS)),
    "interval_hours": ("ExtractANSIIntervalHours", lambda v: _toward_zero(_rest(v, DAY_MICROS), _HOUR)),
    "interval_minutes": ("ExtractANSIIntervalMinutes", lambda v: _toward_zero(_rest(v, _HOUR), _MINUTE)),
}


def _toward_zero(value: int, size: int) -> int:
    return abs(value) // size * (1 if value >= 0 else -1)


def _rest(value: int, size: int) -> int:
    return value - _toward_zero(value, size) * size


def _interval_seconds(value: int) -> Decimal:
    return EXACT.scaleb(Decimal(_rest(value, _MINUTE)), -6)


def _make_months(e: Expression) -> Values:
    return lambda years, months: wrap(years * 12 + months, e.type, "ansi")


def _make_interval(e: Expression) -> Values:
    def make(days: int, hours: int, minutes: int, seconds: Decimal) -> int | None:
        micros = truncated(EXACT.scaleb(seconds, 6))
        return wrap(days * DAY_MICROS + hours * _HOUR + minutes * _MINUTE + micros, e.type, "ansi")

    return make


def _make_calendar_interval(e: Expression) -> Values:
    """Months, days and microseconds, each by itself."""
    mode = "ansi" if e.options["mode"] == "ansi" else "try"

    def make(years: int, months: int, weeks: int, days: int, hours: int, minutes: int, seconds: Decimal) -> Stored:
        parts = (
            wrap(years * 12 + months, _INTEGER, mode),
            wrap(weeks * 7 + days, _INTEGER, mode),
            wrap(hours * _HOUR + minutes * _MINUTE + truncated(EXACT.scaleb(seconds, 6)), _LONG, mode),
        )
        return None if None in parts else parts

    return make


FUNCTIONS = (
    function(
        "make_calendar_interval",
        strict(_make_calendar_interval),
        "MakeInterval",
        refuse=takes(*({"integer"},) * 6, {"decimal"}),
        reads=("strict",),
    ),
    function("from_utc", strict(_from_utc), "FromUTCTimestamp", refuse=takes(_STAMP, STRING, literal=(1,)), reads=("zone_named",)),
    function("to_utc", strict(_to_utc), "ToUTCTimestamp", refuse=takes(_STAMP, STRING, literal=(1,)), reads=("zone_named",)),
    *(function(op, plain(compute), name, refuse=takes(_DATE)) for op, (name, compute) in _OF_DATE.items()),
    *(
        function(op, strict(_clock(size, count)), name, refuse=takes(_INSTANTS), reads=_zoned)
        for op, name, size, count in (
            ("hour", "Hour", _HOUR, 24),
            ("minute", "Minute", _MINUTE, 60),
            ("second", "Second", MICROS, 60),
        )
    ),
    function("second_fraction", strict(_second_with_fraction), "SecondWithFraction", refuse=takes(_INSTANTS), reads=_zoned),
    function("truncate_date", strict(_trunc_date), "TruncDate", refuse=_refuse_trunc_date),
    function(
        "truncate_timestamp",
        strict(_trunc_timestamp),
        "TruncTimestamp",
        refuse=takes(STRING, _STAMP, literal=(0,)),
        reads=("zone",),
    ),
    function("date_add", strict(_add_days), "DateAdd", refuse=takes(_DATE, _INT)),
    function("date_sub", strict(_add_days), "DateSub", refuse=takes(_DATE, _INT)),
    function("date_diff", plain(lambda a, b: wrap(a - b, _INTEGER, "legacy")), "DateDiff", refuse=takes(_DATE)),
    function("add_months", plain(_add_months), "AddMonths", refuse=takes(_DATE, _INT)),
    function("date_add_months", plain(_add_months), "DateAddYMInterval", refuse=takes(_DATE, _MONTHS)),
    function(
        "timestamp_add_months",
        strict(_timestamp_add_months),
        "TimestampAddYMInterval",
        refuse=takes(_INSTANTS, _MONTHS),
        reads=_zoned,
    ),
    function(
        "timestamp_add_interval",
        strict(_timestamp_add_interval),
        "TimestampAddInterval",
        refuse=_refuse_timestamp_interval,
        reads=_zoned,
    ),
    function("timestamp_add", strict(_timestamp_add), "TimestampAdd", refuse=_refuse_unit, reads=lambda e: ("unit", *_zoned(e))),
    function("timestamp_diff", strict(_timestamp_diff), "TimestampDiff", refuse=_refuse_unit, reads=lambda e: ("unit", *_zoned(e))),
    function("subtract_dates", strict(_subtract_dates), "SubtractDates", refuse=_refuse_subtract),
    function("subtract_timestamps", strict(_subtract_timestamps), "SubtractTimestamps", refuse=_refuse_subtract, reads=_zoned),
    function(
        "months_between", strict(_months_between), "MonthsBetween", refuse=takes(_STAMP, _STAMP, {"boolean"}), reads=("zone",)
    ),
    function("next_day", strict(_next_day), "NextDay", refuse=takes(_DATE, STRING), reads=("strict",)),
    function(
        "unix_timestamp",
        strict(_unix_timestamp),
        "UnixTimestamp",
        "ToUnixTimestamp",
        refuse=_refuse_unix_timestamp,
        reads=_reads_unix_timestamp,
    ),
    function("timestamp_seconds", strict(_from_number), "SecondsToTimestamp", refuse=_refuse_from_number),
    function("timestamp_millis", strict(_from_number), "MillisToTimestamp", refuse=_refuse_from_number),
    function("timestamp_micros", strict(_from_number), "MicrosToTimestamp", refuse=_refuse_from_number),
    function("unix_seconds", plain(_to_number(MICROS)), "UnixSeconds", refuse=takes(_INSTANTS)),
    function("unix_millis", plain(_to_number(1000)), "UnixMillis", refuse=takes(_INSTANTS)),
    function("unix_micros", plain(_to_number(1)), "UnixMicros", refuse=takes(_INSTANTS)),
    function("date_from_days", plain(lambda v: v), "DateFromUnixDate", refuse=takes({"integer"})),
    function("make_date", strict(_make_date), "MakeDate", refuse=takes({"integer"}), reads=("strict",)),
    function(
        "make_timestamp",
        strict(_make_timestamp),
        "MakeTimestamp",
        refuse=_refuse_make_timestamp,
        reads=_reads_make_timestamp,
    ),
    function(
        "convert_timezone", strict(_convert_zone), "ConvertTimezone", refuse=takes(STRING, STRING, _LOCAL), reads=("two_zones",)
    ),
    *(function(op, plain(compute), name, refuse=takes(_MONTHS | _DAYS)) for op, (name, compute) in _INTERVAL_PARTS.items()),
    function("interval_seconds", plain(_interval_seconds), "ExtractANSIIntervalSeconds", refuse=takes(_DAYS)),
    function("make_months", strict(_make_months), "MakeYMInterval", refuse=takes({"integer"})),
    function(
        "make_interval", strict(_make_interval), "MakeDTInterval", refuse=takes({"integer"}, {"integer"}, {"integer"}, {"decimal"})
    ),
)

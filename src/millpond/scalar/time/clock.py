"""Functions of a time of day: nanoseconds since midnight.

Source:  timeExpressions.scala, DateTimeUtils, Spark 4.3.
"""

from __future__ import annotations

from decimal import Decimal

from millpond.scalar.function import STRING, Values, function, literal_of, plain, strict, takes
from millpond.scalar.number.ranges import EXACT, divide_down, truncated
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.time.calendar import DAY_MICROS
from millpond.scalar.time.zones import zone_of
from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS

_TIME, _DATE = frozenset({"time"}), frozenset({"date"})
_DAYS = frozenset({"day_time_interval"})
_MICRO = 1000
_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND
_UNITS = {"MICROSECOND": _MICRO, "MILLISECOND": 1_000_000, "SECOND": _SECOND, "MINUTE": 60 * _SECOND, "HOUR": 3600 * _SECOND}


def _of_day(nanos: int) -> int:
    if not 0 <= nanos < _DAY:
        raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression makes a time that no day has.", hint="Keep it within a day.")
    return nanos


def _make(hour: int, minute: int, second: Decimal) -> int:
    nanos = truncated(EXACT.scaleb(second, 9))
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= nanos < 60 * _SECOND):
        nanos = -1
    return _of_day(nanos if nanos < 0 else (hour * 3600 + minute * 60) * _SECOND + nanos)


def _size(e: Expression) -> int:
    return _UNITS[str(literal_of(e.args[0])).upper()]


def _refuse_unit(e: Expression) -> str | None:
    if reason := takes(STRING, _TIME, literal=(0,))(e):
        return reason
    return None if str(literal_of(e.args[0])).upper() in _UNITS else f"{e.op} by {literal_of(e.args[0])} isn't known here"


def _difference(e: Expression) -> Values:
    size = _size(e)
    return lambda _, start, end: divide_down(end - start, size)


def _truncate(e: Expression) -> Values:
    size = _size(e)
    return lambda _, time: time - time % size


def _seconds_with_fraction(time: int, precision: int) -> Decimal:
    step = 10 ** (9 - precision)
    part = time % (60 * _SECOND)
    return EXACT.scaleb(Decimal((part - part % step) // _MICRO), -6)


def _add(time: int, precision: int, interval: int, _: int, target: int) -> int:
    step: int = 10 ** (9 - max(precision, target))
    moved = _of_day(time + interval * _MICRO)
    return moved - moved % step


def _from_number(size: int) -> Values:
    return lambda value: _of_day(truncated(EXACT.multiply(Decimal(value), Decimal(size))))


def _timestamp(e: Expression) -> Values:
    zone = zone_of(e)
    return lambda day, time, _: zone.from_local(day * DAY_MICROS + time // _MICRO)


_OF_TIME = takes(_TIME)
_OBJECT = "DateTimeUtils$."
FUNCTIONS = (
    function("make_time", plain(_make), _OBJECT + "makeTime", refuse=takes({"integer"}, {"integer"}, {"decimal"})),
    function("time_hour", plain(lambda v: v // (3600 * _SECOND)), _OBJECT + "getHoursOfTime", refuse=_OF_TIME),
    function("time_minute", plain(lambda v: v // (60 * _SECOND) % 60), _OBJECT + "getMinutesOfTime", refuse=_OF_TIME),
    function("time_second", plain(lambda v: v // _SECOND % 60), _OBJECT + "getSecondsOfTime", refuse=_OF_TIME),
    function(
        "time_second_fraction",
        plain(_seconds_with_fraction),
        _OBJECT + "getSecondsOfTimeWithFraction",
        refuse=takes(_TIME, {"integer"}),
    ),
    function("time_diff", strict(_difference), _OBJECT + "timeDiff", refuse=_refuse_unit),
    function("time_trunc", strict(_truncate), _OBJECT + "timeTrunc", refuse=_refuse_unit),
    function("time_from_seconds", plain(_from_number(_SECOND)), _OBJECT + "timeFromSeconds", refuse=takes(INTEGERS | {"decimal"})),
    function("time_from_millis", plain(_from_number(1_000_000)), _OBJECT + "timeFromMillis", refuse=takes(INTEGERS)),
    function("time_from_micros", plain(_from_number(_MICRO)), _OBJECT + "timeFromMicros", refuse=takes(INTEGERS)),
    function(
        "time_to_seconds", plain(lambda v: EXACT.scaleb(Decimal(v // _MICRO), -6)), _OBJECT + "timeToSeconds", refuse=_OF_TIME
    ),
    function("time_to_millis", plain(lambda v: v // 1_000_000), _OBJECT + "timeToMillis", refuse=_OF_TIME),
    function("time_to_micros", plain(lambda v: v // _MICRO), _OBJECT + "timeToMicros", refuse=_OF_TIME),
    function("time_add", plain(_add), _OBJECT + "timeAddInterval", refuse=takes(_TIME, {"integer"}, _DAYS, {"byte"}, {"integer"})),
    function("subtract_times", plain(lambda a, b: divide_down(a - b, _MICRO)), _OBJECT + "subtractTimes", refuse=_OF_TIME),
    function(
        "timestamp_of_time",
        strict(_timestamp),
        _OBJECT + "makeTimestamp",
        refuse=takes(_DATE, _TIME, STRING),
        reads=("last_zone",),
    ),
    function(
        "local_timestamp_of_time",
        plain(lambda day, time: day * DAY_MICROS + time // _MICRO),
        _OBJECT + "makeTimestampNTZ",
        refuse=takes(_DATE, _TIME),
    ),
)

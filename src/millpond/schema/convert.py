"""Values between stored form (as in Spark's rows) and Python's form.

Stored form is the output of `checkpoint.rows.unsaferow`: microseconds, days, tuples.  Python's
form: a timestamp is an aware datetime in UTC, timestamp_ntz a naive one; for all dates and times
outside Python's years, a `FarTime`.  A day-time interval is a timedelta, a year-month interval its
months, a struct a dict, a map a dict (or a list of pairs if its keys can't be hashed).  Other
values are the same in both forms.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from typing import Any, NoReturn

from millpond.errors import RequestError
from millpond.schema.far_time import FarTime
from millpond.schema.types import SparkType

Stored = Any
Python = Any
Convert = Callable[[Any], Any]

_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64, "year_month_interval": 32}
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)
_EXACT = Context(prec=100)
_UNHASHABLE = frozenset({"struct", "array", "map"})


def same(value: Any) -> Any:
    """The value itself: the conversion of kinds with the same value in both forms."""
    return value


def to_python(type_: SparkType) -> Callable[[Stored], Python]:
    """A function from stored form to Python's; `same` if there is nothing to do."""
    convert = _TO_PYTHON.get(type_.kind)
    if convert is not None:
        return convert
    if type_.kind == "struct":
        return _struct_to_python(type_)
    if type_.kind == "array":
        assert type_.element is not None
        return _array_to_python(to_python(type_.element))
    if type_.kind == "map":
        return _map_to_python(type_)
    return same


def to_stored(type_: SparkType, *, column: str = "value") -> Callable[[Python], Stored]:
    """A function from Python's form to stored form, strict about types; None stays None.

    Floats are those of Spark's keys: one NaN, and no negative zero.

    column:  name for its errors
    Raises (the function):  WRONG_TYPE.
    """
    check = _checker(type_, column)

    def convert(value: Python) -> Stored:
        return None if value is None else check(value)

    return convert


# ---------------------------------------------------------------- to Python


def _timestamp(micros: int | None) -> dt.datetime | FarTime | None:
    if micros is None:
        return None
    try:
        return _EPOCH_UTC + dt.timedelta(microseconds=micros)
    except OverflowError:
        return FarTime("timestamp", micros)


def _timestamp_ntz(micros: int | None) -> dt.datetime | FarTime | None:
    if micros is None:
        return None
    try:
        return _EPOCH + dt.timedelta(microseconds=micros)
    except OverflowError:
        return FarTime("timestamp_ntz", micros)


def _date(days: int | None) -> dt.date | FarTime | None:
    if days is None:
        return None
    try:
        return dt.date.fromordinal(_EPOCH_DAY + days)
    except (ValueError, OverflowError):
        return FarTime("date", days)


def _time(nanos: int | None) -> dt.time | None:
    if nanos is None:
        return None
    seconds, rest = divmod(nanos // 1000, 1_000_000)
    return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)


def _day_time(micros: int | None) -> dt.timedelta | None:
    return None if micros is None else dt.timedelta(microseconds=micros)


_TO_PYTHON: dict[str, Convert] = {
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
    "date": _date,
    "time": _time,
    "day_time_interval": _day_time,
}


def _struct_to_python(type_: SparkType) -> Convert:
    members = [(f.name, to_python(f.type)) for f in type_.fields]

    def convert(value: tuple[Stored, ...] | None) -> dict[str, Python] | None:
        if value is None:
            return None
        return {name: member(v) for (name, member), v in zip(members, value, strict=True)}

    return convert


def _array_to_python(element: Convert) -> Convert:
    if element is same:
        return same

    def convert(value: list[Stored] | None) -> list[Python] | None:
        return None if value is None else [element(v) for v in value]

    return convert


def _map_to_python(type_: SparkType) -> Convert:
    assert type_.key is not None
    assert type_.value is not None
    key, value_of = to_python(type_.key), to_python(type_.value)
    hashable = type_.key.kind not in _UNHASHABLE

    def convert(value: list[tuple[Stored, Stored]] | None) -> Python:
        if value is None:
            return None
        pairs = [(key(k), value_of(v)) for k, v in value]
        return dict(pairs) if hashable else pairs

    return convert


# ---------------------------------------------------------------- to stored form


def _refuse(type_: SparkType, column: str, value: Python, hint: str) -> NoReturn:
    raise RequestError(
        "WRONG_TYPE",
        f"{column} is of type {type_}, but {value!r} ({type(value).__name__}) isn't a value of that type.",
        hint=hint,
        column=column,
        type=str(type_),
    )


def _checker(type_: SparkType, column: str) -> Convert:
    kind = type_.kind
    if kind in _INTEGER_BITS:
        return _integer_checker(type_, column)
    if kind in ("float", "double"):
        return _float_checker(type_, column)
    if kind in ("struct", "array", "map"):
        return {"struct": _struct_checker, "array": _array_checker, "map": _map_checker}[kind](type_, column)
    if kind == "decimal":
        return _decimal_checker(type_, column)
    expected = _EXPECTED.get(kind)

    def check(value: Python) -> Stored:
        if expected is None:
            _refuse(type_, column, value, "A request can't give values of this type; use another column.")
        if isinstance(value, FarTime) and value.type == kind:
            return value.since_1970
        wanted, hint, convert = expected
        # bool and datetime are subclasses of int and date, but not valid here.
        if not isinstance(value, wanted) or (kind == "date" and isinstance(value, dt.datetime)):
            _refuse(type_, column, value, hint)
        try:
            return convert(value)
        except ValueError:
            _refuse(type_, column, value, hint)

    return check


def _from_text(value: str) -> str:
    # UnicodeEncodeError is a ValueError; bytes that aren't UTF-8 come as the surrogates that
    # `surrogateescape` makes of them.
    value.encode("utf-8", "surrogateescape")
    return value


def _from_timestamp(value: dt.datetime) -> int:
    if value.tzinfo is None:
        raise ValueError
    return (value - _EPOCH_UTC) // _MICROSECOND


def _from_timestamp_ntz(value: dt.datetime) -> int:
    if value.tzinfo is not None:
        raise ValueError
    return (value - _EPOCH) // _MICROSECOND


def _from_time(value: dt.time) -> int:
    if value.tzinfo is not None:
        raise ValueError
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000


def _from_day_time(value: dt.timedelta) -> int:
    micros = value // _MICROSECOND
    if not -(2**63) <= micros < 2**63:
        raise ValueError
    return micros


# kind -> (Python class, hint, conversion; a ValueError means "no value of this type")
_EXPECTED: dict[str, tuple[type | tuple[type, ...], str, Convert]] = {
    "boolean": (bool, "Give True, False or None.", same),
    "string": (str, "Give a str without lone surrogates.", _from_text),
    "binary": ((bytes, bytearray, memoryview), "Give bytes.", bytes),
    "date": (dt.date, "Give a datetime.date.", lambda v: v.toordinal() - _EPOCH_DAY),
    "timestamp": (dt.datetime, "Give an aware datetime: add tzinfo, such as datetime.UTC.", _from_timestamp),
    "timestamp_ntz": (dt.datetime, "Give a datetime without tzinfo; this column has no time zone.", _from_timestamp_ntz),
    "time": (dt.time, "Give a datetime.time without tzinfo.", _from_time),
    "day_time_interval": (dt.timedelta, "Give a datetime.timedelta.", _from_day_time),
}


def _integer_checker(type_: SparkType, column: str) -> Convert:
    bound = 1 << (_INTEGER_BITS[type_.kind] - 1)
    what = "number of months" if type_.kind == "year_month_interval" else "whole number"
    hint = f"Give a {what} from {-bound} to {bound - 1}."

    def check(value: Python) -> Stored:
        if isinstance(value, bool):
            _refuse(type_, column, value, hint)
        try:
            number = operator.index(value)
        except TypeError:
            _refuse(type_, column, value, hint)
        if not -bound <= number < bound:
            _refuse(type_, column, value, hint)
        return number

    return check


def _float_checker(type_: SparkType, column: str) -> Convert:
    single = type_.kind == "float"

    def check(value: Python) -> Stored:
        if isinstance(value, bool) or not isinstance(value, float | int):
            _refuse(type_, column, value, "Give a float.")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if single:
            number = ctypes.c_float(number).value
        if (isinstance(value, int) and number != value) or (math.isinf(number) and not math.isinf(value)):
            _refuse(type_, column, value, "Give a float that this type can hold.")
        if math.isnan(number):
            return math.nan
        # Adding zero turns -0.0 into 0.0, as Spark does in keys.
        return number + 0.0

    return check


def _decimal_checker(type_: SparkType, column: str) -> Convert:
    hint = f"Give a Decimal with at most {type_.precision} digits, {type_.scale} of them after the point."
    exponent = Decimal(1).scaleb(-type_.scale)
    bound = Decimal(1).scaleb(type_.precision - type_.scale)

    def check(value: Python) -> Stored:
        if isinstance(value, bool) or not isinstance(value, Decimal | int):
            _refuse(type_, column, value, hint)
        try:
            exact = Decimal(value).quantize(exponent, context=_EXACT)
        except InvalidOperation:
            _refuse(type_, column, value, hint)
        if exact != value or abs(exact) >= bound:
            _refuse(type_, column, value, hint)
        return abs(exact) if exact.is_zero() else exact

    return check


def _struct_checker(type_: SparkType, column: str) -> Convert:
    members = [(f.name, to_stored(f.type, column=f"{column}.{f.name}")) for f in type_.fields]
    names = {name for name, _ in members}
    hint = "Give a dict of exactly: " + ", ".join(f.name for f in type_.fields) + "."

    def check(value: Python) -> Stored:
        if not isinstance(value, dict) or value.keys() != names:
            _refuse(type_, column, value, hint)
        return tuple(member(value[name]) for name, member in members)

    return check


def _array_checker(type_: SparkType, column: str) -> Convert:
    assert type_.element is not None
    element = to_stored(type_.element, column=f"{column}[]")

    def check(value: Python) -> Stored:
        if not isinstance(value, list | tuple):
            _refuse(type_, column, value, "Give a list.")
        return [element(v) for v in value]

    return check


def _map_checker(type_: SparkType, column: str) -> Convert:
    assert type_.key is not None
    assert type_.value is not None
    key = to_stored(type_.key, column=f"{column}.key")
    value_of = to_stored(type_.value, column=f"{column}.value")

    def check(value: Python) -> Stored:
        pairs = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(pairs, list) or not all(isinstance(p, tuple) and len(p) == 2 for p in pairs):
            _refuse(type_, column, value, "Give a dict, or a list of pairs.")
        return [(key(k), value_of(v)) for k, v in pairs]

    return check

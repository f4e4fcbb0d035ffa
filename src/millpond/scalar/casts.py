"""Casts between Spark's types, on stored form.

Source:  org.apache.spark.sql.catalyst.expressions.Cast, Spark 4.3, in its three evaluation modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from millpond.errors import RequestError
from millpond.scalar.function import FLOATS, NUMBERS, Values, function, refuse_collation, strict
from millpond.scalar.number.ranges import EXACT, SCALA, divide_down, fit, overflow, single, truncated, wrap
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.text.parsing import (
    parse_boolean,
    parse_date,
    parse_decimal,
    parse_double,
    parse_float,
    parse_time,
    parse_timestamp,
    parse_whole,
)
from millpond.scalar.text.showing import compile_show, float_text, interval_units
from millpond.scalar.time.calendar import DAY_MICROS, MICROS
from millpond.scalar.time.zones import Zone, parse_zone
from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS, SparkType

Stored = Any
Convert = Callable[[Stored], Stored]
_UNIT_SIZES = {
    "day": DAY_MICROS, "hour": 3600 * MICROS, "minute": 60 * MICROS, "second": MICROS, "year": 12, "month": 1,
}  # fmt: skip
_COMPOSED = frozenset({"array", "map", "struct"})
_LOCAL = frozenset({"date", "timestamp_ntz"})
_LONG = SparkType("long", "long")
# Spark may store decimals of so many digits as a long.
_LONG_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Casting:
    """The options of a cast.

    mode:  ansi, try or legacy; see ranges
    java:  the job's version of Java, None if unknown
    zone:  the session's, if a time needs it
    """

    mode: str
    java: int | None = None
    zone: Zone | None = None


def malformed(target: SparkType) -> SparkFails:
    """The error of a text that isn't a value of the type, in ANSI mode."""
    return SparkFails(
        "VALUE_OUT_OF_RANGE",
        f"Its expression casts a text to {target} that is none.",
        hint="Use try_cast in the job.",
        type=str(target),
    )


def compile_cast(source: SparkType, target: SparkType, casting: Casting) -> Convert:
    """A function from a value (not NULL) of one type to another's."""
    if source == target or source.kind == "void" or (source.kind == target.kind and source.kind in ("string", "binary")):
        return _same
    if target.kind == "string":
        return compile_show(source, casting.mode, casting.java, casting.zone)
    if source.kind in _COMPOSED:
        return _composed(source, target, casting)
    if source.kind == "string":
        return _from_string(target, casting)
    special = _SPECIAL.get((source.kind, target.kind))
    if special is not None:
        return special(source, target, casting)
    if target.kind in INTEGERS:
        return _to_integer(source, target, casting)
    if target.kind in FLOATS:
        return _to_float(target)
    if target.kind == "decimal":
        return _to_decimal(source, target, casting)
    if target.kind == "boolean":
        return lambda v: v != 0
    if target.kind == "timestamp":
        return _to_timestamp(source, casting)
    return _same


def _same(value: Stored) -> Stored:
    return value


# ---------------------------------------------------------------- numbers


def _to_integer(source: SparkType, target: SparkType, casting: Casting) -> Convert:
    mode = casting.mode
    if source.kind == "boolean":
        return int
    if source.kind in INTEGERS:
        return lambda v: wrap(v, target, mode)
    if source.kind == "decimal":
        return _decimal_to_integer(source, target, mode)
    if source.kind == "timestamp":
        return lambda v: wrap(v // MICROS, target, "ansi" if mode == "ansi" else "try")

    def from_float(value: float) -> int | None:
        if value == value and abs(value) != math.inf:
            whole = math.trunc(value)
            if mode != "legacy":
                # Java compares with the largest long as a double, which is larger by one.
                return 2**63 - 1 if whole == 2**63 and target.kind == "long" else wrap(whole, target, mode)
        elif mode != "legacy":
            if mode == "ansi":
                raise overflow(target)
            return None
        return java_narrow(value, target)

    return from_float


def _decimal_to_integer(source: SparkType, target: SparkType, mode: str) -> Convert:
    """In ANSI mode Spark converts to a double first, unless source or target is stored as a long."""
    if mode == "legacy" or target.kind == "long":
        return lambda v: wrap(truncated(v), target, mode)
    always_wide = source.precision > _LONG_DIGITS

    def convert(value: Decimal) -> int | None:
        by_double, exact = math.trunc(float(value)), truncated(value)
        fits = [n for n in (by_double, exact) if wrap(n, target, "try") is not None]
        if by_double != exact and fits and not always_wide:
            raise RequestError(
                "VALUE_OUT_OF_RANGE",
                "Its expression casts a decimal to a whole number that depends on how Spark holds it.",
                hint="Cast it to bigint in the job.",
                type=str(target),
            )
        return wrap(by_double, target, mode)

    return convert


def java_narrow(value: float, target: SparkType) -> int | None:
    """Java's cast of a double: NaN is 0; others saturate; bytes and shorts are the int's low bits."""
    bound = 1 << (63 if target.kind == "long" else 31)
    if value != value:
        return 0
    whole = max(-bound, min(bound - 1, math.trunc(value) if abs(value) != math.inf else (bound if value > 0 else -bound)))
    return wrap(whole, target, "legacy")


def _to_float(target: SparkType) -> Convert:
    if target.kind == "double":
        return float
    return lambda v: single(float(v))


def _to_decimal(source: SparkType, target: SparkType, casting: Casting) -> Convert:
    if source.kind in FLOATS:
        return float_to_decimal(target, casting)
    return lambda v: fit(Decimal(v), target, casting.mode)


def float_to_decimal(target: SparkType, casting: Casting) -> Convert:
    """A double, or a float widened to a double, by Java's text of it."""
    mode = casting.mode

    def convert(value: float) -> Decimal | None:
        if value != value or abs(value) == math.inf:
            return None
        if casting.java is not None:
            return fit(Decimal(text(value)), target, mode)
        # Different texts may give the same decimal.
        old, new = (fit(Decimal(by(value)), target, mode) for by in both)
        return new if old == new else fit(Decimal(text(value)), target, mode)

    text = float_text(casting.java, single=False)
    both = (float_text(17, single=False), float_text(25, single=False))
    return convert


# ---------------------------------------------------------------- text


def _from_string(target: SparkType, casting: Casting) -> Convert:
    parse, ansi = _parser(target, casting), casting.mode == "ansi"

    def convert(text: str) -> Stored:
        value = parse(text)
        if value is None and ansi:
            raise malformed(target)
        return value

    return convert


def _parser(target: SparkType, casting: Casting) -> Convert:
    kind, mode = target.kind, casting.mode
    if kind in ("timestamp", "timestamp_ntz"):
        return _timestamp_parser(None if kind == "timestamp_ntz" else _zone(casting))
    if kind in INTEGERS:
        exact = mode != "legacy"

        def whole(text: str) -> int | None:
            value = parse_whole(text, exact=exact)
            return None if value is None else wrap(value, target, "try")

        return whole
    if kind == "decimal":

        def decimal(text: str) -> Decimal | None:
            value = parse_decimal(text)
            return None if value is None else fit_text(value, target, mode)

        return decimal
    return {
        "time": lambda text: parse_time(text, target.precision),
        "boolean": parse_boolean,
        "double": parse_double,
        "float": parse_float,
        "date": parse_date,
        "binary": lambda text: text.encode("utf-8", "surrogateescape"),
    }[kind]


def _timestamp_parser(zone: Zone | None) -> Convert:
    """zone:  of the session; None for a timestamp_ntz, which ignores the text's zone."""

    def parse(text: str) -> int | None:
        found = parse_timestamp(text)
        if found is None:
            return None
        local, offset = found
        micros = local if zone is None else (zone.from_local(local) if offset is None else local - offset * MICROS)
        return micros if -(2**63) <= micros < 2**63 else None

    return parse


def fit_text(value: Decimal, target: SparkType, mode: str) -> Decimal | None:
    """A decimal from a text, fitted to a type; NULL for far too many digits."""
    if value and value.adjusted() > 300:
        return fit(Decimal(10) ** 100, target, mode)
    if value and value.adjusted() < -400:
        value = Decimal(0)
    return fit(value, target, mode)


# ---------------------------------------------------------------- times


def _timestamp_to_date(_: SparkType, __: SparkType, casting: Casting) -> Convert:
    local = _zone(casting).to_local
    return lambda v: local(v) // DAY_MICROS


def _date_to_timestamp(_: SparkType, __: SparkType, casting: Casting) -> Convert:
    return _zone(casting).start_of_day


def _timestamp_to_local(_: SparkType, __: SparkType, casting: Casting) -> Convert:
    return _zone(casting).to_local


def _local_to_timestamp(_: SparkType, __: SparkType, casting: Casting) -> Convert:
    return _zone(casting).from_local


def _local_to_date(_: SparkType, __: SparkType, ___: Casting) -> Convert:
    return lambda v: v // DAY_MICROS


def _date_to_local(_: SparkType, __: SparkType, ___: Casting) -> Convert:
    return lambda v: wrap(v * DAY_MICROS, _LONG, "ansi")


def _zone(casting: Casting) -> Zone:
    assert casting.zone is not None
    return casting.zone


def _timestamp_of_decimal(value: Decimal) -> int | None:
    """Spark wraps values out of range.

    With more than 34 digits it sometimes rounds first, so these are refused.
    """
    micros = EXACT.multiply(value, Decimal(MICROS))
    if SCALA.plus(micros) != micros:
        raise RequestError(
            "VALUE_OUT_OF_RANGE",
            "Its expression makes a timestamp of more digits than Spark always keeps.",
            hint="Round the decimal in the job.",
        )
    return wrap(truncated(micros), _LONG, "legacy")


def _to_timestamp(source: SparkType, casting: Casting) -> Convert:
    if source.kind in INTEGERS:
        # Java's TimeUnit stops at the ends of long.
        return lambda v: max(-(2**63), min(2**63 - 1, v * MICROS))
    if source.kind == "decimal":
        return _timestamp_of_decimal
    if source.kind == "boolean":
        return int

    def from_float(value: float) -> int | None:
        if value != value or abs(value) == math.inf:
            if casting.mode == "ansi":
                raise overflow(SparkType("timestamp", "timestamp"))
            return None
        micros = value * 1000000.0
        if casting.mode == "ansi" and not -(2.0**63) <= micros <= 2.0**63:
            raise overflow(SparkType("timestamp", "timestamp"))
        return java_narrow(micros, _LONG)

    return from_float


def _timestamp_to_float(_: SparkType, target: SparkType, __: Casting) -> Convert:
    return (lambda v: v / 1000000.0) if target.kind == "double" else (lambda v: single(v / 1000000.0))


def _timestamp_to_decimal(_: SparkType, target: SparkType, casting: Casting) -> Convert:
    return lambda v: fit(EXACT.scaleb(Decimal(v), -6), target, casting.mode)


# ---------------------------------------------------------------- intervals


def _interval_to_integer(source: SparkType, target: SparkType, __: Casting) -> Convert:
    size = _UNIT_SIZES[interval_units(source)[1]]
    return lambda v: wrap(abs(v) // size * (1 if v >= 0 else -1), target, "ansi")


def _interval_to_decimal(source: SparkType, target: SparkType, casting: Casting) -> Convert:
    """In its last unit, seconds with their fraction.  An overflow is an error in all modes but `try`."""
    last = interval_units(source)[1]
    size = _UNIT_SIZES[last]

    mode = "try" if casting.mode == "try" else "ansi"

    def convert(interval: int) -> Decimal | None:
        if last == "second":
            return fit(EXACT.scaleb(Decimal(interval), -6), target, mode)
        return fit(Decimal(divide_down(interval, size)), target, mode)

    return convert


def _integer_to_interval(_: SparkType, target: SparkType, __: Casting) -> Convert:
    size = _UNIT_SIZES[interval_units(target)[1]]
    return lambda v: wrap(v * size, target, "ansi")


def _interval_to_interval(_: SparkType, target: SparkType, __: Casting) -> Convert:
    """Cut off to the last unit."""
    last = interval_units(target)[1]
    if last in ("second", "month"):
        return _same
    size = _UNIT_SIZES[last]
    return lambda v: abs(v) // size * size * (1 if v >= 0 else -1)


_INTERVALS = ("day_time_interval", "year_month_interval")
_SPECIAL: dict[tuple[str, str], Callable[[SparkType, SparkType, Casting], Convert]] = {
    ("timestamp", "date"): _timestamp_to_date,
    ("date", "timestamp"): _date_to_timestamp,
    ("timestamp", "timestamp_ntz"): _timestamp_to_local,
    ("timestamp_ntz", "timestamp"): _local_to_timestamp,
    ("timestamp_ntz", "date"): _local_to_date,
    ("date", "timestamp_ntz"): _date_to_local,
    ("timestamp", "double"): _timestamp_to_float,
    ("timestamp", "float"): _timestamp_to_float,
    ("timestamp", "decimal"): _timestamp_to_decimal,
    **{(i, n): _interval_to_integer for i in _INTERVALS for n in INTEGERS},
    **{(i, "decimal"): _interval_to_decimal for i in _INTERVALS},
    **{(n, i): _integer_to_interval for i in _INTERVALS for n in INTEGERS},
    **{(i, i): _interval_to_interval for i in _INTERVALS},
}


# ---------------------------------------------------------------- composed values


def _composed(source: SparkType, target: SparkType, casting: Casting) -> Convert:
    def inner(one: SparkType | None, other: SparkType | None) -> Convert:
        assert one is not None
        assert other is not None
        convert = compile_cast(one, other, casting)
        return lambda v: None if v is None else convert(v)

    if source.kind == "struct":
        members = [inner(a.type, b.type) for a, b in zip(source.fields, target.fields, strict=True)]
        return lambda row: tuple([convert(v) for convert, v in zip(members, row, strict=True)])
    if source.kind == "array":
        element = inner(source.element, target.element)
        return lambda values: [element(v) for v in values]
    key, value = inner(source.key, target.key), inner(source.value, target.value)
    return lambda pairs: [(key(k), value(v)) for k, v in pairs]


# ---------------------------------------------------------------- which are known


# With more digits, Spark itself can't read back what it writes.
_TIME_PLACES = 6
_PARSED = INTEGERS | {"boolean", "double", "float", "decimal", "date", "binary", "timestamp", "timestamp_ntz", "time"}
_SHOWN = NUMBERS | {"boolean", "binary", "date", "timestamp", "timestamp_ntz", "time", *_INTERVALS}


def _knows(source: SparkType, target: SparkType) -> bool:
    one, other = source.kind, target.kind
    if one == "void" or source == target:
        return True
    if one in _COMPOSED and other in _COMPOSED:
        return one == other and all(_knows(a, b) for a, b in zip(_inner(source), _inner(target), strict=True))
    if one in _COMPOSED:
        return other == "string" and all(_knows(part, target) for part in _inner(source))
    if other == "string":
        return one == "string" or one in _SHOWN
    if one == "string":
        return other in _PARSED and (other != "time" or target.precision <= _TIME_PLACES)
    return (
        (one in NUMBERS and other in NUMBERS | {"boolean", "timestamp"})
        or (one == "boolean" and other in NUMBERS)
        or (one == "timestamp" and other in INTEGERS)
        or (one, other) in _SPECIAL
    )


def _inner(type_: SparkType) -> list[SparkType]:
    return [f.type for f in type_.fields] + [t for t in (type_.element, type_.key, type_.value) if t is not None]


def _parts(type_: SparkType) -> set[str]:
    """The kinds of a type and of all within it."""
    return {type_.kind}.union(*(_parts(inner) for inner in _inner(type_)))


def _refuse(e: Expression) -> str | None:
    source, target = e.args[0].type, e.type
    if not _knows(source, target):
        return f"a cast from {source} to {target} isn't known here"
    return refuse_collation("cast", source) or refuse_collation("cast", target)


def _reads(e: Expression) -> tuple[str, ...]:
    source, target = _parts(e.args[0].type), _parts(e.type)
    names = ["mode"]
    if e.args[0].type != e.type:
        zoned = ("timestamp" in source and target & (_LOCAL | {"string"})) or (
            "timestamp" in target and source & (_LOCAL | {"string"})
        )
        if zoned:
            names.append("zone")
        if source & _COMPOSED and e.type.kind == "string":
            names.append("composed_text")
        if source & FLOATS and target & {"string", "decimal"}:
            names.append("java")
    return tuple(names)


def casting_of(e: Expression) -> Casting:
    """The options of an expression for a cast."""
    zone = e.options.get("zone")
    return Casting(e.options["mode"], e.options.get("java"), None if zone is None else parse_zone(zone))


def _cast(e: Expression) -> Values:
    return compile_cast(e.args[0].type, e.type, casting_of(e))


FUNCTIONS = (function("cast", strict(_cast), "Cast", refuse=_refuse, reads=_reads),)

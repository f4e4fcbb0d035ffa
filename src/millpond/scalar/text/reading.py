"""Text read as a time by a format: to_date, to_timestamp and unix_timestamp.

Source:  DateTimeFormatterHelper, GetTimestamp, Spark 4.3; java.time.format.DateTimeFormatterBuilder
         of JDK 17, in its strict style.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from millpond.errors import RequestError
from millpond.scalar.function import STRING, Values, function, literal_of, refuse_type, strict, takes
from millpond.scalar.number.ranges import divide_down
from millpond.scalar.spark_fails import SparkFails
from millpond.scalar.text.functions import valid
from millpond.scalar.text.parsing import parse_time
from millpond.scalar.text.patterns import MONTHS, split_format
from millpond.scalar.time.calendar import DAY_MICROS, MICROS, days_of, month_length
from millpond.scalar.time.zones import zone_of
from millpond.schema.definition.expression import Expression

_TWO = "[0-9]{2}"
# Java accepts any number of digits; a number that doesn't fit isn't a value of the field.
_MANY = "-?[0-9]{1,19}"
_DIGITS = frozenset("yMdHhmsS")
_PARTS: dict[str, str] = {
    "yyyy": r"(?P<y>[0-9]{4}|\+[0-9]{5,19}|-[0-9]{4,19})",
    "y": f"(?P<y>{_MANY})",
    "yy": f"(?P<yy>{_TWO})",
    "MMM": "(?P<MMM>" + "|".join(m[:3] for m in MONTHS) + ")",
    "MMMM": "(?P<MMM>" + "|".join(MONTHS) + ")",
    "a": "(?P<a>AM|PM)",
    **{letter * 2: f"(?P<{letter}>{_TWO})" for letter in "MdHhms"},
    **{letter: f"(?P<{letter}>{_MANY})" for letter in "MdHhms"},
    **{"S" * count: f"(?P<S>[0-9]{{1,{count}}})" for count in range(1, 10)},
}
_VARIABLE = re.compile("y|M|d|H|h|m|s|S+|yyyy")
# A time of day has an hour, or an hour of half a day, and at most microseconds.
_OF_CLOCK = re.compile(r"(?=.*[Hh])(?!.*S{7})[HhmsSa:. -]*")
_FARTHEST = 290_000
Read = Callable[[str], int | None]
"""a text -> local time in microseconds, None if it is none"""


def compile_reading(pattern: str) -> Read | None:
    """A function from a text to local time; None if the format isn't known here."""
    parts = split_format(pattern)
    if parts is None:
        return None
    out, seen, before = "", set(), ""
    for text, is_field in parts:
        if not is_field:
            out, before = out + re.escape(text), ""
            continue
        # Java divides adjacent digits among fields in its own way, unless the later fields have a
        # fixed width.
        if text not in _PARTS or text[0] in seen or (before[:1] in _DIGITS and _is_after(before, text)):
            return None
        seen.add(text[0])
        out, before = out + _PARTS[text], text if (text[0] in _DIGITS and text[:3] != "MMM") else ""
    if ("h" in seen) != ("a" in seen) or {"h", "H"} <= seen:
        return None
    found = re.compile(out, re.ASCII | re.IGNORECASE)

    def read(text: str) -> int | None:
        match = found.fullmatch(text)
        return None if match is None else _local(match.groupdict())

    return read


def _is_after(before: str, text: str) -> bool:
    return before[0] == "S" or (_VARIABLE.fullmatch(text) is not None and text != "yyyy") or text[0] == "y"


def _local(fields: dict[str, str | None]) -> int | None:
    year = int(fields.get("y") or 1970)
    if fields.get("yy"):
        year = 2000 + int(fields["yy"] or 0)
    name = fields.get("MMM")
    month = next(n for n, m in enumerate(MONTHS, 1) if m[:3].lower() == name[:3].lower()) if name else int(fields.get("M") or 1)
    day, hour, minute, second = (int(fields.get(k) or d) for k, d in (("d", 1), ("H", 0), ("m", 0), ("s", 0)))
    if fields.get("h"):
        of_half = int(fields["h"] or 0)
        if not 1 <= of_half <= 12:
            return None
        hour = of_half % 12 + 12 * ((fields["a"] or "").upper() == "PM")
    if abs(year) > _FARTHEST:
        raise RequestError(
            "VALUE_OUT_OF_RANGE", "Its expression reads a year that no timestamp has.", hint="Cast the text to a date in the job."
        )
    in_day = 0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60
    if not 1 <= month <= 12 or not 1 <= day <= month_length(year, month) or not in_day:
        return None
    clock = (hour * 3600 + minute * 60 + second) * MICROS + int(f"{fields.get('S') or '':0<6}"[:6])
    return days_of(year, month, day) * DAY_MICROS + clock


def read_by_format(e: Expression) -> Values:
    """A time in microseconds, or the seconds since 1970."""
    read = compile_reading(literal_of(e.args[1]))
    assert read is not None
    ansi = e.options["mode"] == "ansi"
    local = None if e.type.kind == "timestamp_ntz" else zone_of(e)

    def compute(text: str, _: str) -> int | None:
        found = read(valid(text))
        if found is None:
            if ansi:
                raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression reads a time that is none.", hint="Use try_to_timestamp.")
            return None
        micros = found if local is None else local.from_local(found)
        return divide_down(micros, MICROS) if e.op == "unix_timestamp" else micros

    return compute


def _time_of_day(e: Expression) -> Values:
    """Nanoseconds since midnight; a text that isn't a time of day is an error in all modes."""
    pattern = e.options["format"]
    read = compile_reading(pattern) if pattern is not None else None

    def compute(text: str) -> int:
        if pattern is None:
            found = parse_time(text, 9)
        else:
            assert read is not None
            micros = read(valid(text))
            found = None if micros is None else micros * 1000
        if found is None:
            raise SparkFails("VALUE_OUT_OF_RANGE", "Its expression reads a time of a day that is none.", hint="Use try_to_time.")
        if found % 1000:
            raise RequestError(
                "VALUE_OUT_OF_RANGE",
                "Its expression reads a time of a day with more digits than its type has.",
                hint="Cast the text to time in the job.",
            )
        return found

    return compute


def _refuse_time_of_day(e: Expression) -> str | None:
    pattern = e.options["format"]
    if len(e.args) > 1:
        return "to_time with a format that is computed isn't known here"
    if reason := takes(STRING)(e):
        return reason
    if pattern is not None and (not _OF_CLOCK.fullmatch(pattern) or compile_reading(pattern) is None):
        return f"the format {pattern!r} isn't known here to read by"
    return None


def refuse_reading(e: Expression) -> str | None:
    """Why a text can't be read by a format."""
    if e.args[0].type.kind != "string":
        return refuse_type(e.op, e.args[0].type, STRING)
    if reason := takes(STRING, STRING, literal=(1,))(e):
        return reason
    pattern = literal_of(e.args[1])
    if pattern is None or compile_reading(pattern) is None:
        return f"the format {pattern!r} isn't known here to read by"
    return None


FUNCTIONS = (
    function("to_time", strict(_time_of_day), "ToTimeParser.parse", refuse=_refuse_time_of_day, reads=("time_format",)),
    function(
        "to_timestamp",
        strict(read_by_format),
        "GetTimestamp",
        refuse=refuse_reading,
        reads=lambda e: ("strict", "reading") if e.type.kind == "timestamp_ntz" else ("strict", "reading", "zone"),
    ),
)

"""JSON in a text: a member by its path, an array's length, an object's names; and values as JSON.

Spark reads only the first value of a text.  It also accepts single quotes, which aren't known here.

Source:  jsonExpressions.scala, JsonExpressionUtils, JacksonGenerator, Spark 4.3, and the Jackson
         that comes with it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from millpond.errors import RequestError
from millpond.scalar.function import FLOATS, STRING, Values, function, literal_of, plain, refuse_collation, strict, takes
from millpond.scalar.text.functions import valid
from millpond.scalar.text.showing import compile_show, date_text, float_text, year_text
from millpond.scalar.time.calendar import DAY_MICROS, MICROS, civil
from millpond.scalar.time.zones import Zone, zone_of
from millpond.schema.definition.expression import Expression
from millpond.schema.types import INTEGERS, SparkType

Stored = Any
Write = Callable[[Stored], str]
_BLANK = " \t\n\r"
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')


def quoted(text: str) -> str:
    """A text in Jackson's quotes."""
    return '"' + _ESCAPED.sub(lambda c: _SHORT.get(c[0]) or f"\\u{ord(c[0]):04X}", text) + '"'


# ---------------------------------------------------------------- reading


class _Object(list[tuple[str, Any]]):
    """The members of an object in order, with duplicates."""


class _Real(str):
    """A number with a fraction or an exponent."""


def _refuse_word(word: str) -> None:
    raise ValueError(word)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_float=_Real,
    parse_constant=_refuse_word,
    strict=False,
)
_LONGEST_NUMBER = re.compile(r"[0-9]{300}")


def _read(text: str) -> Any:
    """The first value of a text, an object or an array; None if it has none.

    Raises:  VALUE_OUT_OF_RANGE if Jackson may read it, but this code can't.
    """
    start = valid(text).lstrip(_BLANK)
    if not start.startswith(("{", "[")):
        return None
    try:
        found, _ = _DECODER.raw_decode(start)
    except (ValueError, RecursionError) as failed:
        if "'" in text or isinstance(failed, RecursionError):
            raise _unknown() from failed
        return None
    if _LONGEST_NUMBER.search(text) or re.search(r"\\u[dD][89a-fA-F]", text):
        raise _unknown()
    return found


def _unknown() -> RequestError:
    return RequestError(
        "VALUE_OUT_OF_RANGE",
        "Its expression reads JSON in a form that isn't known here.",
        hint="Read it in the job, above the source.",
    )


_STEP = re.compile(r"\.([^.\[\]'*\s][^.\[\]'*]*)|\[([0-9]{1,9})\]|\['([^'?\]]+)'\]")


def parse_path(path: str) -> list[str | int] | None:
    """`$.a[0]['b']` as a, 0, b; None if it has another step, as a wildcard."""
    if not path.startswith("$"):
        return None
    out: list[str | int] = []
    place = 1
    while place < len(path):
        found = _STEP.match(path, place)
        if found is None:
            return None
        out.append(int(found[2]) if found[2] else found[1] or found[3])
        place = found.end()
    return out


def _member(e: Expression) -> Values:
    steps = parse_path(literal_of(e.args[1]))
    assert steps is not None
    show = float_text(e.options.get("java"), single=False)

    def compute(text: str, _: str) -> str | None:
        found = _follow(_read(text), steps)
        if found is None or found == _NULL:
            return None if found is None else "null"
        return found if type(found) is str else _written(found, show)

    return compute


_NULL = ("null",)
"""A null in an array; a null in an object counts as missing."""


def _follow(value: Any, steps: list[str | int]) -> Any:
    for place, step in enumerate(steps):
        if isinstance(step, int):
            if not isinstance(value, list) or isinstance(value, _Object) or step >= len(value):
                return None
            value = _NULL if value[step] is None else value[step]
            continue
        if not isinstance(value, _Object):
            return None
        # The first member of that name with a result.
        rest = steps[place + 1 :]
        found = (_follow(member, rest) for name, member in value if name == step and member is not None)
        return next((f for f in found if f is not None), None)
    return value


def _written(value: Any, show: Callable[[float], str]) -> str:
    if value is None or value == _NULL:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Object):
        return "{" + ",".join(f"{quoted(name)}:{_written(member, show)}" for name, member in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(element, show) for element in value) + "]"
    if isinstance(value, _Real):
        number = float(value)
        if math.isinf(number):
            raise _unknown()
        return show(number)
    return str(value) if isinstance(value, int) else quoted(value)


def _array_length(text: str) -> int | None:
    found = _read(text)
    return len(found) if isinstance(found, list) and not isinstance(found, _Object) else None


def _object_keys(text: str) -> list[str] | None:
    found = _read(text)
    return [name for name, _ in found] if isinstance(found, _Object) else None


def _refuse_path(e: Expression) -> str | None:
    if reason := takes(STRING, literal=(1,))(e):
        return reason
    path = literal_of(e.args[1])
    if path is None or not parse_path(path):
        return f"the path {path!r} of get_json_object isn't known here"
    return None


# ---------------------------------------------------------------- writing

_INTERVALS = frozenset({"day_time_interval", "year_month_interval"})
_NAMES = INTEGERS | STRING | {"boolean"}


def _compile_write(type_: SparkType, java: int | None, zone: Zone | None) -> Write:
    """A function from a value (not NULL) to its JSON."""
    kind = type_.kind
    if kind == "struct":
        return _struct_writer(type_, java, zone)
    if kind == "array":
        assert type_.element is not None
        element = _nullable(_compile_write(type_.element, java, zone))
        return lambda values: "[" + ",".join(map(element, values)) + "]"
    if kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        name, value = compile_show(type_.key, "legacy", None, None), _nullable(_compile_write(type_.value, java, zone))
        return lambda pairs: "{" + ",".join(f"{quoted(valid(name(k)))}:{value(v)}" for k, v in pairs) + "}"
    if kind in FLOATS:
        show = float_text(java, single=kind == "float")
        return lambda v: show(v) if math.isfinite(v) else quoted(show(v))
    if kind == "timestamp":
        assert zone is not None
        return lambda v: quoted(_instant(v, zone))
    if kind in _INTERVALS:
        text = compile_show(type_, "legacy", None, None)
        return lambda v: quoted(text(v))
    return _WRITERS.get(kind, str)


def _nullable(write: Write) -> Write:
    return lambda v: "null" if v is None else write(v)


def _struct_writer(type_: SparkType, java: int | None, zone: Zone | None) -> Write:
    """Members that are NULL are left out."""
    members = [(quoted(f.name), _compile_write(f.type, java, zone)) for f in type_.fields]

    def write(row: tuple[Stored, ...]) -> str:
        return "{" + ",".join(f"{name}:{of(v)}" for (name, of), v in zip(members, row, strict=True) if v is not None) + "}"

    return write


def _decimal(value: Decimal) -> str:
    return str(value)


def _local(micros: int) -> str:
    days, rest = divmod(micros, DAY_MICROS)
    year, month, day = civil(days)
    seconds, fraction = divmod(rest, MICROS)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction // 1000:03d}"
    return f"{year_text(year)}-{month:02d}-{day:02d}T{clock}"


def _instant(micros: int, zone: Zone) -> str:
    offset = zone.offset(micros // MICROS)
    minutes, seconds = divmod(abs(offset), 60)
    shown = f"{'-' if offset < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}" + (f":{seconds:02d}" if seconds else "")
    return _local(zone.to_local(micros)) + (shown if offset else "Z")


_WRITERS: dict[str, Write] = {
    "boolean": lambda v: "true" if v else "false",
    "string": lambda v: quoted(valid(v)),
    "binary": lambda v: quoted(base64.b64encode(v).decode()),
    "date": lambda v: quoted(date_text(v)),
    "timestamp_ntz": lambda v: quoted(_local(v)),
    "decimal": _decimal,
}


def _to_json(e: Expression) -> Values:
    zone = zone_of(e) if "zone" in e.options else None
    return _compile_write(e.args[0].type, e.options.get("java"), zone)


def _refuse_to_json(e: Expression) -> str | None:
    return _why_not_written(e.args[0].type) or refuse_collation("to_json", e.args[0].type)


def _why_not_written(type_: SparkType) -> str | None:
    if type_.kind == "map":
        assert type_.key is not None
        if type_.key.kind not in _NAMES:
            return f"to_json on {type_} isn't known here"
    inner = [f.type for f in type_.fields] + [t for t in (type_.element, type_.value) if t is not None]
    if not inner and type_.kind not in {*_WRITERS, *INTEGERS, *FLOATS, "timestamp", *_INTERVALS}:
        return f"to_json on {type_} isn't known here"
    return next((reason for t in inner if (reason := _why_not_written(t))), None)


def _kinds(type_: SparkType) -> set[str]:
    inner = [f.type for f in type_.fields] + [t for t in (type_.element, type_.value) if t is not None]
    return {type_.kind}.union(*(_kinds(t) for t in inner))


def _reads_to_json(e: Expression) -> tuple[str, ...]:
    kinds = _kinds(e.args[0].type)
    out = ["json_writer"]
    if kinds & FLOATS:
        out.append("java")
    if kinds & {"date", "timestamp", "timestamp_ntz"}:
        out.append("formats")
    if "timestamp" in kinds:
        out.append("writer_zone")
    return tuple(out)


FUNCTIONS = (
    function("get_json_object", strict(_member), "GetJsonObject", refuse=_refuse_path, reads=("java",)),
    function("json_array_length", plain(_array_length), "JsonExpressionUtils.lengthOfJsonArray", refuse=takes(STRING)),
    function("json_object_keys", plain(_object_keys), "JsonExpressionUtils.jsonObjectKeys", refuse=takes(STRING)),
    function("to_json", strict(_to_json), "StructsToJsonEvaluator.evaluate", refuse=_refuse_to_json, reads=_reads_to_json),
)

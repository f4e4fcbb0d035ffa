"""Values of each Spark type as JSON and as text, both ways; docs/types.md shows them all in one table.

Exactness decides the form: a number that not every JSON reader keeps (a long beyond 2^53 - 1, a
decimal) is a string, and is read back as Spark's value.  Reading is strict: a text that could mean
two values is refused.

The Python side is the reader's form that `schema.convert` makes.  NULL is None on both sides and is
never a text: each door has a form of its own for it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from millpond.errors import RequestError
from millpond.schema import times
from millpond.schema.types import SparkType, atomic

Json = Any
Value = Any
# The largest whole number that every JSON reader keeps: IEEE double has 53 bits.
EXACT_IN_JSON = 2**53 - 1

_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WIDEST = Context(prec=38)
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class _Form:
    """The four directions of one type.  The readers also take the column's name, for their errors."""

    to_json: Callable[[Value], Json]
    to_text: Callable[[Value], str]
    from_json: Callable[[Json, str], Value]
    from_text: Callable[[str, str], Value]


def to_json(type_: SparkType) -> Callable[[Value], Json]:
    """A function from Python values of this type to JSON's: None, bool, int, float, str, list, dict."""
    write = _form(type_).to_json
    return lambda value: None if value is None else write(value)


def from_json(type_: SparkType, *, column: str) -> Callable[[Json], Value]:
    """A function from decoded JSON to Python values of this type.

    column:             the name that errors give
    Raises (function):  WRONG_TYPE if the JSON isn't a form of this type, or the value doesn't fit
    it exactly.
    """
    read = _form(type_).from_json
    return lambda data: None if data is None else read(data, column)


def to_text(type_: SparkType) -> Callable[[Value], str]:
    """A function from Python values of this type, without None, to the text in URLs and commands."""
    return _form(type_).to_text


def from_text(type_: SparkType, *, column: str) -> Callable[[str], Value]:
    """A function from text to Python values of this type; empty text is the empty string, not NULL.

    column:             the name that errors give
    Raises (function):  WRONG_TYPE if the text isn't a form of this type, or the value doesn't fit
    it exactly.
    """
    read = _form(type_).from_text
    return lambda text: read(text, column)


# ---------------------------------------------------------------- JSON documents

_decoder = msgspec.json.Decoder(float_hook=Decimal)
_TOO_MUCH = {True: "it is nested too deeply", False: "a number in it has too large an exponent"}


def encode_json(data: Json) -> bytes:
    """JSON bytes of the output of `to_json`.

    Shape:  UTF-8 without spaces; a byte of a Spark string that isn't UTF-8 is the escape of a lone
            surrogate, U+DC80 to U+DCFF.
    """
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(data), separators=(",", ":"), allow_nan=False).encode()


def decode_json(data: bytes | str) -> Json:
    """Decoded JSON for `from_json`: fractions become Decimal, so that no digit is lost.

    Raises:  ValueError if it isn't JSON, or is nested too deeply.
    """
    try:
        return _decoder.decode(data)
    except (RecursionError, ArithmeticError) as wrong:
        raise ValueError(_TOO_MUCH[isinstance(wrong, RecursionError)]) from None
    except ValueError:
        text = data if isinstance(data, str) else data.decode()
        if "\\ud" not in text.lower() and text.isascii():
            raise
    # msgspec refuses lone surrogates, the form of a string's bytes outside UTF-8.
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
    except (RecursionError, ArithmeticError) as wrong:
        raise ValueError(_TOO_MUCH[isinstance(wrong, RecursionError)]) from None


def with_floats(data: Json) -> Json:
    """Decoded JSON without values of rows: its fractions become floats, as in Spark's and our own files."""
    if isinstance(data, dict):
        return {name: with_floats(value) for name, value in data.items()}
    if isinstance(data, list):
        return [with_floats(value) for value in data]
    return float(data) if isinstance(data, Decimal) else data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't JSON; write it as a string")


# ---------------------------------------------------------------- forms


@lru_cache(maxsize=4096)
def _form(type_: SparkType) -> _Form:
    kind = type_.kind
    if kind in _INTEGER_BITS:
        return _integer(type_)
    if kind in ("float", "double"):
        return _floating(type_)
    if kind in _TEXTUAL:
        write, read = _TEXTUAL[kind]
        return _textual(type_, write, lambda text: read(text, type_))
    if kind in _COMPOSED:
        return _composed(type_, *_COMPOSED[kind](type_))
    return _ATOMS[kind](type_)


def _textual(type_: SparkType, write: Callable[[Value], str], read: Callable[[str], Value]) -> _Form:
    """Types whose JSON is their text, as a string.  `read` raises ValueError with what is wrong."""

    def read_text(text: str, column: str) -> Value:
        try:
            return read(text)
        except (ValueError, OverflowError) as wrong:
            raise _wrong(type_, column, text, str(wrong)) from None

    def read_json(data: Json, column: str) -> Value:
        if not isinstance(data, str):
            raise _wrong(type_, column, data, "it must be a string")
        return read_text(data, column)

    return _Form(write, write, read_json, read_text)


def _composed(type_: SparkType, write: Callable[[Value], Json], read: Callable[[Json, str], Value]) -> _Form:
    """Types whose text is their JSON."""

    def read_text(text: str, column: str) -> Value:
        try:
            data = decode_json(text)
        except ValueError as wrong:
            raise _wrong(type_, column, text, f"it isn't JSON: {wrong}") from None
        if data is None:
            raise _wrong(type_, column, text, "NULL has a form of its own here")
        return read(data, column)

    return _Form(write, lambda value: encode_json(write(value)).decode(), read, read_text)


def _boolean(type_: SparkType) -> _Form:
    words = {"true": True, "false": False}

    def read_text(text: str, column: str) -> bool:
        if text not in words:
            raise _wrong(type_, column, text, "it must be true or false")
        return words[text]

    def read_json(data: Json, column: str) -> bool:
        if not isinstance(data, bool):
            raise _wrong(type_, column, data, "it must be true or false")
        return data

    return _Form(bool, lambda value: "true" if value else "false", read_json, read_text)


def _integer(type_: SparkType) -> _Form:
    limit = 1 << (_INTEGER_BITS[type_.kind] - 1)

    def fit(number: int, given: object, column: str) -> int:
        if not -limit <= number < limit:
            raise _wrong(type_, column, given, f"it must lie between {-limit} and {limit - 1}")
        return number

    def read_text(text: str, column: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise _wrong(type_, column, text, "it must be a whole number")
        return fit(int(text), text, column)

    def read_json(data: Json, column: str) -> int:
        if isinstance(data, str):
            return read_text(data, column)
        if isinstance(data, bool) or not isinstance(data, int):
            raise _wrong(type_, column, data, "it must be a whole number")
        return fit(data, data, column)

    def write_json(value: int) -> Json:
        return value if -EXACT_IN_JSON <= value <= EXACT_IN_JSON else str(value)

    return _Form(write_json if type_.kind == "long" else int, str, read_json, read_text)


def _floating(type_: SparkType) -> _Form:
    single = struct.Struct("<f")

    def fit(number: float, given: object, column: str) -> float:
        # A finite literal that overflows is an error, not an infinity; floats are rounded as in
        # Spark's cast.
        try:
            fitted = float(single.unpack(single.pack(number))[0]) if type_.kind == "float" else number
        except OverflowError:
            fitted = math.inf
        if math.isinf(fitted):
            raise _wrong(type_, column, given, "it is too large for the type")
        return fitted

    def read_text(text: str, column: str) -> float:
        if text in _NOT_FINITE:
            return _NOT_FINITE[text]
        if not _NUMBER.fullmatch(text):
            raise _wrong(type_, column, text, "it must be a number, NaN, Infinity or -Infinity")
        return fit(float(text), text, column)

    def read_json(data: Json, column: str) -> float:
        if isinstance(data, str):
            return read_text(data, column)
        if isinstance(data, bool) or not isinstance(data, (int, float, Decimal)):
            raise _wrong(type_, column, data, "it must be a number")
        try:
            return fit(float(data), data, column)
        except OverflowError:
            raise _wrong(type_, column, data, "it is too large for the type") from None

    def write_text(value: float) -> str:
        if math.isfinite(value):
            return repr(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    return _Form(lambda value: value if math.isfinite(value) else write_text(value), write_text, read_json, read_text)


def _decimal(type_: SparkType) -> _Form:
    unit = Decimal((0, (1,), -type_.scale))

    def fit(number: Decimal, given: object, column: str) -> Decimal:
        if not number:
            return Decimal((0, (0,), -type_.scale))
        # The bound comes before arithmetic: 1e999999 must not be spelled out.
        if number.adjusted() < type_.precision - type_.scale:
            fitted = number.quantize(unit, context=_WIDEST)
            if fitted == number:
                return fitted
        raise _wrong(type_, column, given, f"it must fit {type_} exactly")

    def read_text(text: str, column: str) -> Decimal:
        if not _NUMBER.fullmatch(text):
            raise _wrong(type_, column, text, "it must be a decimal number")
        return fit(Decimal(text), text, column)

    def read_json(data: Json, column: str) -> Decimal:
        if isinstance(data, str):
            return read_text(data, column)
        if isinstance(data, bool) or not isinstance(data, (int, Decimal)):
            raise _wrong(type_, column, data, "it must be a string or a number")
        return fit(Decimal(data), data, column)

    def write_text(value: Decimal) -> str:
        return format(value, "f")

    return _Form(write_text, write_text, read_json, read_text)


def _string(type_: SparkType) -> _Form:
    def read_json(data: Json, column: str) -> str:
        if not isinstance(data, str):
            raise _wrong(type_, column, data, "it must be a string")
        if not data.isascii():
            try:
                data.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise _wrong(type_, column, data, "it has a surrogate without a byte") from None
        return data

    return _Form(str, str, read_json, lambda text, _column: text)


def _void(type_: SparkType) -> _Form:
    def refuse(given: object, column: str) -> NoReturn:
        raise _wrong(type_, column, given, "NULL is its only value")

    return _Form(lambda _value: None, lambda _value: "", refuse, refuse)


_ATOMS: dict[str, Callable[[SparkType], _Form]] = {
    "boolean": _boolean,
    "decimal": _decimal,
    "string": _string,
    "void": _void,
}


# ---------------------------------------------------------------- texts


def _write_binary(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _read_binary(text: str, _type: SparkType) -> bytes:
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it must be base64") from None


_TEXTUAL: dict[str, tuple[Callable[[Value], str], Callable[[str, SparkType], Value]]] = {
    "binary": (_write_binary, _read_binary),
    "date": (times.write_date, times.read_date),
    "timestamp": (times.write_timestamp, times.read_timestamp),
    "timestamp_ntz": (times.write_timestamp_ntz, times.read_timestamp_ntz),
    "timestamp_nanos": (times.write_nanos, times.read_nanos),
    "time": (times.write_time, times.read_time),
    "day_time_interval": (times.write_day_time, times.read_day_time),
    "year_month_interval": (times.write_year_month, times.read_year_month),
}


# ---------------------------------------------------------------- composed types

_Pair = tuple[Callable[[Value], Json], Callable[[Json, str], Value]]


def _members(data: Json, names: tuple[str, ...], type_: SparkType, column: str) -> dict[str, Json]:
    if not isinstance(data, dict) or data.keys() != set(names):
        raise _wrong(type_, column, data, "it must be an object of exactly " + ", ".join(names))
    return data


def _struct(type_: SparkType) -> _Pair:
    names = tuple(f.name for f in type_.fields)
    writers = [(f.name, to_json(f.type)) for f in type_.fields]

    def write(value: dict[str, Value]) -> Json:
        return {name: writer(value[name]) for name, writer in writers}

    def read(data: Json, column: str) -> Value:
        members = _members(data, names, type_, column)
        return {f.name: from_json(f.type, column=f"{column}.{f.name}")(members[f.name]) for f in type_.fields}

    return write, read


def _array(type_: SparkType) -> _Pair:
    assert type_.element is not None
    element = type_.element
    writer = to_json(element)

    def read(data: Json, column: str) -> Value:
        if not isinstance(data, list):
            raise _wrong(type_, column, data, "it must be a list")
        reader = from_json(element, column=f"{column}[]")
        return [reader(item) for item in data]

    return lambda value: [writer(item) for item in value], read


def _map(type_: SparkType) -> _Pair:
    """A list of {"key", "value"}, since JSON objects have no other keys than strings.  Python's form is a dict, or a list of
    pairs where the keys can't be hashed."""
    assert type_.key is not None
    assert type_.value is not None
    key_type, value_type = type_.key, type_.value
    write_key, write_value = to_json(key_type), to_json(value_type)
    hashable = key_type.kind not in ("struct", "array", "map")

    def write(value: Value) -> Json:
        pairs = value.items() if isinstance(value, dict) else value
        return [{"key": write_key(k), "value": write_value(v)} for k, v in pairs]

    def read(data: Json, column: str) -> Value:
        if not isinstance(data, list):
            raise _wrong(type_, column, data, 'it must be a list of {"key": …, "value": …}')
        read_key = from_json(key_type, column=f"{column}.key")
        read_value = from_json(value_type, column=f"{column}.value")
        entries = [_members(item, ("key", "value"), type_, column) for item in data]
        pairs = [(read_key(e["key"]), read_value(e["value"])) for e in entries]
        if hashable and len(dict(pairs)) < len(pairs):
            raise _wrong(type_, column, data, "each key may occur once")
        return dict(pairs) if hashable else pairs

    return write, read


def _calendar_interval(type_: SparkType) -> _Pair:
    """Python's form is (months, days, microseconds), which can't be merged: months differ in length."""
    names = ("months", "days", "microseconds")
    readers = (_integer(atomic("integer")), _integer(atomic("integer")), _integer(atomic("long")))

    def read(data: Json, column: str) -> Value:
        members = _members(data, names, type_, column)
        return tuple(reader.from_json(members[n], f"{column}.{n}") for n, reader in zip(names, readers, strict=True))

    return lambda value: {n: r.to_json(v) for n, r, v in zip(names, readers, value, strict=True)}, read


def _geo(type_: SparkType) -> _Pair:
    """Python's form is (srid, well-known binary)."""
    srid = _integer(atomic("integer"))

    def read(data: Json, column: str) -> Value:
        members = _members(data, ("srid", "wkb"), type_, column)
        return srid.from_json(members["srid"], f"{column}.srid"), _form(atomic("binary")).from_json(members["wkb"], f"{column}.wkb")

    return lambda value: {"srid": value[0], "wkb": _write_binary(value[1])}, read


def _variant(type_: SparkType) -> _Pair:
    """Python's form is (value, metadata), the two undecoded byte strings of Spark's variant encoding."""
    names = ("value", "metadata")
    binary = _form(atomic("binary"))

    def read(data: Json, column: str) -> Value:
        members = _members(data, names, type_, column)
        return tuple(binary.from_json(members[n], f"{column}.{n}") for n in names)

    return lambda value: {n: _write_binary(v) for n, v in zip(names, value, strict=True)}, read


_COMPOSED: dict[str, Callable[[SparkType], _Pair]] = {
    "struct": _struct,
    "array": _array,
    "map": _map,
    "calendar_interval": _calendar_interval,
    "geo": _geo,
    "variant": _variant,
}


# ---------------------------------------------------------------- errors

_EXAMPLES = {
    "boolean": "true",
    "float": "1.5",
    "double": "1.5",
    "decimal": '"12.50"',
    "string": '"text"',
    "binary": '"AAEC" (base64)',
    "date": '"2026-03-01"',
    "timestamp": '"2026-03-01T12:00:00Z" (in a URL, + is %2B)',
    "timestamp_ntz": '"2026-03-01T12:00:00"',
    "timestamp_nanos": '"2026-03-01T12:00:00.123456789"',
    "time": '"12:00:00"',
    "day_time_interval": '"P1DT2H"',
    "year_month_interval": '"P1Y2M"',
    "struct": '{"member": …}',
    "array": "[…]",
    "map": '[{"key": …, "value": …}]',
    "calendar_interval": '{"months": 1, "days": 2, "microseconds": 3}',
    "geo": '{"srid": 4326, "wkb": "…"}',
    "variant": '{"value": "…", "metadata": "…"}',
}


def _wrong(type_: SparkType, column: str, given: object, reason: str) -> RequestError:
    text = str(given) if isinstance(given, (Decimal, int)) and not isinstance(given, bool) else repr(given)
    if len(text) > _SHOWN:
        text = text[:_SHOWN] + "…"
    return RequestError(
        "WRONG_TYPE",
        f"{column} is {type_}, and {text} isn't: {reason}.",
        hint=f"Write it like {_EXAMPLES.get(type_.kind, '7')}.",
        column=column,
        type=str(type_),
    )

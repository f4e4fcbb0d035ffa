"""Columns of Arrow as PostgreSQL's values, in text and binary form, and rows of them as messages.

A message DataRow:  'D', int32 length, int16 columns, and of each int32 length (-1: NULL) and bytes.

Source:  PostgreSQL 15, the send and out functions of src/backend/utils/adt.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from millpond.errors import RequestError
from millpond.schema.types import SparkType
from millpond.schema.values import encode_json, to_json
from millpond.serve.sql.postgres.types import PgType

NULL = b"\xff\xff\xff\xff"
_DAY_US = 86_400_000_000
# From 1970 to PostgreSQL's own first day, 2000-01-01.
_EPOCH_DAYS = 10_957
_MOST_DATE, _MOST_TIME = (1 << 31) - 1, (1 << 63) - 1
_FIRST_DAY, _LAST_DAY = dt.date.min.toordinal(), dt.date.max.toordinal()
_ORDINAL_1970 = dt.date(1970, 1, 1).toordinal()
_length = struct.Struct(">i").pack
_row_head = struct.Struct(">cih").pack
_numeric_head = struct.Struct(">hhHh").pack
Write = Callable[[Any], bytes]


def rows(batch: Any, types: Sequence[PgType], sparks: Sequence[SparkType | None], formats: Sequence[int]) -> Iterator[bytes]:
    """The rows of a record batch as messages.

    sparks:   the types of columns that become JSON
    formats:  of each column: 0 for text, 1 for binary
    """
    columns = [
        column_values(column, type_, spark, bool(form))
        for column, type_, spark, form in zip(batch.columns, types, sparks, formats, strict=True)
    ]
    count = len(columns)
    if not count:
        yield from (_row_head(b"D", 6, 0) for _ in range(len(batch)))
        return
    for row in zip(*columns, strict=True):
        body = b"".join(row)
        yield _row_head(b"D", len(body) + 6, count) + body


def column_values(column: Any, type_: PgType, spark: SparkType | None, is_binary: bool) -> list[bytes]:
    """The values of a column, each with its length in front."""
    write = (writer_binary if is_binary else writer_text)(type_)
    found: list[Any]
    if type_.element is not None:
        found = _lists(column)
    elif spark is not None:
        plain = to_json(spark)
        found = [None if each is None else encode_json(plain(each)) for each in column.to_pylist()]
    else:
        found = plain_values(column)
    out = []
    for value in found:
        if value is None:
            out.append(NULL)
        else:
            data = write(value)
            out.append(_length(len(data)) + data)
    return out


def plain_values(column: Any) -> list[Any]:
    """Python values; dates as days, times as microseconds, since 1970 or midnight; float4 as numpy's."""
    import pyarrow as pa
    import pyarrow.types as kinds

    kind = column.type
    if kinds.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    if kinds.is_timestamp(kind) or kinds.is_time64(kind):
        values = column.cast(pa.int64()).to_pylist()
        return list(values) if kind.unit == "us" else [None if v is None else _in_micros(v, kind.unit) for v in values]
    if kinds.is_float32(kind):
        values = column.to_pylist()
        return [None if v is None else np.float32(v) for v in values]
    return list(column.to_pylist())


def _in_micros(value: int, unit: str) -> int:
    return value // 1000 if unit == "ns" else value * (1000 if unit == "ms" else 1_000_000)


def _lists(column: Any) -> list[list[Any] | None]:
    """The values of a column of lists."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    flat, out, at = plain_values(column.flatten()), list[list[Any] | None](), 0
    for size in column.value_lengths().to_pylist():
        if size is None:
            out.append(None)
        else:
            out.append(flat[at : at + size])
            at += size
    return out


# ---------------------------------------------------------------- text


def writer_text(type_: PgType) -> Write:
    """A function from a value to its text form."""
    if type_.element is not None:
        return _array_text(writer_text(type_.element))
    return _TEXT.get(type_.name, _text)


def _text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def float_text(value: Any) -> bytes:
    """A float of 8 bytes, or of 4 as numpy has it, in the fewest digits."""
    if not math.isfinite(value):
        return b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"
    if value == 0:
        return b"-0" if math.copysign(1, value) < 0 else b"0"
    text = np.format_float_scientific(value, unique=True, trim="-", exp_digits=2)
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    if -4 <= power < (6 if isinstance(value, np.float32) else 15):
        return np.format_float_positional(value, unique=True, trim="-").encode()
    return f"{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}".encode()


def date_text(days: int) -> bytes:
    """A date, from its days since 1970."""
    if days >= _MOST_DATE:
        return b"infinity"
    if days <= -_MOST_DATE:
        return b"-infinity"
    day, era = _day(days)
    return day + era


def _day(days: int) -> tuple[bytes, bytes]:
    """Year, month and day, and ` BC` before the year 1."""
    ordinal = days + _ORDINAL_1970
    if _FIRST_DAY <= ordinal <= _LAST_DAY:
        return dt.date.fromordinal(ordinal).isoformat().encode(), b""
    # As Howard Hinnant's civil_from_days: the calendar repeats after 400 years, which are 146,097 days.
    cycles, rest = divmod(ordinal - 1, 146_097)
    within = dt.date.fromordinal(rest + 1)
    year = within.year + 400 * cycles
    era = b" BC" if year < 1 else b""
    return f"{1 - year if year < 1 else year:04d}-{within.month:02d}-{within.day:02d}".encode(), era


def clock_text(micros: int) -> bytes:
    """A time of day, from its microseconds since midnight."""
    seconds, micros = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return (text + (f".{micros:06d}".rstrip("0") if micros else "")).encode()


def timestamp_text(micros: int, zone: bytes = b"") -> bytes:
    """A time, from its microseconds since 1970."""
    if micros >= _MOST_TIME:
        return b"infinity"
    if micros <= -_MOST_TIME:
        return b"-infinity"
    days, rest = divmod(micros, _DAY_US)
    day, era = _day(days)
    return day + b" " + clock_text(rest) + zone + era


def interval_text(value: Any) -> bytes:
    """An interval of months, days and nanoseconds, in the style postgres."""
    months, days, micros = value.months, value.days, _micros(value)
    parts = list[str]()
    sign = -1 if months < 0 else 1
    years, months = sign * (abs(months) // 12), sign * (abs(months) % 12)
    for number, word in ((years, "year"), (months, "mon"), (days, "day")):
        if number:
            is_after_less = bool(parts) and parts[-1].startswith("-")
            plus = "+" if is_after_less and number > 0 else ""
            parts.append(f"{plus}{number} {word}{'' if number == 1 else 's'}")
    if micros or not parts:
        lead = "-" if micros < 0 else "+" if parts and parts[-1].startswith("-") else ""
        parts.append(lead + clock_text(abs(micros)).decode())
    return " ".join(parts).encode()


def _micros(interval: Any) -> int:
    nanos: int = interval.nanoseconds
    return nanos // 1000 if nanos >= 0 else -(-nanos // 1000)


def _array_text(write: Write) -> Write:
    def array(values: list[Any]) -> bytes:
        return b"{" + b",".join(b"NULL" if v is None else _quoted(write(v)) for v in values) + b"}"

    return array


def _quoted(text: bytes) -> bytes:
    if text and text.lower() != b"null" and not any(c in text for c in b'{}",\\ \t\n\r\v\f'):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


_TEXT: dict[str, Write] = {
    "bool": lambda v: b"t" if v else b"f",
    "bytea": lambda v: b"\\x" + v.hex().encode(),
    "float4": float_text,
    "float8": float_text,
    "numeric": lambda v: format(v, "f").encode(),
    "date": date_text,
    "time": clock_text,
    "timestamp": timestamp_text,
    "timestamptz": lambda v: timestamp_text(v, b"+00"),
    "interval": interval_text,
}


# ---------------------------------------------------------------- binary


def writer_binary(type_: PgType) -> Write:
    """A function from a value to its binary form."""
    if type_.element is not None:
        return _array_binary(type_.element)
    return _BINARY.get(type_.name, _text)


def numeric_binary(value: Decimal | int) -> bytes:
    """Digits of base 10,000 with the weight of the first one, the sign, and the shown digits after the point."""
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    text = "".join(map(str, digits)) + "0" * max(0, exponent)
    whole, part = (text[:-scale], text[-scale:].rjust(scale, "0")) if scale else (text, "")
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    groups = [int((whole + part.ljust(-(-len(part) // 4) * 4, "0"))[n : n + 4]) for n in range(0, len(whole) + len(part), 4)]
    weight = len(whole) // 4 - 1
    while groups and not groups[0]:
        del groups[0]
        weight -= 1
    while groups and not groups[-1]:
        del groups[-1]
    if not groups:
        return _numeric_head(0, 0, 0, scale)
    return _numeric_head(len(groups), weight, 0x4000 if sign else 0, scale) + struct.pack(f">{len(groups)}h", *groups)


def _date_binary(days: int) -> bytes:
    if abs(days) >= _MOST_DATE:
        return _length(_MOST_DATE if days > 0 else -_MOST_DATE - 1)
    return _length(_within(days - _EPOCH_DAYS, _MOST_DATE))


def _timestamp_binary(micros: int) -> bytes:
    if abs(micros) >= _MOST_TIME:
        return _int8(_MOST_TIME if micros > 0 else -_MOST_TIME - 1)
    return _int8(_within(micros - _EPOCH_DAYS * _DAY_US, _MOST_TIME))


def _within(value: int, most: int) -> int:
    """The same number.  Raises VALUE_OUT_OF_RANGE if PostgreSQL's form has no room for it."""
    if abs(value) > most:
        raise RequestError(
            "VALUE_OUT_OF_RANGE",
            "A date or time before PostgreSQL's first one has no binary form.",
            hint="Ask for texts, or CAST it AS VARCHAR.",
        )
    return value


def _array_binary(element: PgType) -> Write:
    write = writer_binary(element)

    def array(values: list[Any]) -> bytes:
        if not values:
            return struct.pack(">iiI", 0, 0, element.oid)
        out = [struct.pack(">iiIii", 1, None in values, element.oid, len(values), 1)]
        for value in values:
            data = None if value is None else write(value)
            out += [NULL] if data is None else [_length(len(data)), data]
        return b"".join(out)

    return array


def _uuid_binary(value: Any) -> bytes:
    return bytes.fromhex(str(value).replace("-", ""))


_int2, _int4, _int8 = struct.Struct(">h").pack, struct.Struct(">i").pack, struct.Struct(">q").pack
_interval = struct.Struct(">qii").pack
_BINARY: dict[str, Write] = {
    "bool": lambda v: b"\x01" if v else b"\x00",
    "bytea": bytes,
    "int2": _int2,
    "int4": _int4,
    "int8": _int8,
    "oid": struct.Struct(">I").pack,
    "float4": struct.Struct(">f").pack,
    "float8": struct.Struct(">d").pack,
    "numeric": numeric_binary,
    "date": _date_binary,
    "time": _int8,
    "timestamp": _timestamp_binary,
    "timestamptz": _timestamp_binary,
    "interval": lambda v: _interval(_micros(v), v.days, v.months),
    "uuid": _uuid_binary,
    "jsonb": lambda v: b"\x01" + _text(v),
}

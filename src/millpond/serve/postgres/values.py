"""Values of parameters, from their binary form to the text form that the statement's process reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal

from millpond.serve.postgres.errors import PgError
from millpond.serve.sql.postgres import write
from millpond.serve.sql.postgres.types import BY_OID, TEXT, PgType

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957
# More than any column has; a number of ten bytes may claim to have 100,000.
_MOST_DIGITS = 1000
_NOT_FINITE = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


class _Interval:
    def __init__(self, micros: int, days: int, months: int) -> None:
        self.nanoseconds, self.days, self.months = micros * 1000, days, months


def read_values(values: Sequence[bytes | None], formats: Sequence[int], types: Sequence[int]) -> list[str | None]:
    """The texts of the values of a Bind.

    types:   of the parameters, as far as they are known
    Raises:  PgError.
    """
    out = list[str | None]()
    for place, (value, form) in enumerate(zip(values, formats, strict=True)):
        oid = types[place] if place < len(types) else 0
        type_ = BY_OID.get(oid, TEXT)
        if value is None:
            out.append(None)
            continue
        if form and not oid:
            raise PgError(
                "08P01",
                f"the value of ${place + 1} is binary, and its type isn't known here",
                hint="Declare the types of parameters, describe the statement first, or send texts.",
            )
        try:
            text = _binary(type_, value) if form else value
            out.append(text.decode("utf-8"))
        except UnicodeDecodeError:
            raise PgError("22021", f'invalid byte sequence for encoding "UTF8" in parameter ${place + 1}') from None
        except (struct.error, ValueError, IndexError, OverflowError):
            raise PgError("22P03", f"incorrect binary data format in bind parameter {place + 1}") from None
    return out


def _binary(type_: PgType, data: bytes) -> bytes:
    if type_.element is not None:
        return _array(type_.element, data)
    read = _READERS.get(type_.name)
    return data if read is None else read(data)


def _array(element: PgType, data: bytes) -> bytes:
    dimensions, _, _ = struct.unpack_from(">iii", data)
    if dimensions == 0:
        return b"{}"
    count = struct.unpack_from(">i", data, 12)[0]
    if dimensions != 1:
        raise ValueError("of several dimensions")
    items, at = list[bytes | None](), 20
    for _ in range(count):
        size = struct.unpack_from(">i", data, at)[0]
        at += 4
        if size == -1:
            items.append(None)
            continue
        if size < 0 or at + size > len(data):
            raise ValueError("too short")
        items.append(_binary(element, data[at : at + size]))
        at += size
    return write.writer_text(BY_OID[TEXT.array_oid])(items)


def _numeric(data: bytes) -> bytes:
    count, weight, sign, scale = struct.unpack_from(">HhHH", data)
    if sign in _NOT_FINITE:
        return _NOT_FINITE[sign].encode()
    if sign not in (0, 0x4000):
        raise ValueError("no sign")
    if max(4 * count, 4 * abs(weight), scale) > _MOST_DIGITS:
        raise ValueError("too many digits")
    groups = struct.unpack_from(f">{count}H", data, 8)
    if any(group > 9999 for group in groups):
        raise ValueError("no digits")
    digits = tuple(map(int, "".join(f"{group:04d}" for group in groups))) or (0,)
    return format(Decimal((1 if sign else 0, digits, 4 * (weight - count + 1))), f".{scale}f").encode()


def _whole(shape: str) -> Callable[[bytes], bytes]:
    unpack = struct.Struct(shape).unpack
    return lambda data: b"%d" % unpack(data)[0]


def _time(zone: bytes) -> Callable[[bytes], bytes]:
    def read(data: bytes) -> bytes:
        micros = struct.unpack(">q", data)[0]
        is_far = abs(micros) >= (1 << 63) - 1
        return write.timestamp_text(micros if is_far else micros + _EPOCH_DAYS * _DAY_US, zone)

    return read


def _date(data: bytes) -> bytes:
    days = struct.unpack(">i", data)[0]
    return write.date_text(days if abs(days) >= (1 << 31) - 1 else days + _EPOCH_DAYS)


_READERS: dict[str, Callable[[bytes], bytes]] = {
    "bool": lambda data: b"t" if data != b"\0" else b"f",
    "bytea": lambda data: b"\\x" + data.hex().encode(),
    "int2": _whole(">h"),
    "int4": _whole(">i"),
    "int8": _whole(">q"),
    "oid": _whole(">I"),
    "regclass": _whole(">I"),
    "float4": lambda data: write.float_text(struct.unpack(">f", data)[0]),
    "float8": lambda data: write.float_text(struct.unpack(">d", data)[0]),
    "numeric": _numeric,
    "date": _date,
    "time": lambda data: write.clock_text(struct.unpack(">q", data)[0]),
    "timestamp": _time(b""),
    "timestamptz": _time(b"+00"),
    "interval": lambda data: write.interval_text(_Interval(*struct.unpack(">qii", data))),
    "uuid": lambda data: bytes(data.hex(), "ascii"),
    "jsonb": lambda data: data[1:],
}

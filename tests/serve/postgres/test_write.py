"""Values in PostgreSQL's text and binary forms are those that PostgreSQL itself gives."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from millpond.serve.postgres.values import read_values
from millpond.serve.sql.postgres import write
from millpond.serve.sql.postgres.types import BY_NAME
from servers.postgres import postgres_server
from suite.sizes import examples

pa = pytest.importorskip("pyarrow")
psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def real() -> Iterator[Any]:
    with psycopg.connect(postgres_server()) as connection:
        yield connection.pgconn


def floats(draw: random.Random) -> float:
    if draw.random() < 0.5:
        found: float = struct.unpack(">d", draw.randbytes(8))[0]
        return found if found == found else 0.0
    return draw.choice([0.0, -0.0, 1.0, 1e5, 1e6, 1e14, 1e15, 1e16, 123456.0, 1e-4, 1e-5, float("inf")]) * draw.choice([1, 1.5])


def numbers(draw: random.Random) -> Decimal:
    size = 10 ** draw.randrange(1, 38)
    return Decimal(draw.randrange(-size, size) * draw.choice([0, 1, 1])).scaleb(-draw.randrange(0, 30))


def interval(draw: random.Random) -> Any:
    months, days = draw.choice([0, draw.randrange(-30, 30)]), draw.choice([0, 1, draw.randrange(-40, 40)])
    return pa.MonthDayNano((months, days, draw.choice([0, draw.randrange(-(10**14), 10**14) * 1000])))


def texts(draw: random.Random) -> list[str | None]:
    return [draw.choice([None, "a", "a b", "", 'x"y', "\\", "NULL", "{", "ü", ",", "a\n"]) for _ in range(draw.randrange(5))]


def micros(draw: random.Random) -> int:
    return draw.randrange(-2_400_000, 5_000_000) * 86_400_000_000 + draw.choice([0, draw.randrange(86_400_000_000)])


def is_same(real: Any, type_: str, value: Any, literal: str) -> None:
    for is_binary in (False, True):
        found = real.exec_params(f"SELECT $1::{type_}".encode(), [literal.encode()], result_format=int(is_binary))
        assert found.error_message == b""
        expected = found.get_value(0, 0)
        ours = (write.writer_binary if is_binary else write.writer_text)(BY_NAME[named(type_)])(value)
        assert ours == expected, (type_, literal, is_binary)
        back = read_values([expected], [int(is_binary)], [BY_NAME[named(type_)].oid])
        again = real.exec_params(f"SELECT $1::{type_}".encode(), [str(back[0]).encode()], result_format=int(is_binary))
        assert again.get_value(0, 0) == expected, (type_, literal, back)


def named(type_: str) -> str:
    return f"_{type_[:-2]}" if type_.endswith("[]") else type_


@pytest.mark.parametrize("type_", ["float8", "float4", "numeric", "date", "timestamp", "timestamptz", "interval", "text[]", "time"])
def test_random_values(real: Any, type_: str) -> None:
    draw = random.Random(type_)
    for _ in range(examples(400)):
        match type_:
            case "float8":
                value: Any = floats(draw)
                literal = repr(value)
            case "float4":
                value = np.float32(draw.choice([floats(draw) % 1e30, draw.random(), draw.randrange(10**7)]))
                value = np.float32(7) if value != value else value
                literal = str(value)
            case "numeric":
                value = numbers(draw)
                literal = format(value, "f")
            case "date":
                value = draw.randrange(-2_400_000, 5_000_000)
                literal = str(real.exec_params(b"SELECT '1970-01-01'::date + $1::int", [b"%d" % value]).get_value(0, 0).decode())
            case "timestamp" | "timestamptz":
                value = micros(draw)
                literal = write.timestamp_text(value, b"+00" if type_ == "timestamptz" else b"").decode()
            case "interval":
                value = interval(draw)
                literal = f"{value.months} months {value.days} days {value.nanoseconds // 1000} microseconds"
            case "time":
                value = draw.choice([0, draw.randrange(86_400_000_000)])
                literal = write.clock_text(value).decode()
            case _:
                value = texts(draw)
                literal = write.writer_text(BY_NAME["_text"])(value).decode()
        is_same(real, type_, value, literal)


@pytest.mark.parametrize(
    ("type_", "value", "literal"),
    [
        ("bool", True, "t"),
        ("bool", False, "f"),
        ("bytea", b"\x00a\\'", "\\x00615c27"),
        ("bytea", b"", ""),
        ("int2", -32768, "-32768"),
        ("int4", 2**31 - 1, "2147483647"),
        ("int8", -(2**63), "-9223372036854775808"),
        ("uuid", "00112233-4455-6677-8899-aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"),
        ("timestamp", 2**63 - 1, "infinity"),
        ("timestamptz", -(2**63 - 1), "-infinity"),
        ("date", 2**31 - 1, "infinity"),
        ("date", -(2**31 - 1), "-infinity"),
        ("int8[]", [1, None, -3], "{1,NULL,-3}"),
        ("int8[]", [], "{}"),
        ("json", b'{"a": 1}', '{"a": 1}'),
        ("jsonb", b'{"a": 1}', '{"a": 1}'),
        ("text", "üx", "üx"),
    ],
)
def test_chosen_values(real: Any, type_: str, value: Any, literal: str) -> None:
    is_same(real, type_, value, literal)

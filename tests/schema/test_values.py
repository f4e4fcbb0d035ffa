"""Values of every Spark type survive JSON and text."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.errors import RequestError
from millpond.schema import values
from millpond.schema.convert import to_python
from millpond.schema.types import Field, SparkType, atomic, struct_of


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _integers(bits: int) -> st.SearchStrategy[int]:
    limit = 1 << (bits - 1)
    return st.integers(-limit, limit - 1) | st.sampled_from([-limit, limit - 1, 0])


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


def _far(name: str) -> st.SearchStrategy[Any]:
    """Dates and times of any of Spark's years; most have no Python object."""
    return _integers(32 if name == "date" else 64).map(to_python(atomic(name)))


# With the first text, hypothesis builds its table of characters, which takes seconds.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = 2**63
# A Spark string may have any bytes: those outside UTF-8 become surrogate escapes.
STRINGS = st.text() | st.binary().map(lambda b: b.decode("utf-8", "surrogateescape"))

ATOMS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": _integers(8),
    "short": _integers(16),
    "integer": _integers(32),
    "long": _integers(64) | st.integers(2**53 - 3, 2**53 + 3),
    "float": st.floats(width=32),
    "double": st.floats(),
    "decimal(3,0)": _decimals(3, 0),
    "decimal(18,18)": _decimals(18, 18),
    "decimal(38,7)": _decimals(38, 7),
    "string": STRINGS,
    "binary": st.binary(),
    "date": st.dates() | _far("date"),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)) | _far("timestamp"),
    "timestamp_ntz": st.datetimes() | _far("timestamp_ntz"),
    "timestamp_ntz(9)": st.tuples(_integers(64), st.integers(0, 999)),
    "timestamp_ltz(7)": st.tuples(_integers(64), st.integers(0, 9).map(lambda n: n * 100)),
    "time(6)": st.times(),
    "interval day to second": st.integers(-LONG, LONG - 1).map(lambda n: dt.timedelta(microseconds=n)),
    "interval year to month": _integers(32),
    "interval": st.tuples(_integers(32), _integers(32), _integers(64)),
    "geometry(4326)": st.tuples(st.integers(0, 9999), st.binary()),
    "variant": st.tuples(st.binary(), st.binary()),
}


def _array(element: SparkType) -> SparkType:
    return SparkType("array", "array", element=element)


def _map(key: SparkType, value: SparkType) -> SparkType:
    return SparkType("map", "map", key=key, value=value)


def _or_null(some: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return some | st.none()


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[SparkType, Any]:
    """A type, and a value of it in the reader's form."""
    kind = draw(st.sampled_from(["atom", "struct", "array", "map"])) if depth else "atom"
    if kind == "struct":
        members = draw(st.lists(typed_values(depth=depth - 1), min_size=1, max_size=3))
        fields = tuple(Field(f"m{i}", type_) for i, (type_, _) in enumerate(members))
        return struct_of(fields), {f.name: value for f, (_, value) in zip(fields, members, strict=True)}
    if kind == "array":
        name = draw(st.sampled_from(sorted(ATOMS)))
        return _array(atomic(name)), draw(st.lists(_or_null(ATOMS[name]), max_size=4))
    if kind == "map":
        name = draw(st.sampled_from(["long", "string", "date", "boolean"]))
        value_type, value = draw(typed_values(depth=depth - 1))
        keys = draw(st.lists(ATOMS[name], max_size=3, unique=True))
        return _map(atomic(name), value_type), dict.fromkeys(keys, value)
    name = draw(st.sampled_from(sorted(ATOMS)))
    return atomic(name), draw(ATOMS[name])


def same(left: Any, right: Any) -> bool:
    """Equal in value and type, NaN and the sign of zero included."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return left.as_tuple()[1:] == right.as_tuple()[1:] and left == right
    return type(left) is type(right) and left == right


@patient
@given(typed_values())
def test_a_value_comes_back_from_json_as_it_went(typed: tuple[SparkType, Any]) -> None:
    type_, value = typed
    sent = values.encode_json(values.to_json(type_)(value))
    assert same(values.from_json(type_, column="c")(values.decode_json(sent)), value)


@patient
@given(typed_values())
def test_a_value_comes_back_from_text_as_it_went(typed: tuple[SparkType, Any]) -> None:
    type_, value = typed
    assert same(values.from_text(type_, column="c")(values.to_text(type_)(value)), value)


@patient
@given(typed_values())
def test_any_json_reader_understands_what_is_sent(typed: tuple[SparkType, Any]) -> None:
    type_, value = typed

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    sent = json.loads(values.encode_json(values.to_json(type_)(value)), parse_constant=refuse)
    assert all(abs(n) <= 2**53 - 1 for n in _whole_numbers(sent))


def _whole_numbers(data: Any) -> list[int]:
    if isinstance(data, dict):
        return [n for item in data.values() for n in _whole_numbers(item)]
    if isinstance(data, list):
        return [n for item in data for n in _whole_numbers(item)]
    return [data] if isinstance(data, int) else []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("boolean", True, True),
        ("integer", -7, -7),
        ("long", 2**53 - 1, 9007199254740991),
        ("long", 2**53, "9007199254740992"),
        ("long", -(2**53), "-9007199254740992"),
        ("double", 0.1, 0.1),
        ("double", math.nan, "NaN"),
        ("double", math.inf, "Infinity"),
        ("double", -math.inf, "-Infinity"),
        ("float", _float32(0.1), 0.10000000149011612),
        ("decimal(10,2)", Decimal("12.50"), "12.50"),
        ("decimal(38,10)", Decimal("0E-10"), "0.0000000000"),
        ("string", "", ""),
        ("binary", b"\x00\xff\xfe", "AP/+"),
        ("date", dt.date(31, 1, 2), "0031-01-02"),
        ("timestamp", dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC), "2026-03-01T12:00:00Z"),
        ("timestamp", dt.datetime(2026, 3, 1, 12, 0, 0, 120000, tzinfo=dt.UTC), "2026-03-01T12:00:00.12Z"),
        ("timestamp", dt.datetime(2026, 3, 1, 14, tzinfo=dt.timezone(dt.timedelta(hours=2))), "2026-03-01T12:00:00Z"),
        ("timestamp_ntz", dt.datetime(2026, 3, 1, 12, 0, 0, 1), "2026-03-01T12:00:00.000001"),
        ("interval day to second", dt.timedelta(0), "PT0S"),
        ("interval day to second", dt.timedelta(days=1, hours=2, microseconds=5), "P1DT2H0.000005S"),
        ("interval day to second", -dt.timedelta(minutes=90), "-PT1H30M"),
        ("interval year to month", 14, "P1Y2M"),
        ("interval year to month", -12, "-P1Y"),
        ("interval year to month", 0, "P0M"),
        ("interval", (1, -2, 3), {"months": 1, "days": -2, "microseconds": 3}),
        ("timestamp_ntz(9)", (1_500_000, 7), "1970-01-01T00:00:01.500000007"),
        ("void", None, None),
    ],
)
def test_the_json_forms_are_those_of_the_manual(name: str, value: Any, expected: Any) -> None:
    assert same(values.to_json(atomic(name))(value), expected)


def test_null_is_null_in_json_for_every_type() -> None:
    for name in ATOMS:
        assert values.to_json(atomic(name))(None) is None
        assert values.from_json(atomic(name), column="c")(None) is None


def test_a_map_is_a_list_of_entries_so_that_its_keys_may_have_any_type() -> None:
    days = _map(atomic("date"), atomic("long"))
    assert values.to_json(days)({dt.date(2026, 3, 1): 1}) == [{"key": "2026-03-01", "value": 1}]
    pairs = _map(_array(atomic("long")), atomic("long"))
    assert values.to_json(pairs)([([1, 2], 3)]) == [{"key": [1, 2], "value": 3}]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("long", "007", 7),
        ("long", "+7", 7),
        ("double", "1e3", 1000.0),
        ("double", "-0", -0.0),
        ("float", "0.1", _float32(0.1)),
        ("decimal(10,2)", "1.5", Decimal("1.50")),
        ("decimal(10,2)", "1.5000", Decimal("1.50")),
        ("decimal(10,2)", "15e-1", Decimal("1.50")),
        ("decimal(10,2)", "-0", Decimal("0.00")),
        ("binary", "-_8", b"\xfb\xff"),
        ("binary", "+/8=", b"\xfb\xff"),
        ("binary", "", b""),
        ("string", "", ""),
        ("timestamp", "2026-03-01T12:00:00", dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)),
        ("timestamp", "2026-03-01 12:00", dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)),
        ("timestamp", "2026-03-01", dt.datetime(2026, 3, 1, tzinfo=dt.UTC)),
        ("timestamp", "2026-03-01T14:00:00.5+02:00", dt.datetime(2026, 3, 1, 12, 0, 0, 500000, tzinfo=dt.UTC)),
        ("timestamp_ntz", "2026-03-01T12:00:00", dt.datetime(2026, 3, 1, 12)),
        ("interval day to second", "-P1DT0.5S", -dt.timedelta(days=1, microseconds=500000)),
        ("interval day to second", "PT36H", dt.timedelta(hours=36)),
        ("interval year to month", "P14M", 14),
    ],
)
def test_what_people_write_is_understood(name: str, text: str, value: Any) -> None:
    assert same(values.from_text(atomic(name), column="c")(text), value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("boolean", "yes"),
        ("boolean", ""),
        ("byte", "128"),
        ("long", "9223372036854775808"),
        ("long", "1.0"),
        ("long", "1_000"),
        ("long", " 1"),
        ("long", "٣"),
        ("long", ""),
        ("double", "1e400"),
        ("double", "inf"),
        ("double", "nan"),
        ("double", "0x10"),
        ("float", "1e39"),
        ("decimal(3,1)", "1.25"),
        ("decimal(3,1)", "100"),
        ("decimal(3,1)", "1e999999"),
        ("decimal(3,1)", "1e-999999"),
        ("decimal(3,1)", "NaN"),
        ("binary", "A"),
        ("binary", "é"),
        ("date", "2026-02-30"),
        ("date", "20260301"),
        ("date", "2026-W01-1"),
        ("timestamp", "1740830400"),
        ("timestamp", "2026-03-01T12:00:00.1234567Z"),
        ("timestamp", "2026-03-01T12:00:00 02:00"),
        ("timestamp", "+294247-01-10T04:00:54.775808Z"),
        ("timestamp", "-290308-12-21T19:59:05.224192+00:01"),
        ("timestamp", "+02026-03-01T12:00:00Z Z"),
        ("date", "-0000-01-01"),
        ("date", "+5881580-07-12"),
        ("timestamp", "2026-03-01T25:00:00Z"),
        ("timestamp_ntz", "2026-03-01T12:00:00Z"),
        ("timestamp_ntz", "2026-03-01T12:00:00+01:00"),
        ("interval day to second", "P"),
        ("interval day to second", "PT"),
        ("interval day to second", "P1DT"),
        ("interval day to second", "P1Y"),
        ("interval day to second", "P999999999D"),
        ("interval year to month", "P"),
        ("interval year to month", "P1D"),
        ("interval year to month", "P999999999Y"),
        ("interval", "P1M"),
        ("interval", '{"months": 1}'),
        ("variant", "null"),
        ("void", "null"),
    ],
)
def test_what_could_mean_two_values_or_none_is_refused(name: str, text: str) -> None:
    with pytest.raises(RequestError) as refused:
        values.from_text(atomic(name), column="c")(text)
    assert refused.value.condition == "WRONG_TYPE"
    assert refused.value.context["column"] == "c"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("boolean", 1),
        ("boolean", "true"),
        ("integer", True),
        ("integer", 1.0),
        ("integer", 2**31),
        ("long", Decimal("1.0")),
        ("double", True),
        ("double", 10**400),
        ("double", []),
        ("decimal(3,1)", True),
        ("decimal(3,1)", 100),
        ("string", 7),
        ("binary", 7),
        ("date", 20000),
        ("timestamp", 1740830400),
    ],
)
def test_json_of_another_type_is_refused(name: str, data: Any) -> None:
    with pytest.raises(RequestError) as refused:
        values.from_json(atomic(name), column="c")(data)
    assert refused.value.condition == "WRONG_TYPE"


def test_both_forms_of_a_whole_number_and_of_a_decimal_are_read() -> None:
    long, price = values.from_json(atomic("long"), column="c"), values.from_json(atomic("decimal(38,2)"), column="c")
    assert long(2**53 + 1) == long("9007199254740993") == 2**53 + 1
    assert price(values.decode_json(b"123456789012345678901234567890.12")) == Decimal("123456789012345678901234567890.12")


def test_an_error_names_the_member_that_is_wrong() -> None:
    type_ = struct_of((Field("a", _array(atomic("long"))),))
    with pytest.raises(RequestError) as refused:
        values.from_json(type_, column="key")({"a": [1, "x"]})
    assert refused.value.context["column"] == "key.a[]"


def test_a_struct_needs_all_its_members_and_no_others() -> None:
    read = values.from_json(struct_of((Field("a", atomic("long")), Field("b", atomic("long")))), column="key")
    assert read({"b": None, "a": 1}) == {"a": 1, "b": None}
    for wrong in ({"a": 1}, {"a": 1, "b": 2, "c": 3}, [1, 2]):
        with pytest.raises(RequestError):
            read(wrong)


@pytest.mark.parametrize(
    "document", [b"", b"[1", b"NaN", b"[" * 100_000, b"1e99999999999999999999", b'"\xff"', b'"\\udc80', b"{}x"]
)
def test_what_is_no_json_is_a_value_error(document: bytes) -> None:
    with pytest.raises(ValueError):
        values.decode_json(document)

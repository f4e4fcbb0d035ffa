"""Values survive conversion both ways; a value of a wrong type is refused with a hint."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import RequestError
from millpond.schema.convert import to_python, to_stored
from millpond.schema.far_time import FarTime, read_days, write_days
from millpond.schema.types import SparkType, parse_type

UTC = dt.UTC
STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
        {"name": "n", "type": "integer", "nullable": True, "metadata": {}},
    ],
}


def array(element: Any) -> Any:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(key: Any, value: Any) -> Any:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("type_", "python", "stored"),
    [
        ("boolean", True, True),
        ("byte", -128, -128),
        ("long", 2**63 - 1, 2**63 - 1),
        ("double", 0.1, 0.1),
        ("decimal(5,2)", Decimal("1.50"), Decimal("1.50")),
        ("string", "ü", "ü"),
        ("binary", b"\x00", b"\x00"),
        ("date", dt.date(1969, 12, 31), -1),
        ("timestamp", dt.datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC), 1_000_005),
        ("timestamp", dt.datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000_000),
        ("timestamp_ntz", dt.datetime(9999, 12, 31, 23, 59, 59, 999_999), 253_402_300_799_999_999),
        ("time(6)", dt.time(1, 2, 3, 4), 3_723_000_004_000),
        ("interval day to second", dt.timedelta(microseconds=-1), -1),
        ("interval year to month", -13, -13),
        (STRUCT, {"at": dt.datetime(1970, 1, 1, tzinfo=UTC), "n": None}, (0, None)),
        (array("date"), [dt.date(1970, 1, 2), None], [1, None]),
        (mapping("date", "timestamp"), {dt.date(1970, 1, 2): None}, [(1, None)]),
        (mapping(STRUCT, "integer"), [({"at": None, "n": 1}, 2)], [((None, 1), 2)]),
        ("timestamp", None, None),
        (STRUCT, None, None),
    ],
)
def test_a_value_has_one_stored_form_and_comes_back(type_, python, stored):
    spark_type = parse_type(type_)
    assert to_stored(spark_type)(python) == stored
    assert to_python(spark_type)(stored) == python
    assert type(to_python(spark_type)(stored)) is type(python)


@given(st.datetimes(timezones=st.just(UTC)))
def test_no_timestamp_loses_a_microsecond(moment):
    type_ = SparkType("timestamp", "timestamp")
    assert to_python(type_)(to_stored(type_)(moment)) == moment


def test_another_time_zone_is_the_same_moment():
    east = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=5)))
    assert to_stored(parse_type("timestamp"))(east) == to_stored(parse_type("timestamp"))(east.astimezone(UTC))


@pytest.mark.parametrize(
    ("type_", "wrong"),
    [
        ("integer", True),
        ("integer", 1.0),
        ("integer", "1"),
        ("integer", 2**31),
        ("byte", -129),
        ("boolean", 1),
        ("double", "1"),
        ("double", True),
        ("double", 2**53 + 1),
        ("double", 10**400),
        ("float", 1e39),
        ("string", b"a"),
        ("binary", "a"),
        ("date", dt.datetime(2024, 1, 1)),
        ("timestamp", dt.datetime(2024, 1, 1)),
        ("timestamp", dt.date(2024, 1, 1)),
        ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=UTC)),
        ("time(6)", dt.time(1, tzinfo=UTC)),
        ("interval day to second", 5),
        ("interval day to second", dt.timedelta.max),
        ("decimal(3,1)", Decimal("1.25")),
        ("decimal(3,1)", Decimal(100)),
        ("decimal(3,1)", 1.5),
        ("decimal(3,1)", Decimal("NaN")),
        ("decimal(3,1)", Decimal("Infinity")),
        (STRUCT, {"at": None}),
        (STRUCT, (None, 1)),
        (array("integer"), [True]),
        (mapping("string", "integer"), [1]),
        ("variant", 1),
    ],
)
def test_what_is_no_value_of_the_type_is_refused_with_a_hint(type_, wrong):
    with pytest.raises(RequestError) as refused:
        to_stored(parse_type(type_), column="c")(wrong)
    assert refused.value.condition == "WRONG_TYPE"
    assert refused.value.hint
    assert "c" in refused.value.message


def test_a_naive_datetime_is_told_to_add_its_time_zone():
    with pytest.raises(RequestError) as refused:
        to_stored(parse_type("timestamp"))(dt.datetime(2024, 1, 1))
    assert "tzinfo" in refused.value.hint


def test_floats_become_what_spark_keeps_in_keys():
    keep = to_stored(parse_type("double"))
    assert math.copysign(1, keep(-0.0)) == 1
    assert math.isnan(keep(math.nan))
    assert to_stored(parse_type("float"))(0.1) == 0.10000000149011612


@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz", "date"])
@pytest.mark.parametrize("sign", [1, -1])
def test_times_that_python_has_no_object_for_come_back(type_, sign):
    far, kind = sign * (2**31 - 1 if type_ == "date" else 2**62), parse_type(type_)
    shown = to_python(kind)(far)
    assert shown == FarTime(type_, far)
    assert to_stored(kind)(shown) == far
    near = to_python(kind)(0)
    assert (shown > near, near < shown) == (sign > 0, sign > 0)
    assert (shown < FarTime(type_, -far)) is (sign < 0)
    with pytest.raises(TypeError):
        assert shown < 5
    other = parse_type("date" if type_ == "timestamp" else "timestamp")
    with pytest.raises(RequestError) as refused:
        to_stored(other)(shown)
    assert refused.value.condition == "WRONG_TYPE"


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (2_932_896, "9999-12-31"),
        (2_932_897, "+10000-01-01"),
        (2**31 - 1, "+5881580-07-11"),
        (-719_162, "0001-01-01"),
        (-719_163, "0000-12-31"),
        (-719_528, "0000-01-01"),
        (-719_529, "-0001-12-31"),
        (-(2**31), "-5877641-06-23"),
    ],
)
def test_a_date_of_any_year_is_written_as_java_writes_it(days, text):
    assert write_days(days) == text
    assert read_days(text) == days


@pytest.mark.parametrize("text", ["+5881580-07-12", "-5877641-06-22", "10000-01-01", "+9999-01-01", "-0000-01-01", "+10001-02-29"])
def test_what_is_no_date_of_spark_is_refused(text):
    with pytest.raises(ValueError):
        read_days(text)

"""Errors, laziness and definitions as JSON of finishing.  tests/spark compares its values with Spark."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import MillpondError
from millpond.scalar.number.ranges import divide_down, divide_half_up, fit
from millpond.schema.definition.default_table import undefined_table
from millpond.schema.definition.expression import Expression, buffer_column, key_column
from millpond.schema.definition.table import KeyColumn, TableDefinition, ValueColumn, parse_definition
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, SparkType, atomic, struct_of
from millpond.tables.finish.buffers.hllpp import estimator
from millpond.tables.finish.definition import compile_definition, compile_expression

LONG, DOUBLE, STRING, BOOLEAN = atomic("long"), atomic("double"), atomic("string"), atomic("boolean")
WINDOW = struct_of((Field("start", atomic("timestamp")), Field("end", atomic("timestamp"))))


def aggregate(function: str, *buffers: int, type_: SparkType = LONG, **options: object) -> Expression:
    return Expression("aggregate", type_, options={"function": function, "buffers": list(buffers), "sql": function, **options})


def literal(value: object, type_: SparkType = LONG) -> Expression:
    return Expression("literal", type_, options={"value": value})


def evaluate(expression: Expression, *buffers: object) -> object:
    return compile_expression(expression, ())((), buffers)


def definition(*values: ValueColumn, having: Expression | None = None) -> TableDefinition:
    return TableDefinition(
        table="t",
        operator=0,
        key=(KeyColumn("page", STRING, 0), KeyColumn("minute", atomic("timestamp"), 1, ("start",))),
        values=values,
        key_schema=(Field("page", STRING), Field("window", WINDOW)),
        value_schema=(Field("sum", LONG), Field("count", LONG)),
        having=having,
    )


def test_a_row_has_its_key_columns_first_and_times_as_python_has_them():
    finish = compile_definition(definition(ValueColumn("n", LONG, aggregate("count", 1))))
    row = finish(("a", (60_000_000, 120_000_000)), (5, 7))
    assert row == {"page": "a", "minute": dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC), "n": 7}
    assert list(row) == ["page", "minute", "n"]


def test_having_keeps_rows_out_also_where_it_is_unknown():
    above = Expression("gt", BOOLEAN, (aggregate("sum", 0, mode="ansi"), literal(3)))
    finish = compile_definition(definition(having=above))
    key = ("a", (0, 0))
    assert finish(key, (4, 1)) is not None
    assert finish(key, (3, 1)) is None
    assert finish(key, (None, 1)) is None


def test_a_definition_means_the_same_after_json():
    one = definition(
        ValueColumn(
            "x",
            DOUBLE,
            Expression("multiply", DOUBLE, (literal(math.inf.hex(), DOUBLE), literal("0x1p-1", DOUBLE)), {"mode": "ansi"}),
        ),
        ValueColumn("d", atomic("decimal(3,1)"), literal("1.5", atomic("decimal(3,1)"))),
        ValueColumn("b", atomic("binary"), literal("00ff", atomic("binary"))),
    )
    again = parse_definition(json.loads(json.dumps(one.to_json(), allow_nan=False)))
    assert again == one
    row = compile_definition(again)(("a", None), (1, 1))
    assert row == {"page": "a", "minute": None, "x": math.inf, "d": Decimal("1.5"), "b": b"\x00\xff"}


def test_a_table_that_nobody_defined_shows_its_buffers():
    key, value = (Field("k", STRING),), (Field("n", LONG), Field("at", atomic("date")))
    schema = StoreSchema(operator=0, operator_name="stateStoreSave", store="default", index=0, single=not key, key=key, value=value)
    raw = undefined_table("t", schema, "nobody did")
    assert compile_definition(raw)(("a",), (1, 0)) == {"k": "a", "n": 1, "at": dt.date(1970, 1, 1)}


@pytest.mark.parametrize(
    "unknown",
    [aggregate("median_of_medians", 0), Expression("telepathy", LONG), key_column(0, LONG, ("middle",))],
)
def test_what_a_newer_version_wrote_is_refused_by_name(unknown):
    with pytest.raises(MillpondError) as refused:
        compile_definition(definition(ValueColumn("x", LONG, unknown)))
    assert refused.value.condition == "DEFINITION_MISMATCH"


def overflowing(mode: str) -> Expression:
    return Expression("add", LONG, (buffer_column(0, LONG), literal(1)), {"mode": mode})


def test_an_overflow_is_an_error_null_or_wraps_as_the_job_was_told():
    assert evaluate(overflowing("try"), 2**63 - 1) is None
    assert evaluate(overflowing("legacy"), 2**63 - 1) == -(2**63)
    with pytest.raises(MillpondError) as refused:
        evaluate(overflowing("ansi"), 2**63 - 1)
    assert refused.value.condition == "VALUE_OUT_OF_RANGE"


def test_the_branch_that_isnt_taken_cant_fail():
    divide = Expression("divide", DOUBLE, (literal("0x1p0", DOUBLE), buffer_column(0, DOUBLE)), {"mode": "ansi"})
    zero = Expression("eq", BOOLEAN, (buffer_column(0, DOUBLE), literal("0x0p0", DOUBLE)))
    guarded = Expression("if", DOUBLE, (zero, literal(None, DOUBLE), divide))
    assert evaluate(guarded, 0.0) is None
    assert evaluate(guarded, 2.0) == 0.5
    with pytest.raises(MillpondError):
        evaluate(divide, 0.0)


@pytest.mark.parametrize(("a", "b", "both", "either"), [
    (True, None, None, True), (None, True, None, True), (False, None, False, None), (None, False, False, None),
    (None, None, None, None), (True, False, False, True), (True, True, True, True), (False, False, False, False),
])  # fmt: skip
def test_logic_has_three_values(a, b, both, either):
    operands = (buffer_column(0, BOOLEAN), buffer_column(1, BOOLEAN))
    assert evaluate(Expression("and", BOOLEAN, operands), a, b) is both
    assert evaluate(Expression("or", BOOLEAN, operands), a, b) is either


def test_nan_equals_itself_and_is_above_infinity():
    operands = (buffer_column(0, DOUBLE), buffer_column(1, DOUBLE))
    assert evaluate(Expression("eq", BOOLEAN, operands), math.nan, math.nan) is True
    assert evaluate(Expression("gt", BOOLEAN, operands), math.nan, math.inf) is True
    assert evaluate(Expression("lt", BOOLEAN, operands), math.nan, 1.0) is False
    assert math.isnan(evaluate(Expression("greatest", DOUBLE, operands), math.nan, math.inf))


def test_averages_of_nothing_are_null():
    for type_, nothing in ((DOUBLE, 0.0), (atomic("decimal(7,5)"), Decimal(0)), (atomic("interval day to second"), 0)):
        assert evaluate(aggregate("avg", 0, 1, type_=type_, mode="ansi"), nothing, 0) is None


@given(st.integers(-(10**20), 10**20), st.integers(-(10**6), 10**6).filter(bool))
def test_whole_divisions_round_as_java_does(a, b):
    assert divide_down(a, b) == int(math.copysign(1, a) * math.copysign(1, b)) * (abs(a) // abs(b))
    assert divide_half_up(a, b) == int((Decimal(a) / Decimal(b)).quantize(Decimal(1), rounding="ROUND_HALF_UP"))


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000))
def test_a_decimal_that_fits_has_the_types_scale_and_no_negative_zero(value):
    fitted = fit(value, atomic("decimal(5,2)"), "try")
    if fitted is None:
        assert abs(value) >= Decimal("999.995")
    else:
        assert fitted.as_tuple().exponent == -2
        assert abs(fitted - value) <= Decimal("0.005")
        assert fitted or not fitted.is_signed()


def test_an_empty_sketch_has_seen_nothing():
    assert estimator(9)([0] * 52) == 0

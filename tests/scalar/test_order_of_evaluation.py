"""Operands are evaluated in Spark's order: one that Spark skips can't fail."""

from __future__ import annotations

import pytest

from millpond.errors import MillpondError
from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.types import atomic
from millpond.tables.finish.definition import compile_expression

LONG, DOUBLE, TINY = atomic("long"), atomic("double"), atomic("byte")


def divided(mode: str) -> Expression:
    """try_divide(double(tinyint(b0)), b1): the cast of a large number fails."""
    narrow = Expression("cast", TINY, (buffer_column(0, LONG),), {"mode": "ansi"})
    wide = Expression("cast", DOUBLE, (narrow,), {"mode": "ansi"})
    return Expression("divide", DOUBLE, (wide, buffer_column(1, DOUBLE)), {"mode": mode})


@pytest.mark.parametrize("divisor", [None, 0.0])
def test_what_is_divided_isnt_looked_at_where_the_divisor_is_null_or_zero(divisor):
    assert compile_expression(divided("try"), ())((), (1679, divisor)) is None
    with pytest.raises(MillpondError):
        compile_expression(divided("try"), ())((), (1679, 2.0))

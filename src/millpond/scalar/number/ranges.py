"""Spark's arithmetic on numbers that have a range: decimals of a precision, integers of a width.

`mode` is Spark's evaluation mode: an overflow is an error in `ansi` and NULL in `try`; `legacy`
wraps integers and returns NULL for decimals.
"""

from __future__ import annotations

import ctypes
import decimal
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

from millpond.scalar.spark_fails import SparkFails
from millpond.schema.types import SparkType

# Wide enough for every exact intermediate result, also of a double (309 digits) cast to 38 decimal
# places. Of Scala's BigDecimal (DECIMAL128), which some of Spark's operations on decimals go
# through.
SCALA = decimal.Context(prec=34, rounding=ROUND_HALF_EVEN, Emin=-9999, Emax=9999)
EXACT = decimal.Context(prec=400, rounding=ROUND_HALF_UP, Emin=-9999, Emax=9999, traps=[decimal.InvalidOperation])
# Source: Decimal.MATH_CONTEXT and Decimal./ in Spark 4.3: products keep 39 digits, quotients 39
# decimal places, cut off.
_PRODUCT = decimal.Context(prec=39, rounding=ROUND_DOWN, Emin=-9999, Emax=9999, traps=[decimal.InvalidOperation])
_QUOTIENT_SCALE = 39
BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64, "year_month_interval": 32, "day_time_interval": 64}


def overflow(type_: SparkType) -> SparkFails:
    """The error of a value that doesn't fit: in ANSI mode, Spark's batch fails when it emits it."""
    return SparkFails(
        "VALUE_OUT_OF_RANGE",
        f"The value overflows its type {type_}.",
        hint="Use try_ functions or a wider type in the job.",
        type=str(type_),
    )


def division_by_zero() -> SparkFails:
    """A division by zero in ANSI mode."""
    return SparkFails("VALUE_OUT_OF_RANGE", "The value is divided by zero.", hint="Use try_divide or nullif in the job.")


def single(value: float) -> float:
    """The nearest float of 32 bits; too large ones become infinite."""
    return ctypes.c_float(value).value


def fit(value: Decimal, type_: SparkType, mode: str) -> Decimal | None:
    """Round half up to the type's scale; a result with too many digits overflows."""
    rounded = EXACT.quantize(value, Decimal((0, (1,), -type_.scale)))
    if rounded.is_zero():
        return rounded.copy_abs()
    if rounded.adjusted() >= type_.precision - type_.scale:
        if mode == "ansi":
            raise overflow(type_)
        return None
    return rounded


def wrap(value: int, type_: SparkType, mode: str) -> int | None:
    """A whole number in the width of its type."""
    bits = BITS[type_.kind]
    bound = 1 << (bits - 1)
    if -bound <= value < bound:
        return value
    if mode == "ansi":
        raise overflow(type_)
    return None if mode == "try" else (value + bound) % (2 * bound) - bound


def unscaled(value: Decimal, scale: int) -> int:
    """The whole number that stands for a decimal of this scale."""
    return int(EXACT.scaleb(value, scale))


def product(a: Decimal, b: Decimal) -> Decimal:
    """a * b to 39 digits, cut off."""
    return _PRODUCT.multiply(a, b)


def quotient(a: Decimal, b: Decimal) -> Decimal:
    """a / b to 39 decimal places, cut off; b isn't zero."""
    scale = max(-_exponent(a), -_exponent(b), 0)
    whole = divide_down(unscaled(a, scale) * 10**_QUOTIENT_SCALE, unscaled(b, scale))
    return EXACT.scaleb(Decimal(whole), -_QUOTIENT_SCALE)


def truncated(value: Decimal) -> int:
    """The whole part."""
    return int(value.to_integral_value(ROUND_DOWN))


def divide_half_up(a: int, b: int) -> int:
    """a / b rounded to the nearest whole number, halves away from zero."""
    whole, rest = divmod(abs(a), abs(b))
    whole += 2 * rest >= abs(b)
    return whole if (a < 0) == (b < 0) else -whole


def divide_down(a: int, b: int) -> int:
    """a / b rounded towards zero, as Java does."""
    whole = abs(a) // abs(b)
    return whole if (a < 0) == (b < 0) else -whole


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent

"""Java's text of a double or float, in both of its algorithms.

Spark uses this text for a cast to string, and also as the value of a double in a cast to decimal
and in rounding.  Before Java 19 it isn't always the shortest: 2.0E23 was written
1.9999999999999998E23, and 2^55 was 3.6028797018963968E16.

Source:  Double.toString: FloatingDecimal of JDK 17 (JDK-4511638), and the specification of JDK 19,
         which later ones share.  Held against the JVM over random bit patterns by
         tests/spark/derive/test_scalar.py; by hand against 17 and 25, 1.2 million each.
"""

from __future__ import annotations

import ctypes
import math
from decimal import Decimal
from functools import cache

# From this Java on, the text is the shortest that identifies the number.
SHORTEST_SINCE = 19
# Bits after the leading one, the smallest exponent.
_DOUBLE = (52, -1022)
_FLOAT = (23, -126)
_LARGEST_WHOLE = 62
# Source: FloatingDecimal estimates log10 with these; other constants give other digits.
_SLOPE, _AT_1_5, _LOG10_2 = 0.289529654, 0.176091259, 0.301029995663981


def java_text(value: float, java: int, *, single: bool = False) -> str:
    """The text of Double.toString or (single) Float.toString in this Java.

    java:  the major version, as 17
    """
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if value == 0:
        return sign + "0.0"
    digits, point = _shortest(abs(value), single) if java >= SHORTEST_SINCE else _developed(abs(value), single)
    return sign + _layout(digits, point)


def _layout(digits: str, point: int) -> str:
    """Digits of 0.ddd × 10^point in Java's layout: plain from 10^-3 up to 10^7, else with an exponent."""
    if 0 < point < 8:
        return f"{digits[:point]:0<{point}}.{digits[point:] or '0'}"
    if -3 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    return f"{digits[0]}.{digits[1:] or '0'}E{point - 1}"


# ---------------------------------------------------------------- since Java 19


def _shortest(value: float, single: bool) -> tuple[str, int]:
    """The fewest digits that are nearest to this number; for one digit, the nearest with two."""
    text = _shortest_single(value) if single else f"{value!r}"
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = int(exponent or 0) + len(whole) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) == 1:
        nearest, _, exponent = f"{value:.1e}".partition("e")
        digits, point = nearest.replace(".", "").rstrip("0"), int(exponent) + 1
    return digits, point


def _shortest_single(value: float) -> str:
    for count in range(9):
        nearest = Decimal(f"{value:.{count}e}")
        # Below a power of two, numbers are closer, so the farther of two decimals may identify the
        # number.
        for candidate in (nearest, nearest + Decimal((0, (1,), nearest.adjusted() - count))):
            if ctypes.c_float(float(candidate)).value == value:
                return f"{candidate:e}"
    raise AssertionError(value)


# ---------------------------------------------------------------- before Java 19


def _developed(value: float, single: bool) -> tuple[str, int]:
    fraction_bits, smallest = _FLOAT if single else _DOUBLE
    mantissa, exponent = _parts(value)
    # The number is mantissa × 2^(exponent - bits + 1), with an odd mantissa of this many bits.
    bits = mantissa.bit_length()
    known_bits = fraction_bits + 1 - max(0, smallest - exponent)
    below_point = max(0, bits - exponent - 1)
    if below_point == 0 and exponent <= _LARGEST_WHOLE:
        return _whole(mantissa << (exponent - bits + 1), exponent, known_bits)
    return _generated(mantissa, bits, exponent, known_bits, below_point)


def _parts(value: float) -> tuple[int, int]:
    """An odd whole number, and the power of two of its leading bit."""
    numerator, denominator = value.as_integer_ratio()
    exponent = numerator.bit_length() - denominator.bit_length()
    mantissa = numerator // (numerator & -numerator)
    return mantissa, exponent


def _whole(number: int, exponent: int, known_bits: int) -> tuple[str, int]:
    """A whole number below 2^63: digits that don't identify it are rounded off, half up."""
    dropped = 0
    spare = exponent - known_bits - 1
    if spare > 1:
        dropped = len(str(1 << spare)) - 1
        number = (number + 10**dropped // 2) // 10**dropped
    text = str(number)
    return text.rstrip("0"), len(text) + dropped


def _generated(mantissa: int, bits: int, exponent: int, known_bits: int, below_point: int) -> tuple[str, int]:
    """Digits of value / 10^power, until the rest is below half the distance to the next number."""
    power = _estimate(mantissa, bits, exponent)
    fives_b, fives_s = max(0, -power), max(0, power)
    twos_b, twos_s = fives_b + below_point + exponent, fives_s + below_point
    twos_m = twos_b - known_bits
    twos_b -= bits - 1
    common = min(twos_b, twos_s)
    twos_b, twos_s, twos_m = twos_b - common, twos_s - common, twos_m - common
    if bits == 1:
        twos_m -= 1
    if twos_m < 0:
        twos_b, twos_s, twos_m = twos_b - twos_m, twos_s - twos_m, 0
    width = _width(bits + twos_b, fives_b, twos_s + 1, fives_s + 1)
    left, scale, half = (mantissa * 5**fives_b) << twos_b, 5**fives_s << twos_s, 5**fives_b << twos_m
    return _digits(left, scale, half, power, width)


def _digits(left: int, scale: int, half: int, power: int, width: int) -> tuple[str, int]:
    """The digits of left / scale.  In 32 and 64 bits `half` may overflow, as it does in Java."""
    tens = scale * 10
    digits: list[int] = []
    low = high = False
    first = True
    while first or not (low or high):
        digit, left = left // scale, 10 * (left % scale)
        half = _wrap(half * 10, width)
        if half > 0:
            low, high = left < half, _reaches(left, half, tens, width)
        else:
            low = high = True
        if not first or digit or high:
            digits.append(digit)
        else:
            power -= 1
        if first and (power < -3 or power >= 8):
            low = high = False
        first = False
    if high and (not low or 2 * left > tens or (2 * left == tens and digits[-1] % 2)):
        power += _round_up(digits)
    return "".join(map(str, digits)), power + 1


def _reaches(left: int, half: int, tens: int, width: int) -> bool:
    # The large numbers of Java compare with >=, the small ones with >.
    return left + half >= tens if not width else _wrap(left + half, width) > tens


def _round_up(digits: list[int]) -> int:
    """Add one to the last digit; returns 1 if that carries beyond the first."""
    place = len(digits) - 1
    while digits[place] == 9 and place > 0:
        digits[place] = 0
        place -= 1
    if digits[place] == 9:
        digits[place] = 1
        return 1
    digits[place] += 1
    return 0


def _estimate(mantissa: int, bits: int, exponent: int) -> int:
    """Java's estimate of floor(log10); if it is too large by one, the first digit shows it."""
    scaled = math.ldexp(mantissa, 1 - bits)
    return math.floor((scaled - 1.5) * _SLOPE + _AT_1_5 + exponent * _LOG10_2)


@cache
def _bits_of_five(power: int) -> int:
    """How many bits Java allows for 5^power."""
    return (5**power).bit_length() if 0 < power < 27 else power * 3


def _width(twos_b: int, fives_b: int, twos_s: int, fives_s: int) -> int:
    """32, 64, or 0 for whole numbers without a bound: what Java computes in."""
    needed = twos_b + _bits_of_five(fives_b), twos_s + _bits_of_five(fives_s)
    for width in (32, 64):
        if all(n < width for n in needed):
            return width
    return 0


def _wrap(number: int, width: int) -> int:
    if not width:
        return number
    bound = 1 << (width - 1)
    return (number + bound) % (2 * bound) - bound

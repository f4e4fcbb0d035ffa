"""exp, pow and logarithms to the last bit of Java's StrictMath (fdlibm), from which C libraries may differ.

The functions below are ports of fdlibm's e_exp.c, e_log.c, e_log10.c and e_pow.c, whose notice is:

    Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved.
    Developed at SunSoft, a Sun Microsystems, Inc. business.
    Permission to use, copy, modify, and distribute this software is freely granted, provided that this notice is preserved.

Source:  mathExpressions.scala, Spark 4.3; https://netlib.org/fdlibm
"""

from __future__ import annotations

import math
import struct

from millpond.scalar.function import FLOATS, function, plain, takes

LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_OVERFLOWS, _UNDERFLOWS = 7.09782712893383973096e02, -7.45133219101941108420e02
_EXP = (1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05, -1.65339022054652515390e-06,
        4.13813679705723846039e-08)  # fmt: skip
LOG = (6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
        1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01)  # fmt: skip
_INV_LN10, _LOG10_2_HIGH, _LOG10_2_LOW = 4.34294481903251816668e-01, 3.01029995663611771306e-01, 3.69423907715893078616e-13


def high_of(value: float) -> int:
    """The upper half of a double, with its sign."""
    found: int = struct.unpack(">i", struct.pack(">d", value)[:4])[0]
    return found


def with_high(value: float, high: int) -> float:
    found: float = struct.unpack(">d", struct.pack(">I", high & 0xFFFFFFFF) + struct.pack(">d", value)[4:])[0]
    return found


def exp(x: float) -> float:
    """e to the power of x."""
    if x != x or abs(x) == math.inf:
        return 0.0 if x == -math.inf else x
    if x > _OVERFLOWS:
        return math.inf
    if x < _UNDERFLOWS:
        return 0.0
    high = high_of(x) & 0x7FFFFFFF
    upper = lower = 0.0
    k = 0
    if high > 0x3FD62E42:
        if high < 0x3FF0A2B2:
            k = 1 if x > 0 else -1
            upper, lower = x - k * LN2_HIGH, k * LN2_LOW
        else:
            k = int(1.44269504088896338700 * x + (0.5 if x > 0 else -0.5))
            upper, lower = x - k * LN2_HIGH, k * LN2_LOW
        x = upper - lower
    elif high < 0x3E300000:
        return 1.0 + x
    t = x * x
    c = x - t * (_EXP[0] + t * (_EXP[1] + t * (_EXP[2] + t * (_EXP[3] + t * _EXP[4]))))
    if k == 0:
        return 1.0 - ((x * c) / (c - 2.0) - x)
    y = 1.0 - ((lower - (x * c) / (2.0 - c)) - upper)
    if k >= -1021:
        return with_high(y, high_of(y) + (k << 20))
    return with_high(y, high_of(y) + ((k + 1000) << 20)) * 2.0**-1000


def log(x: float) -> float:
    """The natural logarithm of a number above zero."""
    if x != x or x == math.inf:
        return x
    k = 0
    if high_of(x) < 0x00100000:
        k, x = -54, x * 2.0**54
    high = high_of(x)
    k += (high >> 20) - 1023
    high &= 0x000FFFFF
    i = (high + 0x95F64) & 0x100000
    x = with_high(x, high | (i ^ 0x3FF00000))
    k += i >> 20
    f, dk = x - 1.0, float(k)
    if (0x000FFFFF & (2 + high)) < 3:
        if f == 0.0:
            return dk * LN2_HIGH + dk * LN2_LOW if k else 0.0
        r = f * f * (0.5 - 0.33333333333333333 * f)
        return dk * LN2_HIGH - ((r - dk * LN2_LOW) - f) if k else f - r
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (LOG[1] + w * (LOG[3] + w * LOG[5]))
    r = z * (LOG[0] + w * (LOG[2] + w * (LOG[4] + w * LOG[6]))) + even
    if ((high - 0x6147A) | (0x6B851 - high)) > 0:
        half = 0.5 * f * f
        if k == 0:
            return f - (half - s * (half + r))
        return dk * LN2_HIGH - ((half - (s * (half + r) + dk * LN2_LOW)) - f)
    if k == 0:
        return f - s * (f - r)
    return dk * LN2_HIGH - ((s * (f - r) - dk * LN2_LOW) - f)


def log10(x: float) -> float:
    """The decimal logarithm of a number above zero."""
    if x != x or x == math.inf:
        return x
    k = 0
    if high_of(x) < 0x00100000:
        k, x = -54, x * 2.0**54
    high = high_of(x)
    k += (high >> 20) - 1023
    i = 1 if k < 0 else 0
    x = with_high(x, (high & 0x000FFFFF) | ((0x3FF - i) << 20))
    y = float(k + i)
    return y * _LOG10_2_LOW + _INV_LN10 * log(x) + y * _LOG10_2_HIGH


_POW_LOG = (5.99999999999994648725e-01, 4.28571428578550184252e-01, 3.33333329818377432918e-01, 2.72728123808534006489e-01,
            2.30660745775561754067e-01, 2.06975017800338417784e-01)  # fmt: skip
_BASES, _LOG2_HIGH, _LOG2_LOW = (1.0, 1.5), (0.0, 5.84962487220764160156e-01), (0.0, 1.35003920212974897128e-08)
_SCALE, _SCALE_HIGH, _SCALE_LOW = 9.61796693925975554329e-01, 9.61796700954437255859e-01, -7.02846165095275826516e-09
_INV_LN2, _INV_LN2_HIGH, _INV_LN2_LOW = 1.44269504088896338700e00, 1.44269502162933349609e00, 1.92596299112661746887e-08
_LN2, _LN2_UPPER, _LN2_REST = 6.93147180559945286227e-01, 6.93147182464599609375e-01, -1.90465429995776804525e-09
_JUST_OVER = 8.0085662595372944372e-17


def upper_half(value: float) -> float:
    """The double without its lower 32 bits."""
    found: float = struct.unpack(">d", struct.pack(">d", value)[:4] + bytes(4))[0]
    return found


def power(x: float, y: float) -> float:
    """x to the power of y."""
    if y == 0.0:
        return 1.0
    if x != x or y != y:
        return math.nan
    if y == 2.0:
        return x * x
    if y == 0.5 and x >= -1.7976931348623157e308:
        return math.sqrt(x + 0.0) if x >= 0 else math.nan
    if y == 1.0:
        return x
    if y == -1.0:
        return 1.0 / x if x else math.copysign(math.inf, x)
    if abs(y) == math.inf:
        if abs(x) == 1.0:
            return math.nan
        return math.inf if (abs(x) > 1.0) == (y > 0) else 0.0
    return _finite_power(x, y)


def _finite_power(x: float, y: float) -> float:
    negative = math.copysign(1.0, x) < 0
    whole, odd = y == math.floor(y), abs(y) < 2.0**53 and y == math.floor(y) and int(y) % 2 == 1
    size = abs(x)
    if size in (0.0, math.inf, 1.0):
        if negative and size == 1.0 and not whole:
            return math.nan
        made = size if y > 0 else (math.inf if size == 0 else 1.0 / size)
        return -made if negative and odd else made
    if negative and not whole:
        return math.nan
    sign = -1.0 if negative and odd else 1.0
    if abs(y) > 2147485695.9999995:
        if size < 0.9999995231628418:
            return sign * (math.inf if y < 0 else 0.0)
        if size > 1.0000009536743162:
            return sign * (math.inf if y > 0 else 0.0)
        t = size - 1.0
        w = (t * t) * (0.5 - t * (0.3333333333333333333333 - t * 0.25))
        u, v = _INV_LN2_HIGH * t, t * _INV_LN2_LOW - w * _INV_LN2
        high = upper_half(u + v)
        low = v - (high - u)
    else:
        high, low = _log2_in_two(size)
    y_high = upper_half(y)
    return _two_to(sign, y_high * high, (y - y_high) * high + y * low)


def _log2_in_two(x: float) -> tuple[float, float]:
    """log2 of a number above zero, as a double of few bits and the remainder."""
    n = 0
    if high_of(x) < 0x00100000:
        x, n = x * 2.0**53, -53
    top = high_of(x)
    n += (top >> 20) - 0x3FF
    j = top & 0x000FFFFF
    top = j | 0x3FF00000
    k = 0
    if 0x3988E < j < 0xBB67A:
        k = 1
    elif j >= 0xBB67A:
        n, top = n + 1, top - 0x00100000
    x = with_high(x, top)
    u, v = x - _BASES[k], 1.0 / (x + _BASES[k])
    ss = u * v
    s_high = upper_half(ss)
    t_high = with_high(0.0, ((top >> 1) | 0x20000000) + 0x00080000 + (k << 18))
    t_low = x - (t_high - _BASES[k])
    s_low = v * ((u - s_high * t_high) - s_high * t_low)
    s2 = ss * ss
    a, b, c, d, e, f = _POW_LOG
    r = s2 * s2 * (a + s2 * (b + s2 * (c + s2 * (d + s2 * (e + s2 * f)))))
    r += s_low * (s_high + ss)
    s2 = s_high * s_high
    t_high = upper_half(3.0 + s2 + r)
    t_low = r - ((t_high - 3.0) - s2)
    u, v = s_high * t_high, s_low * t_high + t_low * ss
    p_high = upper_half(u + v)
    p_low = v - (p_high - u)
    z_high, z_low = _SCALE_HIGH * p_high, _SCALE_LOW * p_high + p_low * _SCALE + _LOG2_LOW[k]
    t = float(n)
    high = upper_half(((z_high + z_low) + _LOG2_HIGH[k]) + t)
    return high, z_low - (((high - t) - _LOG2_HIGH[k]) - z_high)


def _two_to(sign: float, high: float, low: float) -> float:
    """2 to the power of high + low, with a sign."""
    z = low + high
    if z > 1024 or (z == 1024 and low + _JUST_OVER > z - high):
        return sign * math.inf
    if z < -1075 or (z == -1075 and low <= z - high):
        return sign * 0.0
    j = high_of(z)
    n = 0
    if j & 0x7FFFFFFF > 0x3FE00000:
        n = j + (0x00100000 >> (((j & 0x7FFFFFFF) >> 20) - 0x3FF + 1))
        k = ((n & 0x7FFFFFFF) >> 20) - 0x3FF
        t = with_high(0.0, n & ~(0x000FFFFF >> k))
        n = ((n & 0x000FFFFF) | 0x00100000) >> (20 - k)
        if j < 0:
            n = -n
        high -= t
    t = upper_half(low + high)
    u, v = t * _LN2_UPPER, (low - (t - high)) * _LN2 + t * _LN2_REST
    z = u + v
    w = v - (z - u)
    t = z * z
    a, b, c, d, e = _EXP
    t1 = z - t * (a + t * (b + t * (c + t * (d + t * e))))
    z = 1.0 - (((z * t1) / (t1 - 2.0) - (w + z * w)) - z)
    top = high_of(z) + (n << 20)
    return sign * (math.ldexp(z, n) if top >> 20 <= 0 else with_high(z, top))


def _positive(value: float) -> bool:
    return not value <= 0


def _log(value: float) -> float | None:
    return log(value) if _positive(value) else None


def _log10(value: float) -> float | None:
    return log10(value) if _positive(value) else None


def _log2(value: float) -> float | None:
    return log(value) / log(2.0) if _positive(value) else None


def _logarithm(base: float, value: float) -> float | None:
    if not _positive(value) or not _positive(base):
        return None
    below, above = log(value), log(base)
    if above == 0:
        return math.nan if below == 0 or below != below else math.copysign(math.inf, below)
    return below / above


FUNCTIONS = (
    function("power", plain(power), "Pow", refuse=takes(FLOATS)),
    function("exp", plain(exp), "Exp", refuse=takes(FLOATS)),
    function("ln", plain(_log), "Log", refuse=takes(FLOATS)),
    function("log10", plain(_log10), "Log10", refuse=takes(FLOATS)),
    function("log2", plain(_log2), "Log2", refuse=takes(FLOATS)),
    function("log", plain(_logarithm), "Logarithm", refuse=takes(FLOATS)),
)

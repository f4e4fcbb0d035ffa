"""Trigonometric and related functions, to the last bit of Java's Math and StrictMath (fdlibm).

The functions below are ports of fdlibm's e_asin.c, e_acos.c, s_atan.c, e_atan2.c, e_sinh.c,
e_cosh.c, s_tanh.c, s_cbrt.c, e_hypot.c, s_expm1.c and s_log1p.c, whose notice is:

    Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved.
    Developed at SunSoft, a Sun Microsystems, Inc. business.
    Permission to use, copy, modify, and distribute this software is freely granted, provided that this notice is preserved.

sin, cos and tan are missing: Java's Math may use machine instructions for them.

Source:  mathExpressions.scala, Spark 4.3; https://netlib.org/fdlibm
"""

from __future__ import annotations

import math
from collections.abc import Callable

from millpond.scalar.function import FLOATS, function, plain, takes
from millpond.scalar.number.strict_math import LN2_HIGH, LN2_LOW, LOG, exp, high_of, log, upper_half, with_high
from millpond.schema.definition.expression import Expression

_HALF_PI, _HALF_PI_LOW, _QUARTER_PI, _PI_LOW = (
    1.57079632679489655800,
    6.12323399573676603587e-17,
    7.85398163397448278999e-01,
    1.2246467991473531772e-16,
)
_ASIN_P = (1.66666666666666657415e-01, -3.25565818622400915405e-01, 2.01212532134862925881e-01, -4.00555345006794114027e-02,
           7.91534994289814532176e-04, 3.47933107596021167570e-05)  # fmt: skip
_ASIN_Q = (-2.40339491173441421878, 2.02094576023350569471, -6.88283971605453293030e-01, 7.70381505559019352791e-02)
_ATAN_HIGH = (4.63647609000806093515e-01, 7.85398163397448278999e-01, 9.82793723247329054082e-01, 1.57079632679489655800)
_ATAN_LOW = (2.26987774529616870924e-17, 3.06161699786838301793e-17, 1.39033110312309984516e-17, 6.12323399573676603587e-17)
_ATAN = (3.33333333333329318027e-01, -1.99999999998764832476e-01, 1.42857142725034663711e-01, -1.11111104054623557880e-01,
         9.09088713343650656196e-02, -7.69187620504482999495e-02, 6.66107313738753120669e-02, -5.83357013379057348645e-02,
         4.97687799461593236017e-02, -3.65315727442169155270e-02, 1.62858201153657823623e-02)  # fmt: skip
_EXPM1 = (-3.33333333333331316428e-02, 1.58730158725481460165e-03, -7.93650757867487942473e-05, 4.00821782732936239552e-06,
          -2.01099218183624371326e-07)  # fmt: skip
_LARGEST_EXPONENT = 7.09782712893383973096e02
# From this version on, Java uses machine instructions for some of them.
_MACHINE_SINCE = 24


def _ratio(t: float) -> float:
    p = t * (_ASIN_P[0] + t * (_ASIN_P[1] + t * (_ASIN_P[2] + t * (_ASIN_P[3] + t * (_ASIN_P[4] + t * _ASIN_P[5])))))
    return p / (1.0 + t * (_ASIN_Q[0] + t * (_ASIN_Q[1] + t * (_ASIN_Q[2] + t * _ASIN_Q[3]))))


def asin(x: float) -> float:
    size = abs(x)
    if not size < 1.0:
        return x * _HALF_PI + x * _HALF_PI_LOW if size == 1.0 else math.nan
    if size < 0.5:
        return x if high_of(size) < 0x3E400000 else x + x * _ratio(x * x)
    t = (1.0 - size) * 0.5
    r, s = _ratio(t), math.sqrt(t)
    if high_of(size) >= 0x3FEF3333:
        t = _HALF_PI - (2.0 * (s + s * r) - _HALF_PI_LOW)
    else:
        w = upper_half(s)
        c = (t - w * w) / (s + w)
        p = 2.0 * s * r - (_HALF_PI_LOW - 2.0 * c)
        t = _QUARTER_PI - (p - (_QUARTER_PI - 2.0 * w))
    return t if x > 0 else -t


def acos(x: float) -> float:
    size = abs(x)
    if not size < 1.0:
        return math.nan if size != 1.0 else (0.0 if x > 0 else math.pi + 2.0 * _HALF_PI_LOW)
    if size < 0.5:
        if high_of(size) <= 0x3C600000:
            return _HALF_PI + _HALF_PI_LOW
        return _HALF_PI - (x - (_HALF_PI_LOW - x * _ratio(x * x)))
    if x < 0:
        z = (1.0 + x) * 0.5
        s = math.sqrt(z)
        return math.pi - 2.0 * (s + (_ratio(z) * s - _HALF_PI_LOW))
    z = (1.0 - x) * 0.5
    s = math.sqrt(z)
    df = upper_half(s)
    c = (z - df * df) / (s + df)
    return 2.0 * (df + (_ratio(z) * s + c))


def atan(x: float) -> float:
    if x != x:
        return x
    high = high_of(abs(x))
    if high >= 0x44100000:
        return math.copysign(_ATAN_HIGH[3] + _ATAN_LOW[3], x)
    if high < 0x3FDC0000:
        if high < 0x3E200000:
            return x
        return x - x * _atan_sum(x)
    t = abs(x)
    if high < 0x3FF30000:
        place, t = (0, (2.0 * t - 1.0) / (2.0 + t)) if high < 0x3FE60000 else (1, (t - 1.0) / (t + 1.0))
    else:
        place, t = (2, (t - 1.5) / (1.0 + 1.5 * t)) if high < 0x40038000 else (3, -1.0 / t)
    z = _ATAN_HIGH[place] - ((t * _atan_sum(t) - _ATAN_LOW[place]) - t)
    return -z if x < 0 else z


def _atan_sum(x: float) -> float:
    z = x * x
    w = z * z
    even = z * (_ATAN[0] + w * (_ATAN[2] + w * (_ATAN[4] + w * (_ATAN[6] + w * (_ATAN[8] + w * _ATAN[10])))))
    return even + w * (_ATAN[1] + w * (_ATAN[3] + w * (_ATAN[5] + w * (_ATAN[7] + w * _ATAN[9]))))


def atan2(y: float, x: float) -> float:
    """Of operands to which Spark has added 0.0."""
    y, x = y + 0.0, x + 0.0
    if x != x or y != y:
        return math.nan
    if x == 1.0:
        return atan(y)
    if y == 0.0:
        return y if x >= 0 else math.pi
    if x == 0.0:
        return math.copysign(_HALF_PI, y)
    if math.isinf(x):
        if math.isinf(y):
            return math.copysign(_QUARTER_PI if x > 0 else 3.0 * _QUARTER_PI, y)
        return math.copysign(0.0 if x > 0 else math.pi, y)
    if math.isinf(y):
        return math.copysign(_HALF_PI, y)
    apart = (high_of(abs(y)) - high_of(abs(x))) >> 20
    z = 0.0 if x < 0 and apart < -60 else _HALF_PI + 0.5 * _PI_LOW if apart > 60 else atan(abs(y / x))
    if x > 0:
        return z if y > 0 else -z
    return math.pi - (z - _PI_LOW) if y > 0 else (z - _PI_LOW) - math.pi


def expm1(x: float) -> float:
    """e to the power of x, less 1."""
    high = high_of(abs(x))
    if high >= 0x4043687A:
        if x != x or x == math.inf:
            return x
        if x > _LARGEST_EXPONENT:
            return math.inf
        if x < 0:
            return -1.0
    k, c = 0, 0.0
    if high > 0x3FD62E42:
        if high < 0x3FF0A2B2:
            k = 1 if x > 0 else -1
            upper, lower = x - k * LN2_HIGH, k * LN2_LOW
        else:
            k = int(1.44269504088896338700 * x + (0.5 if x > 0 else -0.5))
            upper, lower = x - k * LN2_HIGH, k * LN2_LOW
        x = upper - lower
        c = (upper - x) - lower
    elif high < 0x3C900000:
        return x
    half = 0.5 * x
    square = x * half
    r = 1.0 + square * (_EXPM1[0] + square * (_EXPM1[1] + square * (_EXPM1[2] + square * (_EXPM1[3] + square * _EXPM1[4]))))
    t = 3.0 - r * half
    e = square * ((r - t) / (6.0 - x * t))
    if k == 0:
        return x - (x * e - square)
    return _expm1_scaled(x, (x * (e - c) - c) - square, k)


def _expm1_scaled(x: float, e: float, k: int) -> float:
    if k == -1:
        return 0.5 * (x - e) - 0.5
    if k == 1:
        return -2.0 * (e - (x + 0.5)) if x < -0.25 else 1.0 + 2.0 * (x - e)
    if k <= -2 or k > 56:
        y = 1.0 - (e - x)
        return with_high(y, high_of(y) + (k << 20)) - 1.0
    small = with_high(0.0, (0x3FF - k) << 20)
    y = (1.0 - small) - (e - x) if k < 20 else (x - (e + small)) + 1.0
    return with_high(y, high_of(y) + (k << 20))


def log1p(x: float) -> float:
    """The natural logarithm of 1 + x, of a number above -1."""
    if x != x or x == math.inf:
        return x
    high, size = high_of(x), high_of(abs(x))
    k, f, c, rest = 1, 0.0, 0.0, 1
    if high < 0x3FDA827A:
        if size < 0x3E200000:
            return x if size < 0x3C900000 else x - x * x * 0.5
        if high > 0 or high <= 0xBFD2BEC3 - (1 << 32):
            k, f = 0, x
    if k:
        u = 1.0 + x if high < 0x43400000 else x
        rest = high_of(u)
        k = (rest >> 20) - 1023
        if high < 0x43400000:
            c = (1.0 - (u - x) if k > 0 else x - (u - 1.0)) / u
        rest &= 0x000FFFFF
        if rest < 0x6A09E:
            u = with_high(u, rest | 0x3FF00000)
        else:
            k += 1
            u = with_high(u, rest | 0x3FE00000)
            rest = (0x00100000 - rest) >> 2
        f = u - 1.0
    half = 0.5 * f * f
    if rest == 0:
        if f == 0.0:
            return k * LN2_HIGH + (c + k * LN2_LOW) if k else 0.0
        r = half * (1.0 - 0.66666666666666666 * f)
        return k * LN2_HIGH - ((r - (k * LN2_LOW + c)) - f) if k else f - r
    s = f / (2.0 + f)
    z = s * s
    r = z * (LOG[0] + z * (LOG[1] + z * (LOG[2] + z * (LOG[3] + z * (LOG[4] + z * (LOG[5] + z * LOG[6]))))))
    if k == 0:
        return f - (half - s * (half + r))
    return k * LN2_HIGH - ((half - (s * (half + r) + (k * LN2_LOW + c))) - f)


def _half_exp(x: float, half: float) -> float:
    """half * e^x for large x, which e^x alone may overflow."""
    if high_of(x) < 0x40862E42:
        return half * exp(x)
    if x <= 710.4758600739439:
        w = exp(0.5 * x)
        return half * w * w
    return math.copysign(math.inf, half)


def sinh(x: float) -> float:
    if x != x or math.isinf(x):
        return x
    size, half = abs(x), math.copysign(0.5, x)
    if size >= 22.0:
        return _half_exp(size, half)
    if high_of(size) < 0x3E300000:
        return x
    t = expm1(size)
    return half * (2.0 * t - t * t / (t + 1.0)) if size < 1.0 else half * (t + t / (t + 1.0))


def cosh(x: float) -> float:
    if x != x:
        return x
    size = abs(x)
    if math.isinf(size):
        return size
    if high_of(size) < 0x3FD62E43:
        t = expm1(size)
        w = 1.0 + t
        return w if high_of(size) < 0x3C800000 else 1.0 + (t * t) / (w + w)
    if size < 22.0:
        t = exp(size)
        return 0.5 * t + 0.5 / t
    return _half_exp(size, 0.5)


def tanh(x: float) -> float:
    if x != x:
        return x
    size = abs(x)
    if size >= 22.0:
        return math.copysign(1.0, x)
    if high_of(size) < 0x3C800000:
        return x * (1.0 + x)
    if size >= 1.0:
        z = 1.0 - 2.0 / (expm1(2.0 * size) + 2.0)
    else:
        t = expm1(-2.0 * size)
        z = -t / (t + 2.0)
    return z if x >= 0 else -z


def cbrt(x: float) -> float:
    if x != x or math.isinf(x) or x == 0.0:
        return x
    size = abs(x)
    if high_of(size) < 0x00100000:
        t = 2.0**54 * size
        t = with_high(t, high_of(t) // 3 + 696219795)
    else:
        t = with_high(0.0, high_of(size) // 3 + 715094163)
    r = t * t / size
    s = 5.42857142857142815906e-01 + r * t
    t *= 3.57142857142857150787e-01 + 1.60714285714285720630 / (s + 1.41428571428571436819 + -7.05306122448979611050e-01 / s)
    t = with_high(0.0, high_of(t) + 1)
    r = size / (t * t)
    r = (r - t) / ((t + t) + r)
    return math.copysign(t + t * r, x)


def hypot(x: float, y: float) -> float:
    a, b = abs(x), abs(y)
    if math.isinf(a) or math.isinf(b):
        return math.inf
    if a != a or b != b:
        return math.nan
    if b > a:
        a, b = b, a
    if high_of(a) - high_of(b) > 0x3C00000:
        return a + b
    scale = 0
    if a > float.fromhex("0x1.00000ffffffffp500"):
        scale, a, b = 600, a * 2.0**-600, b * 2.0**-600
    if b < 2.0**-500:
        if b == 0.0:
            return a
        by = 1022 if b < 2.0**-1022 else 600
        scale, a, b = scale - by, a * 2.0**by, b * 2.0**by
    w = a - b
    if w > b:
        t = upper_half(a)
        w = math.sqrt(t * t - (b * (-b) - (a - t) * (a + t)))
    else:
        a = a + a
        y1, t1 = upper_half(b), upper_half(a)
        w = math.sqrt(t1 * y1 - (w * (-w) - (t1 * (b - y1) + (a - t1) * b)))
    return w * 2.0**scale if scale else w


# Above the first, adding one to a square changes nothing; below the second, an argument is its own
# inverse sine.
_LARGE, _TINY = 2.0**28, 2.0**-28


def asinh(x: float) -> float:
    """Source: ExpressionImplUtils.asinh, Spark 4.3."""
    size = abs(x)
    if size > _LARGE and math.isfinite(size):
        found = log(size) + log(2.0)
    elif not size >= _TINY or math.isinf(size):
        found = size
    elif size > 2.0:
        found = log(2.0 * size + 1.0 / (math.sqrt(x * x + 1.0) + size))
    else:
        found = log1p(size + x * x / (1.0 + math.sqrt(1.0 + x * x)))
    return math.copysign(found, x)


def acosh(x: float) -> float:
    """Source: ExpressionImplUtils.acosh, Spark 4.3."""
    if not x >= 1.0:
        return math.nan
    if x >= _LARGE:
        return log(x) + log(2.0)
    if x > 2.0:
        return log(2.0 * x - 1.0 / (x + math.sqrt(x * x - 1.0)))
    t = x - 1.0
    return log1p(t + math.sqrt(2.0 * t + t * t)) if t else 0.0


def atanh(x: float) -> float:
    """As Spark composes it."""
    if x != x or abs(x) > 1:
        return math.nan
    return math.copysign(math.inf, x) if abs(x) == 1 else 0.5 * (log1p(x) - log1p(-x))


def _log1p(value: float) -> float | None:
    return None if value <= -1.0 else log1p(value)


def _refuse(e: Expression) -> str | None:
    java = e.options.get("java")
    if java is None or java >= _MACHINE_SINCE:
        return f"{e.op} depends on the job's Java, which isn't known or from {_MACHINE_SINCE} on"
    return takes(FLOATS)(e)


_OF_ONE: dict[str, tuple[str, Callable[[float], float]]] = {
    "asin": ("Asin", asin),
    "acos": ("Acos", acos),
    "atan": ("Atan", atan),
    "sinh": ("Sinh", sinh),
    "cosh": ("Cosh", cosh),
    "tanh": ("Tanh", tanh),
    "cbrt": ("Cbrt", cbrt),
}
FUNCTIONS = (
    *(function(op, plain(compute), name, refuse=_refuse, reads=("java",)) for op, (name, compute) in _OF_ONE.items()),
    function("atan2", plain(atan2), "Atan2", refuse=_refuse, reads=("java",)),
    function("hypot", plain(hypot), "Hypot", refuse=_refuse, reads=("java",)),
    function("asinh", plain(asinh), "Asinh", refuse=takes(FLOATS)),
    function("acosh", plain(acosh), "Acosh", refuse=takes(FLOATS)),
    function("atanh", plain(atanh), "Atanh", refuse=takes(FLOATS)),
    function("expm1", plain(expm1), "Expm1", refuse=takes(FLOATS)),
    function("log1p", plain(_log1p), "Log1p", refuse=takes(FLOATS)),
)

"""The text of doubles by both of Java's algorithms.  tests/spark/derive/test_scalar.py compares it with the installed JVM's."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import MillpondError
from millpond.scalar.casts import Casting, compile_cast
from millpond.scalar.text.java_text import java_text
from millpond.schema.types import atomic

# Value, the text that Java 17 printed, the text that Java 25 printed.
TEXTS = [
    (2.0**55, "3.6028797018963968E16", "3.602879701896397E16"),
    (2e23, "1.9999999999999998E23", "2.0E23"),
    (2.0**-24, "5.9604644775390625E-8", "5.960464477539063E-8"),
    (2.2250738585072014e-308, "2.2250738585072014E-308", "2.2250738585072014E-308"),
    (5e-324, "4.9E-324", "4.9E-324"),
    (0.001, "0.001", "0.001"),
    (9.999e-4, "9.999E-4", "9.999E-4"),
    (9999999.0, "9999999.0", "9999999.0"),
    (1e7, "1.0E7", "1.0E7"),
    (-0.0, "-0.0", "-0.0"),
    (math.nan, "NaN", "NaN"),
    (-math.inf, "-Infinity", "-Infinity"),
]


@pytest.mark.parametrize(("value", "before", "since"), TEXTS)
def test_texts_that_both_printed(value, before, since):
    assert java_text(value, 17) == java_text(value, 18) == before
    assert java_text(value, 19) == java_text(value, 25) == since


@given(st.integers(0, 2**64 - 1), st.sampled_from([17, 25]))
def test_a_text_says_the_double_that_it_is_of(pattern, java):
    (value,) = struct.unpack(">d", struct.pack(">Q", pattern))
    text = java_text(value, java)
    assert float(text) == value or (value != value and text == "NaN")


@given(st.integers(0, 2**32 - 1), st.sampled_from([17, 25]))
def test_a_text_says_the_float_that_it_is_of(pattern, java):
    (value,) = struct.unpack(">f", struct.pack(">I", pattern))
    if value == value and not math.isinf(value):
        assert struct.pack(">f", float(java_text(value, java, single=True))) == struct.pack(">f", value)


def test_where_the_java_isnt_known_only_what_differs_is_an_error():
    unknown, decimal = Casting("ansi", None), atomic("decimal(20,0)")
    show = compile_cast(atomic("double"), atomic("string"), unknown)
    assert show(1.5) == "1.5"
    with pytest.raises(MillpondError) as refused:
        show(2.0**55)
    assert refused.value.condition == "JAVA_UNKNOWN"
    with pytest.raises(MillpondError):
        compile_cast(atomic("double"), decimal, unknown)(2.0**55)
    # The texts differ in a digit beyond those of the decimal.
    assert compile_cast(atomic("double"), atomic("decimal(20,2)"), unknown)(2.0**-44 / 3 * 1e3) is not None
    assert str(compile_cast(atomic("double"), decimal, Casting("ansi", 17))(2.0**55)) == "36028797018963968"
    assert str(compile_cast(atomic("double"), decimal, Casting("ansi", 21))(2.0**55)) == "36028797018963970"

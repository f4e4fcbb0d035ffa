"""Which of so many buckets a value lies in.

Source:  WidthBucket, mathExpressions.scala, Spark 4.3.
"""

from __future__ import annotations

import math

from millpond.scalar.casts import java_narrow
from millpond.scalar.function import INTERVALS, function, plain, takes
from millpond.schema.types import SparkType

_LONG = SparkType("long", "long")
_MAX = 2**63 - 1


def _width_bucket(value: float, low: float, high: float, count: int) -> int | None:
    value, low, high = float(value), float(low), float(high)
    if not 0 < count < _MAX or math.isnan(value) or low == high or not math.isfinite(low) or not math.isfinite(high):
        return None
    lower, upper = min(low, high), max(low, high)
    before, after = (value < lower, value >= upper) if low < high else (value > upper, value <= lower)
    if before or after:
        return 0 if before else count + 1
    gone = value - lower if low < high else upper - value
    product, width = float(count) * gone, upper - lower
    found = java_narrow(product / width, _LONG)
    assert found is not None
    return found + 1


FUNCTIONS = (function("width_bucket", plain(_width_bucket), "WidthBucket", refuse=takes(*({"double"} | INTERVALS,) * 3, {"long"})),)

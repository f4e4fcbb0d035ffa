"""State that holds the rows of each group, so that any value is computed again when a row goes.

    rows    the columns that values read -> how many rows have them
    result  the values

1. Sum the signs of equal rows of the micro-batch: rows that go and come back are no change.
2. Apply the sums to the held rows.
3. Compute all values from all rows of the group; without rows the group has no result.

PySpark hands over a large group in several calls.  After one of them a row may be held a negative
number of times, until a later call brings what it was taken from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

Held = dict[tuple[Any, ...], int]
Plan = tuple[str, tuple[int, ...], tuple[str, ...], int]
"""(function, places of its inputs, their types, the most rows of `top`)"""
_FLOATS = ("float", "double")
# More digits than a sum of decimals has.
_EXACT = Context(prec=120, rounding=ROUND_HALF_UP)
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


class HeldRows(StatefulProcessor):  # type: ignore[misc]
    """Spark's processor of all groups of a task."""

    def __init__(self, inputs: StructType, output: StructType, result: StructType, plans: Sequence[Plan], sign: str) -> None:
        self._output = Row(*output.names)
        # A struct without columns can't be a key: then all rows of a group are equal.
        self._inputs = inputs if inputs.fields else StructType([StructField("_one", LongType())])
        self._width, self._result, self._plans, self._sign = len(inputs.fields), result, plans, sign

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._rows = handle.getMapState("rows", self._inputs, StructType([StructField("times", LongType())]))
        self._values = handle.getValueState("result", self._result)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: ARG002
        changed: Held = {}
        for row in rows:  # 1
            values = tuple(_canonical(row[f"_input_{i}"]) for i in range(self._width)) or (0,)
            changed[values] = changed.get(values, 0) + row[self._sign]
        held = {tuple(map(_canonical, found)): times for found, (times,) in self._rows.iterator()}
        for values, times in changed.items():  # 2
            now = held.get(values, 0) + times
            if not times:
                continue
            if now:
                held[values] = now
                self._rows.updateValue(values, (now,))
            else:
                held.pop(values, None)
                self._rows.removeKey(values)
        if not held:
            self._values.clear()
            return
        if min(held.values()) < 0:
            return
        result = tuple(  # 3
            compute(plan, held, field.dataType) for plan, field in zip(self._plans, self._result.fields, strict=True)
        )
        self._values.update(result)
        yield self._output(*key, *result)

    def close(self) -> None:
        pass


def compute(plan: Plan, held: Held, type_: Any) -> Any:
    """One value of a group."""
    function, places, kinds, most = plan
    if function == "count" and not places:
        return sum(held.values())
    if function == "top":
        return _top(held, places, most, type_)
    place, kind = places[0], kinds[0]
    there = [(values[place], times) for values, times in held.items() if values[place] is not None]
    if function == "count":
        return sum(times for _, times in there)
    if function == "distinct":
        return len({value for value, _ in there})
    if not there:
        return None
    if function in ("min", "max"):
        choose = min if function == "min" else max
        return choose((value for value, _ in there), key=_ordered)
    count = sum(times for _, times in there)
    if kind in _FLOATS:
        total = _float_sum([value for value, times in there for _ in range(times)])
        return total if function == "sum" else total / count
    whole = sum((_EXACT.multiply(value, times) if kind == "decimal" else value * times) for value, times in there)
    if kind == "decimal":
        exact = whole if function == "sum" else _EXACT.divide(whole, Decimal(count))
        assert isinstance(type_, DecimalType)
        return _EXACT.quantize(exact, Decimal(1).scaleb(-type_.scale))
    if function == "avg":
        return float(whole) / float(count)
    if not _LEAST <= whole <= _GREATEST:
        raise OverflowError("a sum of whole numbers doesn't fit into a bigint")
    return whole


def _top(held: Held, places: tuple[int, ...], most: int, type_: Any) -> list[Row]:
    label, by = places
    rows = [(v[label], v[by]) for v, times in held.items() if v[by] is not None for _ in range(times)]
    # Stable sorts, the least important first; NULL labels come first.
    rows.sort(key=lambda row: (row[0] is not None, _ordered(row[0]) if row[0] is not None else 0))
    rows.sort(key=lambda row: _ordered(row[1]), reverse=True)
    return [Row(*type_.elementType.names)(*row) for row in rows[:most]]


def _float_sum(values: list[float]) -> float:
    """The sum rounded once, so that it doesn't depend on the order."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # infinities of both signs, or a sum beyond all floats
        return sum(values)


def _ordered(value: Any) -> Any:
    """A value in Spark's order: NaN is greater than any other number."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return value


def _canonical(value: Any) -> Any:
    """One object for values that Spark groups together: all NaN, and both zeros."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0
    return bytes(value) if isinstance(value, bytearray) else value

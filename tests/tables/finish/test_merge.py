"""Merging the buffers of parts gives those of the whole, as in Spark's own aggregates: with NULL, overflow and NaN."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.checkpoint.rows.unsaferow import encoder
from millpond.errors import MillpondError
from millpond.schema.definition.expression import Expression
from millpond.schema.definition.parts import why_not_merged
from millpond.schema.types import Field, SparkType, atomic, parse_type
from millpond.tables.finish.aggregate import compile_aggregate
from millpond.tables.finish.merge_buffers import compile_buffers

ARRAY = {"type": "array", "elementType": "double", "containsNull": True}
LONG, DOUBLE, BOOLEAN = atomic("long"), atomic("double"), atomic("boolean")
WIDE = parse_type("decimal(38,2)")
MOST = Decimal("9" * 36 + ".99")


def merge(function: str, types: list[SparkType], *parts: Any, **options: Any) -> list[Any]:
    given = {"function": function, "buffers": list(range(len(types))), **options}
    expression = Expression("aggregate", options.pop("type", types[0]), options={k: v for k, v in given.items() if k != "type"})
    assert why_not_merged(expression, types) is None
    return list(compile_buffers(expression, types)(parts))


def test_sums_of_whole_numbers_overflow_as_their_mode_says() -> None:
    top = (1 << 63) - 1
    assert merge("sum", [LONG], [None], [5], [None], mode="ansi") == [5]
    assert merge("sum", [LONG], [None], [None], mode="ansi") == [None]
    assert merge("sum", [LONG], [top], [1], mode="legacy") == [-top - 1]
    assert merge("sum", [LONG, BOOLEAN], [top, False], [1, False], mode="try") == [None, False]
    with pytest.raises(MillpondError, match="overflows"):
        merge("sum", [LONG], [top], [1], mode="ansi")


def test_sums_of_decimals_keep_all_digits_and_their_overflow() -> None:
    def sums(*parts: Any) -> list[Any]:
        return merge("sum", [WIDE, BOOLEAN], *parts, mode="ansi")

    cent = Decimal("0.01")
    assert sums([MOST, False], [-cent, False]) == [Decimal("9" * 36 + ".98"), False]
    assert sums([MOST, False], [cent, False]) == [None, False]
    # An overflow of a part stays, whatever is added.
    assert sums([None, False], [cent, False]) == [None, False]
    assert sums([Decimal("0.00"), True], [cent, False]) == [cent, False]
    assert sums([Decimal("0.00"), True], [Decimal("0.00"), True]) == [Decimal("0.00"), True]


def test_averages_are_those_of_all_values() -> None:
    assert merge("avg", [DOUBLE, LONG], [6.0, 3], [0.0, 0], [1.5, 1], mode="ansi") == [7.5, 4]
    assert merge("avg", [WIDE, LONG], [None, 3], [MOST, 1], mode="ansi") == [None, 4]


def test_extremes_go_by_sparks_order() -> None:
    assert merge("max", [DOUBLE], [1.0], [math.nan], [math.inf])[0] != merge("max", [DOUBLE], [1.0], [math.inf])[0]
    assert merge("min", [DOUBLE], [math.nan], [None], [1.0]) == [1.0]
    text = atomic("string")
    assert merge("max", [text], ["é"], ["z"], [None]) == ["é"]
    assert merge("max", [text], ["\U00010000"], ["\uffff"]) == ["\U00010000"]  # ordered by bytes of UTF-8, not by code units
    assert merge("min", [LONG], [None], [None]) == [None]
    assert merge("max_by", [text, LONG], ["a", 1], ["b", None], [None, 3]) == [None, 3]
    assert merge("min_by", [text, LONG], [None, None], ["b", 2]) == ["b", 2]


@given(st.lists(st.lists(st.floats(), max_size=6), min_size=1, max_size=5), st.integers(1, 8), st.booleans())
def test_the_highest_and_lowest_are_those_of_all_values(parts: list[list[float]], k: int, highest: bool) -> None:
    function, types = "max_by_k" if highest else "min_by_k", [parse_type(ARRAY), parse_type(ARRAY), atomic("binary")]
    options = {"ordered_by": "double", "type": types[0]}
    kept = [top_of([(x, x) for x in part], k, highest) for part in parts]
    merged = merge(function, types, *kept, **options)
    expression = Expression("aggregate", types[0], options={"function": function, "buffers": [0, 1, 2], "ordered_by": "double"})
    best = sorted((x for part in parts for x in part), key=lambda x: (math.isnan(x), x), reverse=highest)[:k]
    found = compile_aggregate(expression)(merged)
    assert (found is None) if not best else found == pytest.approx(best, rel=0, abs=0, nan_ok=True)
    assert [len(merged[0]), len(merged[1]), len(merged[2])] == [k, k, 4 * (k + 1)]
    # Merging again changes nothing, and neither does a part without a value.
    assert compile_aggregate(expression)(merge(function, types, merged, top_of([], k, highest), **options)) == compile_aggregate(
        expression
    )(merged)


# The order of the addends decides the last digits: this is the error, relative to the sum of absolute values.
CLOSE = 1e-12


def deviations(values: list[int]) -> tuple[list[float], float]:
    """The distance of each from the mean, and the largest distance: the scale for errors of sums of such powers."""
    mean = Fraction(sum(values), len(values)) if values else Fraction(0)
    return [float(abs(x - mean)) for x in values], float(max(map(abs, values), default=0))


def top_of(pairs: list[tuple[Any, Any]], k: int, highest: bool) -> list[Any]:
    """The buffer of one part, in no order."""
    kept = sorted(pairs, key=lambda pair: (math.isnan(pair[1]), pair[1]), reverse=highest)[:k][::-1]
    empty = [None] * (k - len(kept))
    return [[x for x, _ in kept] + empty, [by for _, by in kept] + empty, struct.pack(f"<{k + 1}i", len(kept), *range(k))]


def test_a_heap_that_claims_more_than_there_is_is_damage() -> None:
    options = {"function": "max_by_k", "buffers": [0, 1, 2], "ordered_by": "long"}
    finish = compile_aggregate(Expression("aggregate", parse_type(ARRAY), options=options))
    with pytest.raises(MillpondError) as damaged:
        finish([[1, None], [1, None], struct.pack("<3i", 3, 0, 1)])
    assert damaged.value.condition == "CORRUPT_FILE"


@given(st.lists(st.lists(st.integers(-1000, 1000), max_size=6), min_size=1, max_size=5))
def test_moments_are_those_of_all_values(parts: list[list[int]]) -> None:
    values = [x for part in parts for x in part]
    merged = merge("kurtosis", [DOUBLE] * 5, *(moments(part) for part in parts))
    off, most = deviations(values)
    assert merged[0] == len(values)
    for power, (found, expected) in enumerate(zip(merged[1:], moments(values)[1:], strict=True), 1):
        assert abs(found - expected) <= CLOSE * most * (sum(x ** (power - 1) for x in off) if power > 1 else 1)


@given(st.lists(st.lists(st.tuples(st.integers(-99, 99), st.integers(-99, 99)), max_size=6), min_size=1, max_size=5))
def test_regressions_are_those_of_all_pairs(parts: list[list[tuple[int, int]]]) -> None:
    def buffers(pairs: list[tuple[int, int]]) -> list[float]:
        n, xs, ys = len(pairs), [x for x, _ in pairs], [y for _, y in pairs]
        mean_x, mean_y = (Fraction(sum(v), n) if n else Fraction(0) for v in (xs, ys))
        together = float(sum((x - mean_x) * (y - mean_y) for x, y in pairs))
        return [float(n), float(mean_x), float(mean_y), together, *moments(xs)[:3]]

    pairs = [pair for part in parts for pair in part]
    merged, expected = merge("regr_slope", [DOUBLE] * 7, *(buffers(part) for part in parts)), buffers(pairs)
    (off_x, most_x), (off_y, most_y) = (deviations([pair[i] for pair in pairs]) for i in (0, 1))
    assert (merged[0], merged[4]) == (expected[0], expected[4]) == (len(pairs), len(pairs))
    scales = {1: most_x, 2: most_y, 3: most_x * sum(off_y) + most_y * sum(off_x), 5: most_x, 6: most_x * sum(off_x)}
    for place, scale in scales.items():
        assert abs(merged[place] - expected[place]) <= CLOSE * scale


def test_products_pass_over_parts_without_a_value() -> None:
    assert merge("product", [DOUBLE], [2.0], [None], [-0.5]) == [-1.0]
    assert merge("product", [DOUBLE], [None], [None]) == [None]


@given(st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=4), st.integers(1, 4), st.booleans())
def test_of_ties_those_are_kept_that_spark_keeps(parts: list[list[int]], k: int, highest: bool) -> None:
    """A value is its position in the input.  The oracle is a second way to write a heap filled one by one, and a heap of heaps."""
    function, types = "max_by_k" if highest else "min_by_k", [parse_type(ARRAY), parse_type(ARRAY), atomic("binary")]
    order = {"ordered_by": "long", "type": types[0]}
    numbered, at = [], 0
    for part in parts:
        numbered.append([(at + i, by) for i, by in enumerate(part)])
        at += len(part)
    none = [[None] * k, [None] * k, struct.pack(f"<{k + 1}i", *[0] * (k + 1))]
    filled = []
    for part in numbered:
        single = [[[v] + [None] * (k - 1), [by] + [None] * (k - 1), struct.pack(f"<{k + 1}i", 1, *[0] * k)] for v, by in part]
        filled.append(merge(function, types, none, *single, **order))
        assert kept(filled[-1], highest) == java_heap(part, k, highest)
    both = merge(function, types, *filled, **order)
    assert kept(both, highest) == java_heap([pair for part in filled for pair in java_heap_pairs(part)], k, highest)


def java_heap_pairs(buffers: list[Any]) -> list[tuple[Any, Any]]:
    values, orderings, heap = buffers
    size, *places = struct.unpack(f"<{len(heap) // 4}i", heap)
    return [(values[place], orderings[place]) for place in places[:size]]


def kept(buffers: list[Any], highest: bool) -> list[Any]:
    options = {"function": "max_by_k" if highest else "min_by_k", "buffers": [0, 1, 2], "ordered_by": "long"}
    return compile_aggregate(Expression("aggregate", parse_type(ARRAY), options=options))(buffers) or []


def java_heap(pairs: list[tuple[Any, Any]], k: int, highest: bool) -> list[Any]:
    """The values after MaxMinByKHeap.insert of each pair, as in Spark 4.3, and a stable sort of the heap."""
    sign, heap = (1 if highest else -1), []
    for pair in pairs:
        if len(heap) < k:
            heap.append(pair)
            at = len(heap) - 1
            while at and sign * heap[at][1] < sign * heap[(at - 1) // 2][1]:
                heap[at], heap[(at - 1) // 2], at = heap[(at - 1) // 2], heap[at], (at - 1) // 2
        elif sign * pair[1] > sign * heap[0][1]:
            heap[0], at = pair, 0
            while 2 * at + 1 < len(heap):
                left, right = 2 * at + 1, 2 * at + 2
                child = right if right < len(heap) and sign * heap[right][1] < sign * heap[left][1] else left
                if sign * heap[at][1] <= sign * heap[child][1]:
                    break
                heap[at], heap[child], at = heap[child], heap[at], child
    return [value for value, _ in sorted(heap, key=lambda pair: -sign * pair[1])]


def counts_of(*pairs: tuple[float, int]) -> bytes:
    encode = encoder((Field("key", DOUBLE), Field("count", LONG)))
    rows = [encode(pair) for pair in pairs]
    return b"".join(len(row).to_bytes(4, "big") + row for row in rows) + b"\xff" * 4


def test_counts_of_parts_are_added_and_zeros_stay_apart() -> None:
    binary = atomic("binary")
    options = {"of": "double", "percentages": [0.5], "reverse": False, "type": DOUBLE}
    merged = merge("percentile", [binary], [counts_of((1.0, 2), (-0.0, 1))], [None], [counts_of((0.0, 3), (1.0, 4))], **options)
    assert merged == [counts_of((1.0, 6), (-0.0, 1), (0.0, 3))]


def test_samples_of_few_values_are_all_of_them() -> None:
    def samples(*values: float) -> bytes:
        whole = struct.pack(">idqi", 10000, 0.0001, len(values), len(values))
        return whole + b"".join(struct.pack(">dqq", value, 1, 0) for value in values)

    options = {"of": "double", "percentages": [0.5], "type": DOUBLE}
    merged = merge("percentile_approx", [atomic("binary")], [samples(1.0, 4.0)], [samples()], [samples(2.0, 3.0)], **options)
    assert merged == [samples(1.0, 2.0, 3.0, 4.0)]


@pytest.mark.parametrize("function", ["percentile", "mode", "percentile_approx", "histogram_numeric"])
@given(data=st.binary(min_size=1, max_size=60))
def test_damaged_bytes_are_a_value_or_an_error_that_says_so(function: str, data: bytes) -> None:
    bins = {"type": "array", "elementType": {"type": "struct", "fields": [
        {"name": name, "type": "double", "nullable": True, "metadata": {}} for name in "xy"]}, "containsNull": True}  # fmt: skip
    options = {"function": function, "buffers": [0], "of": "double", "percentages": [0.5], "reverse": False, "takes": "any"}
    finish = compile_aggregate(Expression("aggregate", parse_type(bins) if "histogram" in function else DOUBLE, options=options))
    try:
        finish([data])
    except MillpondError as damaged:
        assert damaged.condition == "CORRUPT_FILE"


def moments(values: list[int]) -> list[float]:
    n = len(values)
    mean = Fraction(sum(values), n) if n else Fraction(0)
    return [float(n), float(mean), *(float(sum((x - mean) ** k for x in values)) for k in (2, 3, 4))]


@given(st.lists(st.integers(0, 63), min_size=20, max_size=20), st.lists(st.integers(0, 63), min_size=20, max_size=20))
def test_registers_are_the_greater_of_each(a: list[int], b: list[int]) -> None:
    def words(registers: list[int]) -> list[int]:
        return [sum(r << 6 * i for i, r in enumerate(registers[at : at + 10])) for at in (0, 10)]

    assert merge("approx_count_distinct", [LONG, LONG], words(a), words(b)) == words([max(p) for p in zip(a, b, strict=True)])


@pytest.mark.parametrize(
    ("function", "types"),
    [
        ("first", [LONG]),
        ("avg", [LONG]),
        ("sum", [atomic("string")]),
        ("last", [LONG]),
        ("min", [parse_type("string collate UTF8_LCASE")]),
        ("max", [parse_type("interval")]),
        ("min", [parse_type({"type": "array", "elementType": "string collate UTF8_LCASE", "containsNull": True})]),
        ("histogram_numeric", [atomic("binary")]),
    ],
)
def test_what_has_no_meaning_together_is_refused(function: str, types: list[SparkType]) -> None:
    assert why_not_merged(
        Expression("aggregate", types[0], options={"function": function, "buffers": list(range(len(types)))}), types
    )

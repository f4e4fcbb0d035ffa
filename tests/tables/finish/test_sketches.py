"""Sketches without Spark: against the library of their own project, and damaged."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections import Counter
from typing import Any

import datasketches
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import MillpondError
from millpond.scalar.sketch.kll import SortedItems, merge_kll, rank_error, read_kll
from millpond.scalar.sketch.library import hll_estimate, merge_hll, merge_theta, theta_estimate
from millpond.schema.definition.expression import Expression
from millpond.schema.types import atomic
from millpond.tables.finish.buffers.items import TopItems
from suite.sizes import examples

EMPTY_ITEMS = bytes([1, 1, 10, 4, 3, 5, 0, 0]) + struct.pack(">q", 0)


def kll_of(values: list[float], k: int = 20) -> bytes:
    sketch = datasketches.kll_doubles_sketch(k)
    for value in values:
        sketch.update(value)
    return sketch.serialize()


def hll_of(values: range, lg_k: int = 8) -> bytes:
    sketch = datasketches.hll_sketch(lg_k, datasketches.tgt_hll_type.HLL_8)
    for value in values:
        sketch.update(value)
    return sketch.serialize_updatable()


def theta_of(values: range) -> bytes:
    sketch = datasketches.update_theta_sketch(6)
    for value in values:
        sketch.update(value)
    return sketch.compact().serialize()


def top(k: int, of: str = "long") -> TopItems:
    return TopItems(Expression("aggregate", atomic("binary"), options={"of": atomic(of).to_json(), "k": k}))


def items_of(counts: dict[int, int], lg_most: int = 4, nulls: int = 0) -> bytes:
    """A sketch that never was full."""
    lg_now = max(3, next(lg for lg in range(30) if 0.75 * (1 << lg) >= len(counts)))
    head = struct.pack("<BBBBBB2xI4xqq", 4, 1, 10, lg_most, lg_now, 0, len(counts), sum(counts.values()), 0)
    return (
        head
        + struct.pack(f"<{len(counts)}q", *counts.values())
        + struct.pack(f"<{len(counts)}q", *counts)
        + struct.pack(">q", nulls)
    )


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=300), min_size=1, max_size=6))
def test_a_union_of_quantiles_has_all_values_and_says_how_exact_it_is(parts: list[list[float]]) -> None:
    merged = read_kll(merge_kll([kll_of(part) for part in parts], "double"), "double")
    seen = sorted(value for part in parts for value in part)
    assert merged.n == len(seen)
    if not seen:
        return
    assert (merged.least, merged.most) == (seen[0], seen[-1])
    items, error = SortedItems(merged), 2 * rank_error(20) + 1 / len(seen)
    for rank in (0.0, 0.1, 0.5, 0.9, 1.0):
        value = items.quantile(rank)
        below, upto = sum(v < value for v in seen) / len(seen), sum(v <= value for v in seen) / len(seen)
        assert below - error <= rank <= upto + error


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5), st.randoms())
def test_unions_of_distinct_counts_are_those_of_all_values(sizes: list[int], draw: random.Random) -> None:
    ranges = [range(start, start + size) for size in sizes for start in [draw.randrange(2000)]]
    count = len({value for each in ranges for value in each})
    for estimate, merged in (
        (hll_estimate, merge_hll([hll_of(each) for each in ranges])),
        (theta_estimate, merge_theta([theta_of(each) for each in ranges], 6)),
    ):
        found = estimate(merged)
        assert found.lower <= found.value <= found.upper
        # Six standard deviations.
        assert found.value - 3 * (found.value - found.lower) - 1 <= count <= found.value + 3 * (found.upper - found.value) + 1


@given(st.lists(st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.integers(1, 99), max_size=12), min_size=1, max_size=5))
def test_unions_of_frequent_items_never_claim_what_is_not_so(parts: list[dict[int, int]]) -> None:
    (merged,) = top(5).merge([[items_of(part)] for part in parts])
    true = sum(map(Counter, parts), Counter())
    found = top(5).counted(merged)
    for item, least, most in found:
        assert least <= true[item] <= most
    if len(true) <= 12:
        assert [most for _, _, most in found] == sorted(true.values(), reverse=True)[:5]
        # Nothing was dropped, so that another order gives the same.
        (other,) = top(12).merge([[items_of(part)] for part in parts[::-1]])
        assert dict(top(12).values(other)) == dict(true)


def test_nulls_are_an_item() -> None:
    (merged,) = top(2).merge([[items_of({1: 5, 2: 1}, nulls=2)], [items_of({2: 1}, nulls=3)], [EMPTY_ITEMS]])
    assert top(2).values(merged) == [(1, 5), (None, 5)]
    assert top(2).values(EMPTY_ITEMS) == []


def test_damaged_sketches_are_an_error_or_a_value() -> None:
    """In this process: a crash of the library would end the run."""
    draw, seen = random.Random(9), Counter[str]()
    readers: list[tuple[bytes, Any]] = [
        *((hll_of(range(n)), lambda d: merge_hll([d, d]) and hll_estimate(d)) for n in (0, 1, 5, 40, 3000)),
        *((theta_of(range(n)), lambda d: merge_theta([d, d], 6) and theta_estimate(d)) for n in (0, 1, 30, 3000)),
        *((kll_of([draw.random() for _ in range(n)]), quantiles) for n in (0, 1, 19, 500)),
        (items_of({n: n + 1 for n in range(11)}, nulls=1), lambda d: top(3).merge([[d], [d]]) and top(3).values(d)),
    ]
    for whole, read in readers:
        read(whole)
        for _ in range(examples(800)):
            data = bytearray(whole)
            for _ in range(draw.choice((1, 1, 2, 8))):
                data[draw.randrange(min(len(data), draw.choice((8, 40, 10_000))))] = draw.randrange(256)
            broken = bytes(data[: draw.choice((len(data), len(data), draw.randrange(len(data) + 1)))])
            try:
                read(broken)
                seen["a value"] += 1
            except MillpondError as error:
                assert error.condition in ("CORRUPT_FILE", "SKETCHES_DIFFER", "VALUE_OUT_OF_RANGE"), error
                seen[error.condition] += 1
    assert min(seen["a value"], seen["CORRUPT_FILE"]) > 100


def quantiles(data: bytes) -> None:
    merged = read_kll(merge_kll([data, data], "double"), "double")
    if merged.n:
        SortedItems(merged).quantile(0.5)


def test_without_the_library_the_error_says_how_to_get_it() -> None:
    """Quantiles and frequent items need none."""
    program = """
import sys
sys.modules["datasketches"] = None
from millpond.errors import MillpondError
from millpond.scalar.sketch.library import hll_estimate
from millpond.scalar.sketch.kll import read_kll
assert read_kll(bytes.fromhex("02010f01c8000800"), "double").n == 0
try:
    hll_estimate(bytes.fromhex("0201070c03000108c7849e1400000000000000000000000000000000000000000000000000000000"))
except MillpondError as error:
    print(error.condition, error.hint)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "SKETCHES_LIBRARY_MISSING Run: pip install 'millpond[sketches]'\n"


@pytest.mark.parametrize("of", ["integer", "short", "byte", "float", "double", "boolean", "date", "string"])
def test_items_of_each_type_are_written_as_they_are_read(of: str) -> None:
    draw = random.Random(of)
    make = {
        "float": lambda: struct.unpack("<f", struct.pack("<f", draw.gauss(0, 9)))[0], "double": lambda: draw.gauss(0, 9),
        "boolean": lambda: draw.random() < 0.5, "string": lambda: "".join(draw.choices("aü𝄞\0", k=draw.randrange(5))),
    }.get(of, lambda: draw.randrange(-128, 128))  # fmt: skip
    function = top(40, of)
    for _ in range(20):
        items = {make(): draw.randint(1, 9) for _ in range(draw.randint(1, 9))}
        sketch = items_of(dict(enumerate(items.values())))
        data = sketch[: 32 + 8 * len(items)] + function._codec.write(list(items)) + struct.pack(">q", 0)
        (merged,) = function.merge([[data], [data]])
        assert dict(function.values(merged)) == {item: 2 * count for item, count in items.items()}

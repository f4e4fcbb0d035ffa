"""Percentiles of change and the keys that differ most, against all changes sorted."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction

import pytest

from millpond.tables.diff.compare import Counts, RowDiff
from millpond.tables.diff.read import TableDiff
from millpond.tables.versions.difference import _Summary, relative_change


def exact(old, new) -> float:
    before, now = Fraction(old), Fraction(new)
    greater = max(abs(before), abs(now))
    return float(abs(now - before) / greater) if greater else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_ranks_of_all_rows_and_the_top_is_the_top(seed: int) -> None:
    chance = random.Random(seed)
    rows = chance.randrange(50, 400)
    summary, every, counts = _Summary(7), [], Counts()
    for number in range(rows):
        old = chance.choice((0, chance.randrange(-50, 50), chance.uniform(-1e9, 1e9), Decimal(chance.randrange(99)) / 7))
        new = chance.choice((old, chance.randrange(-50, 50), chance.uniform(-1e-9, 1e9)))
        if new == old:
            counts.same += 1
            every.append((0.0, number))
            continue
        counts.changed += 1
        every.append((exact(old, new), number))
        summary.add(RowDiff(kind="changed", key={"k": number}, old={"v": old}, new={"v": new}, columns=("v",)))
    table = TableDiff(table="t", right_table="t", counts=counts, columns=("v",), only_left=(), only_right=(), retyped=(), rows=())
    (found,) = summary.columns(table)
    ordered = sorted(change for change, _ in every)
    for percent, value in ((50, found.p50), (90, found.p90), (99, found.p99), (100, found.most)):
        assert value == pytest.approx(ordered[math.ceil(rows * percent / 100) - 1])
    assert (found.changed, found.is_exact) == (counts.changed, True)
    top = sorted(every, reverse=True, key=lambda each: each[0])[:7]
    assert [each.change for each in summary.most()] == pytest.approx([change for change, _ in top])


def test_what_isnt_a_number_or_isnt_finite() -> None:
    inf, nan = math.inf, math.nan
    assert [relative_change(*pair) for pair in ((None, 3), (3, None), (nan, 3), (inf, -inf), (10**400, 1))] == [1.0] * 5
    assert [relative_change(*pair) for pair in ((nan, nan), (inf, inf), (0, 0), (0.0, -0.0))] == [0.0] * 4
    assert [relative_change(*pair) for pair in (("a", "b"), (True, False), (None, None), ([1], [2]), ("1", 1))] == [None] * 5
    assert relative_change(1e308, -1e308) == 2.0
    assert relative_change(2**63, 2**63 - 1) == 0.0

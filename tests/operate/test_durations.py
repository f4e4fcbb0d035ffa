"""Durations in buckets, held against the durations themselves."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.operate.durations import BUCKETS, Durations
from suite.sizes import examples

seconds = st.one_of(st.floats(0, 0.01), st.floats(0, 60), st.sampled_from(BUCKETS))
series = st.lists(seconds, max_size=200)


def counted(durations: list[float]) -> Durations:
    ends = [bisect_left(BUCKETS, each) for each in durations]
    return Durations([ends.count(place) for place in range(len(BUCKETS) + 1)], sum(durations))


@settings(deadline=None, max_examples=examples(400))
@given(series, st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(durations: list[float], share: float) -> None:
    found = counted(durations).quantile(share)
    if not durations:
        assert found is None
        return
    assert found is not None
    place = min(n for n in range(len(durations)) if (n + 1) >= share * len(durations))
    true = bisect_left(BUCKETS, sorted(durations)[place])
    if true == len(BUCKETS):
        assert found == BUCKETS[-1]
    else:
        assert (BUCKETS[true - 1] if true else 0.0) <= found <= BUCKETS[true]


@settings(deadline=None, max_examples=examples(200))
@given(series, series)
def test_two_parts_are_the_whole(first: list[float], second: list[float]) -> None:
    whole, before = counted(first), counted(first)
    whole.join(counted(second))
    assert whole.buckets == counted(first + second).buckets
    assert whole.count == len(first) + len(second)
    assert whole.since(before).buckets == counted(second).buckets
    assert before.buckets == counted(first).buckets

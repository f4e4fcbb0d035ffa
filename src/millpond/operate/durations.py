"""How long things took, counted in buckets."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

# Upper ends of the buckets, in seconds.
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def _nothing() -> list[int]:
    return [0] * (len(BUCKETS) + 1)


class Durations(msgspec.Struct):
    """So many durations of each length.

    buckets:  how many end in each bucket, and in one more above the last
    seconds:  the sum of all
    """

    buckets: list[int] = msgspec.field(default_factory=_nothing)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.buckets)

    def add(self, seconds: float, times: int = 1) -> None:
        """Count one more, or several that were as long each."""
        self.buckets[bisect_left(BUCKETS, seconds)] += times
        self.seconds += seconds * times

    def join(self, other: Durations) -> Durations:
        """Count all of the other ones, too, and return these."""
        self.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        self.seconds += other.seconds
        return self

    def since(self, before: Durations) -> Durations:
        """Those that came after an earlier state of the same counts."""
        return Durations([a - b for a, b in zip(self.buckets, before.buckets, strict=True)], self.seconds - before.seconds)

    def quantile(self, share: float) -> float | None:
        """So that this share took at most so many seconds; None if there are none.

        As Prometheus' `histogram_quantile` estimates it: durations lie evenly in their bucket, and
        those above the last one count as its end.
        """
        wanted = share * self.count
        below, begin = 0, 0.0
        for number, end in zip(self.buckets, BUCKETS, strict=False):
            if number and below + number >= wanted:
                return min(end, begin + (end - begin) * (wanted - below) / number)  # sums of floats may exceed the end
            below, begin = below + number, end
        return BUCKETS[-1] if self.count else None

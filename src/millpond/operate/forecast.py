"""When a job's state meets a limit, by its samples, and how sure that is.

1. The samples' span is cut into twelve blocks of equal length; of each block the median counts.  So
   what goes up and down within a block, as files do between two snapshots, is no growth.
2. The growth is the slope of the straight line nearest to these medians.  It lies between the two
   ends of the interval in nine cases of ten, if the growth is steady (Student's t).
3. A limit is met where the line crosses it; at the earliest and the latest, where the two ends of the
   line's interval do, which opens with the distance from the samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from millpond.operate.sample import Sample

Fact = Literal["state_bytes", "state_rows"]
BLOCKS = 12
LEAST_SECONDS = 6 * 3600
_LEAST_BLOCKS = 8
# Student's t, 95 %, for as many degrees of freedom: blocks without two.
_T = {6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833, 10: 1.812}
_DAY = 86_400
# Nobody asks for what comes later.
_MOST_DAYS = 3650


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The growth of one fact of a job.

    job:         its name
    fact:        state_bytes or state_rows
    samples:     how many it goes by
    span_seconds: from the first to the last of them
    now:         by the line, at the newest sample
    per_day, per_day_low, per_day_high: the growth a day, and the ends of its interval
    limit:       the limit that was asked for; None without one
    reaches_ms, earliest_ms, latest_ms: when the limit is met, by the line and by the ends of its
                 interval, in milliseconds since 1970; the moment of the newest sample if it is met
                 already, None if that doesn't happen within ten years
    """

    job: str
    fact: Fact
    samples: int
    span_seconds: float
    now: float
    per_day: float
    per_day_low: float
    per_day_high: float
    limit: float | None = None
    reaches_ms: int | None = None
    earliest_ms: int | None = None
    latest_ms: int | None = None


Point = tuple[float, float]
"""a moment in seconds since 1970, and a value"""


def growth_of(points: Sequence[Point]) -> Line | None:
    """The line through the medians of points, oldest first; None if these are of less than six hours, or too few."""
    if not points or points[-1][0] - points[0][0] < LEAST_SECONDS:
        return None
    medians = _medians(points)
    return Line(medians) if len(medians) >= _LEAST_BLOCKS else None


def forecast_of(job: str, samples: Sequence[Sample], fact: Fact, limit: float | None = None) -> Forecast | None:
    """The growth of a fact; None if the samples are of less than six hours, or too few of them say it.

    samples:  oldest first
    limit:    bytes or rows
    """
    points = [(sample.at_ms / 1000, float(value)) for sample in samples if (value := getattr(sample, fact)) is not None]
    line = growth_of(points)
    if line is None:
        return None
    at_ms, end = int(points[-1][0] * 1000), points[-1][0]
    found = Forecast(
        job=job,
        fact=fact,
        samples=len(points),
        span_seconds=end - points[0][0],
        now=max(0.0, line.at(end)),
        per_day=line.slope * _DAY,
        per_day_low=(line.slope - line.slope_error) * _DAY,
        per_day_high=(line.slope + line.slope_error) * _DAY,
    )
    if limit is None:
        return found
    moments = [line.meets(limit, end, side) for side in (0, 1, -1)]
    reaches, earliest, latest = (None if after is None else at_ms + int(after * 1000) for after in moments)
    return msgspec.structs.replace(found, limit=limit, reaches_ms=reaches, earliest_ms=earliest, latest_ms=latest)


class Line:
    """The straight line nearest to some points, and how sure it is.

    points:       the medians
    slope:        its growth a second; the interval goes as far as `slope_error` to both sides
    """

    def __init__(self, points: Sequence[Point]) -> None:  # 2
        self.points = tuple(points)
        times, values = [at for at, _ in points], [value for _, value in points]
        self.slope, self._intercept = statistics.linear_regression(times, values)
        free = len(points) - 2
        rest = sum((value - self.at(at)) ** 2 for at, value in points) / free
        self._mean, self._count = statistics.fmean(times), len(points)
        self._spread = sum((at - self._mean) ** 2 for at in times)
        self._error = _T[free] * rest**0.5
        self.slope_error = self._error / self._spread**0.5

    def at(self, moment: float, side: int = 0) -> float:
        """Its value; with side 1 or -1 the upper or lower end of its interval there."""
        error = self._error * (1 / self._count + (moment - self._mean) ** 2 / self._spread) ** 0.5 if side else 0.0
        return self.slope * moment + self._intercept + side * error

    def meets(self, limit: float, start: float, side: int) -> float | None:  # 3
        """How many seconds after `start` it is at the limit first; None if not within ten years."""
        if self.at(start) >= limit:
            return 0.0
        days = next((day for day in range(_MOST_DAYS + 1) if self.at(start + day * _DAY, side) >= limit), None)
        if not days:
            return None if days is None else 0.0
        low, high = (days - 1.0) * _DAY, float(days * _DAY)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.at(start + middle, side) >= limit else (middle, high)
        return high


def _medians(points: Sequence[Point]) -> list[Point]:  # 1
    """The median of each block that has samples, at the mean of their times."""
    first, length = points[0][0], (points[-1][0] - points[0][0]) / BLOCKS
    blocks: dict[int, list[Point]] = {}
    for at, value in points:
        blocks.setdefault(min(BLOCKS - 1, int((at - first) / length)), []).append((at, value))
    return [
        (statistics.fmean(at for at, _ in block), statistics.median(value for _, value in block))
        for _, block in sorted(blocks.items())
    ]

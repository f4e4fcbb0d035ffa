"""What reads of buckets return: rows, with their span, the resolutions used, and how exact values are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from millpond.schema.far_time import FarTime
from millpond.tables.answer import Cut, Row, Rows
from millpond.tables.finish.estimates import Estimate

Time = dt.datetime | FarTime


class Used(NamedTuple):
    """Buckets that an answer merges: those of one resolution from `since` on and before `until`.

    rows:  how many of them the group has
    """

    resolution: str
    since: Time
    until: Time
    rows: int


class Span(NamedTuple):
    """Of what time an answer is, and which buckets it merges: as the members of `Total`."""

    since: Time | None
    until: Time | None
    used: tuple[Used, ...]


class Total(Row):
    """One row for a group: the merged buckets of a span.  Empty if the group has no event in it.

    since, until:  the span, which may be longer than the one in the question: it begins and ends
                   with a bucket; None if the group has no bucket
    used:          which buckets
    estimates:     column -> between which values the true one lies, of columns that are estimates
    """

    __slots__ = ("estimates", "since", "until", "used")

    since: Time | None
    until: Time | None
    used: tuple[Used, ...]
    estimates: Mapping[str, Estimate]

    @classmethod
    def of(cls, values: Any, cut: Cut, span: Span, estimates: Mapping[str, Estimate] | None = None) -> Self:
        """The row of a span."""
        total = cls(values, cut)
        total.since, total.until, total.used = span
        total.estimates = estimates or {}
        return total


class Series(Rows):
    """A row for each step of a span in which the group has events, in the order of time.

    since, until, used:  as for `Total`
    """

    since: Time | None
    until: Time | None
    used: tuple[Used, ...]

    @classmethod
    def of(cls, rows: Iterable[Total], cut: Cut, span: Span) -> Self:
        """The rows of a span."""
        series = cls(rows, cut)
        series.since, series.until, series.used = span
        return series

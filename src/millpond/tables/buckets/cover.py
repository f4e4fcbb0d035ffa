"""Which buckets make up a span of time: as few as possible, so the longest that fit.

1. Where the span's ends aren't ends of buckets, it becomes longer: each end moves outwards to the
   next end of the shortest bucket that is still kept there.
2. The longest resolution takes the middle of the span; the next one takes what is left at both
   sides; and so on.
3. Before shorter buckets are kept, there are longer ones only: the shorter ones are used from the
   end of such a longer one on, so that every span of whole buckets can be made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millpond.scalar.time.zones import Zone
from millpond.schema.definition.resolutions import Resolution
from millpond.tables.kept.calendar import Calendar


class Piece(NamedTuple):
    """The buckets of one resolution from `start` on and before `end`, in microseconds."""

    resolution: Resolution
    start: int
    end: int


class Cover:
    """The buckets of one table at one watermark, from the shortest to the longest.

    watermark:  in microseconds, None without one
    """

    def __init__(self, each: Sequence[Resolution], zone: Zone, watermark: int | None) -> None:
        self._each: list[tuple[Calendar, int | None]] = []
        for resolution in reversed(each):
            calendar = Calendar(resolution, zone)
            kept = calendar.kept_from(watermark)
            longer = None if kept is None else self._shortest(kept - 1)
            if longer is not None and kept is not None:  # 3
                kept = longer.up(kept)
            self._each.insert(0, (calendar, kept))

    @property
    def kept_from(self) -> int | None:
        """From when on every instant lies in a bucket that is kept; None if that is always so."""
        starts = [start for _, start in self._each]
        return None if None in starts else min(start for start in starts if start is not None)

    def down(self, micros: int) -> int | None:
        """The start of the shortest kept bucket that has this instant; None if all have expired."""
        calendar = self._shortest(micros)
        return None if calendar is None else calendar.start(micros)

    def up(self, micros: int) -> int | None:
        """The end of the shortest kept bucket that has the instant before this one; None if all have expired."""
        calendar = self._shortest(micros - 1)
        return None if calendar is None else calendar.up(micros)

    def pieces(self, start: int, end: int) -> list[Piece]:
        """The buckets between two ends of kept buckets, in the order of time."""
        return self._pieces(start, end, len(self._each))

    def _pieces(self, start: int, end: int, allowed: int) -> list[Piece]:
        if start >= end:
            return []
        for place in reversed(range(allowed)):
            calendar, kept = self._each[place]
            first = calendar.up(start if kept is None else max(start, kept))
            last = calendar.start(end)
            if first < last:
                before, after = self._pieces(start, first, place), self._pieces(last, end, place)
                return [*before, Piece(calendar.resolution, first, last), *after]
        raise ValueError(f"no bucket that is kept begins at {start}")

    def _shortest(self, micros: int) -> Calendar | None:
        return next((c for c, kept in self._each if kept is None or micros >= kept), None)

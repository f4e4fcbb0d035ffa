"""Where the buckets of one resolution begin and end, and which of them have expired.

All times are microseconds since 1970 UTC.  Seconds and minutes are cut from the time itself; hours
and longer units from the local time of the table's zone.  A day with two midnights begins at the
first.
"""

from __future__ import annotations

from millpond.scalar.time.calendar import DAY_MICROS, MICROS, add_months
from millpond.scalar.time.functions import offset_back, truncate_date
from millpond.scalar.time.zones import Zone
from millpond.schema.definition.resolutions import FIXED, Resolution

_HOUR = 3600 * MICROS
# Offsets from UTC, and so hours with a change of the clocks, are multiples of this since 1972.
_QUARTER = 900 * MICROS
_MONTHS = {"month": 1, "quarter": 3, "year": 12}


class Calendar:
    """The buckets of one resolution."""

    def __init__(self, resolution: Resolution, zone: Zone) -> None:
        self.resolution = resolution
        self._unit, self._zone = resolution.unit, zone
        self._fixed = resolution.most_seconds * MICROS if self._unit in FIXED else None

    def start(self, micros: int) -> int:
        """The start of the bucket that has this instant."""
        if self._fixed is not None:
            return micros - micros % self._fixed
        local = self._zone.to_local(micros)
        if self._unit == "hour":
            return offset_back(self._zone, micros, local - local % _HOUR)
        return self._zone.start_of_day(self._first_day(local))

    def end(self, start: int) -> int:
        """The end of the bucket that begins here, which is the start of the next one."""
        if self._fixed is not None:
            return start + self._fixed
        if self._unit == "hour":
            end = start + _QUARTER
            while self.start(end) == start:
                end += _QUARTER
            return end
        day = self._first_day(self._zone.to_local(start))
        if self._unit in _MONTHS:
            return self._zone.start_of_day(add_months(day, _MONTHS[self._unit]))
        return self._zone.start_of_day(day + (7 if self._unit == "week" else 1))

    def up(self, micros: int) -> int:
        """The instant itself if a bucket begins there, else the end of its bucket."""
        start = self.start(micros)
        return start if start == micros else self.end(start)

    def kept_from(self, watermark: int | None) -> int | None:
        """From when on all buckets are there; None if all are.

        Spark removes a row once its `expires_at` isn't after the watermark.
        """
        complete = self.resolution.complete_from
        complete = None if complete is None else self.up(complete)
        if watermark is None or self.resolution.keep_seconds is None:
            return complete
        oldest = watermark - self.resolution.keep_seconds * MICROS
        start = self.start(oldest)
        kept = start if self._expiry(start) > oldest else self.end(start)
        return kept if complete is None else max(kept, complete)

    def expires(self, start: int) -> int | None:
        """When the bucket that begins here expires; None if never."""
        keep = self.resolution.keep_seconds
        return None if keep is None else self._expiry(start) + keep * MICROS

    def _expiry(self, start: int) -> int:
        # An hour expires after 60 minutes, even if the clocks make it longer: see
        # `spark.aggregate.declare`.
        return start + _HOUR if self._unit == "hour" else self.end(start)

    def _first_day(self, local: int) -> int:
        days = local // DAY_MICROS
        return days if self._unit == "day" else truncate_date(days, self._unit)

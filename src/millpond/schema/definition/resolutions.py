"""Tables whose rows are buckets of time, in several resolutions, each with how long it is kept.

The key of such a table has three columns more than the group's own: `resolution` is the bucket's
length as text, `bucket_start` its first instant, and `expires_at` when Spark removes the row, NULL
if never.  A table that lists dead letters, the events that no bucket has, has a fourth:
`dead_letter` is such an event as JSON, and `resolution` is the reason; in rows of buckets it is
NULL.  The job's side describes the resolutions in the metadata of the first column:

    {"millpond_resolutions": {"1 minute": 172800, "1 day": null}, "millpond_event_time": "at"}

with the seconds that each is kept after the end of its bucket, and the column that has the time of
the events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from millpond.schema.definition.expression import Expression, parse_expression

Json = Any
METADATA, EVENT_TIME = "millpond_resolutions", "millpond_event_time"
RESOLUTION, BUCKET, EXPIRES, LETTER = "resolution", "bucket_start", "expires_at", "dead_letter"
COLUMNS = (RESOLUTION, BUCKET, EXPIRES)
"""What every table of buckets has."""
OF_BUCKETS = (*COLUMNS, LETTER)
"""The columns of a key that aren't the group's own."""
FUTURE, UNTIMED, NO_ID, LATE = "future", "no time", "no id", "late: "
"""In place of a resolution: events too far in the future, without a time, without an id, and those
that came after their bucket of a resolution had expired (`late: 1 minute`)."""
UNITS = {
    "second": 1, "minute": 60, "hour": 3600, "day": 25 * 3600, "week": 7 * 86_400 + 3600,
    "month": 31 * 86_400 + 3600, "quarter": 92 * 86_400 + 3600, "year": 366 * 86_400 + 3600,
}  # fmt: skip
"""The greatest length of each unit in seconds: a day with a change of the clocks has 25 hours."""
FIXED = ("second", "minute")
_LENGTH = re.compile(r"(?P<count>[0-9]{1,6}) (?P<unit>[a-z]+?)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}


@dataclass(frozen=True, slots=True)
class Resolution:
    """One length of buckets.

    most_seconds:  the length of its longest bucket; buckets of seconds and minutes are all so long
    count, unit:   `5 minute`; other units than second and minute have the count 1
    keep_seconds:  how long a bucket is kept after its end; None for ever
    complete_from: before this instant some buckets are missing that it would keep, in microseconds,
                   since it once kept them for a shorter time; None: none are
    """

    most_seconds: int
    count: int
    unit: str
    keep_seconds: int | None
    complete_from: int | None = None

    @property
    def keep_words(self) -> str:
        """How long a bucket is kept, for people."""
        return words_of_keep(self.keep_seconds)

    def __str__(self) -> str:
        return f"{self.count} {self.unit}{'s' if self.count > 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolutions:
    """The buckets of a table.

    each:    from the shortest buckets to the longest
    merges:  `aggregate` expressions that each merge the buffers of several buckets
    zone:    the time zone of hours and longer buckets, as `scalar.time.zones` has it
    """

    each: tuple[Resolution, ...]
    merges: tuple[Expression, ...]
    zone: Json

    def to_json(self) -> Json:
        return {
            "each": [[str(r), r.keep_seconds, *([] if r.complete_from is None else [r.complete_from])] for r in self.each],
            "merges": [m.to_json() for m in self.merges],
            "zone": self.zone,
        }


def words_of_column(column: str, each: Sequence[Resolution], event_time: str | None) -> str:
    """The meaning of a key's column of OF_BUCKETS, for `meaning.Meaning`."""
    if column == EXPIRES:
        kept = ", ".join(f"{r} {'for ever' if r.keep_seconds is None else f'for {r.keep_seconds} seconds'}" for r in each)
        return f"when a bucket expires, which is kept: {kept}"
    return f"{column} of a bucket of {event_time}"


def parse_resolutions(data: Json) -> Resolutions | None:
    """Turn the JSON form back; None without resolutions.

    Raises:  ValueError, KeyError or TypeError if it is invalid; DEFINITION_MISMATCH.
    """
    if data is None:
        return None
    merges = tuple(parse_expression(merge) for merge in data["merges"])
    if any(merge.op != "aggregate" for merge in merges):
        raise ValueError("an expression that merges buckets isn't an aggregate function")
    return Resolutions(each=parse_each(data["each"]), merges=merges, zone=data["zone"])


def parse_each(data: Sequence[tuple[str, int | None] | tuple[str, int | None, int]]) -> tuple[Resolution, ...]:
    """Resolutions from their names and seconds, from the shortest to the longest.

    data:    for each its name, for how many seconds it is kept, and `complete_from` if there is one

    Raises:  ValueError, which says why they can't be the resolutions of one table.
    """
    each = sorted((_resolution(*each) for each in data), key=lambda r: r.most_seconds)
    if not each:
        raise ValueError("there are none")
    names = [str(r) for r in each]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is there twice")
    units = {r.unit for r in each}
    if "week" in units and units & {"month", "quarter", "year"}:
        raise ValueError("a month doesn't begin with a week: use either weeks, or months and longer ones")
    fixed = [r.most_seconds for r in each if r.unit in FIXED]
    apart = next((b for a, b in pairwise(fixed) if b % a), None)
    if apart is not None:
        raise ValueError(f"buckets of {apart} seconds don't consist of whole shorter ones")
    return tuple(each)


def _resolution(name: str, keep: int | None, complete_from: int | None = None) -> Resolution:
    count, unit = parse_length(name)
    if unit not in UNITS:
        raise ValueError(f"{name!r:.40} isn't a length of buckets: write 1 minute, 1 hour, 1 day, with one of {', '.join(UNITS)}")
    most = 60 if unit in FIXED else 1
    if not 1 <= count <= most or (unit in FIXED and 60 % count):
        raise ValueError(f"{name!r} isn't a length of buckets: so many {unit}s must divide the next longer unit")
    seconds = count * UNITS[unit]
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < seconds):
        raise ValueError(f"{name} is kept for {keep} seconds, which is shorter than a bucket")
    if complete_from is not None and (isinstance(complete_from, bool) or not isinstance(complete_from, int)):
        raise ValueError(f"{name} is complete from {complete_from!r:.40}, which isn't a time")
    return Resolution(seconds, count, unit, keep, complete_from)


def parse_length(text: str) -> tuple[int, str]:
    """The number and the unit of a length such as `2 days`.  Raises ValueError."""
    found = _LENGTH.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{text!r:.40} isn't a length of time: write 1 minute, 10 minutes, 90 days")
    return int(found["count"]), found["unit"]


def words_of_keep(seconds: int | None) -> str:
    """How long buckets are kept, for people."""
    return "ever" if seconds is None else words_of_seconds(seconds)


def words_of_seconds(seconds: int) -> str:
    """A length of time, for people."""
    each, unit = next((s, u) for u, s in reversed(_SECONDS.items()) if seconds % s == 0)
    return f"{seconds // each} {unit}{'s' if seconds != each else ''}"


def parse_seconds(text: str) -> int:
    """The seconds of a length up to weeks.  Raises ValueError."""
    count, unit = parse_length(text)
    if unit not in _SECONDS:
        raise ValueError(f"{text!r:.40} has no fixed length: write it in {', '.join(_SECONDS)}s")
    return count * _SECONDS[unit]

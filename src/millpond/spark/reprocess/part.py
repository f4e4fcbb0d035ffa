"""Which part of a table is computed anew: a span of time, and keys.

The span grows to whole buckets of every resolution.  So a repaired day is the sum of its repaired
hours, and every bucket is computed from all of its events.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.checkpoint.rows.unsaferow import Stored
from millpond.errors import RequestError
from millpond.scalar.time.zones import parse_zone
from millpond.schema.convert import to_python
from millpond.schema.definition.default_table import TIMESTAMP
from millpond.schema.definition.resolutions import BUCKET, LETTER, OF_BUCKETS, RESOLUTION
from millpond.schema.definition.table import TableDefinition
from millpond.schema.moment import time_micros
from millpond.schema.values import from_text
from millpond.spark.shards import quoted
from millpond.tables.kept.calendar import Calendar
from millpond.tables.scan.keys import KeyReader

if TYPE_CHECKING:
    from pyspark.sql import Column

When = dt.datetime | str | None
Row = tuple[Stored, ...]
_show_time = to_python(TIMESTAMP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A span of whole buckets, of some keys.

    definition:    of the table
    since, until:  in microseconds; None without an end
    key:           column -> its value in stored form; other columns have any
    """

    definition: TableDefinition
    since: int | None
    until: int | None
    key: Mapping[str, Stored]

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the table."""
        return self.since is None and self.until is None and not self.key

    def has_time(self, micros: int) -> bool:
        """Whether an event of this time, or a bucket that begins then, is in the span."""
        return (self.since is None or self.since <= micros) and (self.until is None or micros < self.until)

    def has_key(self) -> Callable[[Row], bool]:
        """Whether a row of the state has the keys: a function of its key."""
        names = [field.name for field in self.definition.key_fields]
        wanted = [(names.index(name), value) for name, value in self.key.items()]
        return lambda columns: all(columns[place] == value for place, value in wanted)

    def has_bucket(self) -> Callable[[Row], bool]:
        """Whether a row of the state is one of its buckets: a function of the row's key."""
        names = [field.name for field in self.definition.key_fields]
        bucket, letter = names.index(BUCKET), names.index(LETTER) if LETTER in names else None
        resolution = names.index(RESOLUTION)
        assert self.definition.resolutions is not None, "the caller has checked it"
        known = {str(each) for each in self.definition.resolutions.each}
        has_key = self.has_key()

        def has(columns: Row) -> bool:
            if columns[resolution] not in known or (letter is not None and columns[letter] is not None):
                return False
            return self.has_time(columns[bucket]) and has_key(columns)

        return has

    def condition(self, event_time: str) -> Column | None:
        """Which events are in it; None if all are."""
        from pyspark.sql import functions as sf

        types = {column.name: column.type for column in self.definition.key}
        time = sf.col(quoted(event_time))
        each = [sf.col(quoted(name)).eqNullSafe(sf.lit(to_python(types[name])(value))) for name, value in self.key.items()]
        if self.since is not None:
            each.append(time >= sf.timestamp_micros(sf.lit(self.since)))
        if self.until is not None:
            each.append(time < sf.timestamp_micros(sf.lit(self.until)))
        every = None
        for one in each:
            every = one if every is None else every & one
        return every

    def words(self) -> str:
        """What it is, for people."""
        if self.is_whole:
            return "all buckets"
        ends = [f"{word} {_show_time(end)}" for word, end in (("since", self.since), ("until", self.until)) if end is not None]
        types = {column.name: column.type for column in self.definition.key}
        keys = [f"{name}={to_python(types[name])(value)!r}" for name, value in self.key.items()]
        return "buckets " + ", ".join([*ends, *keys])


def part_of(definition: TableDefinition, since: When, until: When, key: Mapping[str, Any]) -> Part:
    """The part of a table between two times, of some keys; the span grows to whole buckets.

    Raises:  INVALID_REQUEST, also if `until` isn't after `since`; UNKNOWN_COLUMN, NOT_A_KEY_COLUMN,
             WRONG_TYPE.
    """
    if wrong := next((name for name in key if name in OF_BUCKETS), None):
        raise RequestError(
            "INVALID_REQUEST", f"{wrong} can't be chosen.", hint="Name columns of the group's key, and times by since and until."
        )
    begin, end = (None if when is None else time_micros(when) for when in (since, until))
    if begin is not None and end is not None and begin >= end:
        raise RequestError("INVALID_REQUEST", f"{until} isn't after {since}.", hint="Give an earlier time first.")
    assert definition.resolutions is not None, "the caller has checked it"
    zone = parse_zone(definition.resolutions.zone)
    calendars = [Calendar(each, zone) for each in definition.resolutions.each]
    return Part(
        definition=definition,
        since=begin if begin is None else _grown(calendars, begin, Calendar.start, min),
        until=end if end is None else _grown(calendars, end, Calendar.up, max),
        key=KeyReader(definition).stored({name: _read(definition, name, value) for name, value in key.items()}),
    )


def _read(definition: TableDefinition, name: str, value: Any) -> Any:
    """A column's value, which may be given as a text.  Raises WRONG_TYPE."""
    type_ = next((column.type for column in definition.key if column.name == name), None)
    return value if type_ is None or type_.kind == "string" or not isinstance(value, str) else from_text(type_, column=name)(value)


def _grown(calendars: Sequence[Calendar], end: int, move: Callable[[Calendar, int], int], farthest: Callable[..., int]) -> int:
    """An end of a span, moved outwards until it is an end of buckets of all resolutions."""
    while (moved := farthest(move(calendar, end) for calendar in calendars)) != end:
        end = moved
    return end

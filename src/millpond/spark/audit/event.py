"""What became of one event: in which batch, in which buckets, or why not.

1. Find the events that are meant in what the job has read, and all others with their ids.
2. Recount these, as in an audit.
3. Look whether the rows in which they should be are in the table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from millpond.errors import RequestError
from millpond.scalar.time.zones import parse_zone
from millpond.schema.definition.resolutions import BUCKET, EXPIRES, LATE, RESOLUTION
from millpond.spark.aggregate.declare import Aggregate
from millpond.spark.aggregate.late import WATERMARK
from millpond.spark.audit.audit import Auditing, auditing
from millpond.spark.audit.input import NAME, OFFSET, PART, SOURCE, file_name
from millpond.spark.audit.records import count_records
from millpond.spark.audit.recount import DUPLICATE, FIRST, LAST, STEP, SURE
from millpond.spark.audit.steps import Part
from millpond.spark.shards import quoted
from millpond.tables.cold.table import ColdTable
from millpond.tables.job.offsets import parse_record
from millpond.tables.kept.calendar import Calendar

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MOST = 100
Fate = Literal["in", "missing", "expired", "late", "dead letter", "duplicate", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What became of an event in one resolution, or in all if it is a dead letter or a duplicate.

    fate:         in, missing (its row isn't in the table), expired, late, dead letter, duplicate;
                  unsure if there is more than one possibility
    resolution:   of the bucket, or the reason of the dead letter; None of a duplicate
    bucket_start: None without a bucket
    expires_at:   of the bucket; of a dead letter, how long it is listed; None if never
    late_by_seconds:  by how much the bucket had expired when the event came
    """

    fate: Fate
    resolution: str | None
    bucket_start: dt.datetime | None = None
    expires_at: dt.datetime | None = None
    late_by_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAudit:
    """What became of one event.

    event:         its columns
    batches:       which batch read it, as `batch 3`
    part, offset:  where it is in the input
    watermark:     of the batch
    places:        what became of it
    duplicate_of:  batches and part of the event with its id that counts; None if it is no duplicate,
                   or that one came before what was audited
    """

    event: Mapping[str, Any]
    batches: str
    part: Part
    offset: int | None
    watermark: dt.datetime
    places: tuple[Place, ...]
    duplicate_of: str | None = None
    _step: int = field(default=0, repr=False)

    @property
    def is_in(self) -> bool:
        """Whether it is in a bucket that is there."""
        return any(place.fate == "in" for place in self.places)

    def describe(self) -> str:
        """The same for people."""
        where = self.part.name if self.offset is None else f"{self.part.name}:{self.offset}"
        lines = [f"{self.batches}, from {where}"]
        for place in self.places:
            said = place.fate if place.resolution is None else f"{place.fate}: {place.resolution}"
            if place.bucket_start is not None:
                said += f" from {_time(place.bucket_start)}"
            if place.late_by_seconds is not None:
                said += f", too late by {place.late_by_seconds:,.0f} seconds: the watermark was {_time(self.watermark)}"
            elif place.expires_at is not None:
                said += f", {'expired' if place.fate == 'expired' else 'expires'} {_time(place.expires_at)}"
            if place.fate == "duplicate":
                said += f" of the one of {self.duplicate_of}" if self.duplicate_of else " of an earlier one"
            lines.append(f"  {said}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        facts = {name: value for name, value in asdict(self).items() if name != "_step"}
        return {"is_in": self.is_in, **_plain(facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsFound:
    """The events that are meant.

    events:  up to 100 of them
    batch:   the last one that was looked at
    reason:  why there are none; None if there are some
    """

    events: tuple[EventAudit, ...]
    batch: int
    reason: str | None


def audit_event(
    aggregate: Aggregate,
    source: DataFrame,
    event: Mapping[str, Any] | None = None,
    *,
    offset: str | None = None,
    pond: str | Path,
    since: int | None = None,
    until: int | None = None,
    allow: Iterable[str | Path] = (),
) -> EventsFound:
    """What became of events: which batch read them, in which buckets they are, or why not.

    event:   columns of the stream and their values, such as the id, or the whole event as JSON has it
    offset:  instead, the record's own, as a Kafka producer gets it: "views:0:11170"
    aggregate, source, pond, since, until, allow:  as for `audit`
    Raises:  as `audit`; INVALID_REQUEST without event and offset; UNKNOWN_COLUMN.
    """
    if (event is None) == (offset is None):
        raise RequestError("INVALID_REQUEST", "Name the event by columns, or by its offset.", hint='Write {"id": "e-17"}.')
    with auditing(aggregate, source, pond, since, until, allow) as going:
        definition = ColdTable(pond, aggregate.table, None, allow).definition
        assert definition.resolutions is not None, "auditing has checked it"
        zone = parse_zone(definition.resolutions.zone)
        calendars = {str(r): Calendar(r, zone) for r in definition.resolutions.each}
        count_records(going.input, going.steps, files=False)  # they must be those that the job has read
        return _Finding(going, calendars).find(event, offset)


class _Finding:
    def __init__(self, going: Auditing, calendars: dict[str, Calendar]) -> None:
        self._going, self._calendars = going, calendars
        self._last = going.stretch.last

    def find(self, event: Mapping[str, Any] | None, offset: str | None) -> EventsFound:
        going = self._going
        if offset is None:
            assert event is not None, "the caller has checked it"
            meant = self._condition(event)
            reason = "No event that was read is like that: it isn't read yet, or the stream's own query leaves it out."
        else:
            wanted = parse_record(offset)
            topic, partition = wanted.path
            name, number = f"{topic}:{partition}", wanted.end - 1
            part = self._part_of(name, number)
            if isinstance(part, str):
                return EventsFound(events=(), batch=self._last.batch, reason=part)
            meant = self._at(name, number)
            raw = going.input.raw(part.source, [replace(part, first=number, end=number + 1)])
            reason = "The stream's own query leaves it out." if raw.count() else "There is no record at this offset."
        found = tuple(self._events(meant))
        return EventsFound(events=found, batch=self._last.batch, reason=None if found else reason)

    def _part_of(self, name: str, number: int) -> Part | str:
        parts = [part for step in self._going.steps for part in step.parts if part.name == name]
        if not parts:
            return f"The job has read nothing of {name} in these batches."
        end = max(part.end or 0 for part in parts)
        if number >= end:
            return f"It isn't read yet: of {name} the job has read up to offset {end - 1}, {number - end + 1:,} before it."
        part = next((p for p in parts if p.end is not None and (p.first or 0) <= number < p.end), None)
        return part or "It was read before these batches, or before the job began."

    def _condition(self, event: Mapping[str, Any]) -> Column:
        from pyspark.sql import functions as sf

        fields = {f.name: f for f in self._going.source.schema.fields}
        if unknown := next((name for name in event if name not in fields), None):
            raise RequestError(
                "UNKNOWN_COLUMN", f"The stream has no column {unknown!r:.80}.", hint=f"Its columns are {', '.join(fields)}."
            )
        if not event:
            raise RequestError("INVALID_REQUEST", "The event has no columns.", hint='Write {"id": "e-17"}.')
        return reduce(and_, (sf.col(quoted(n)).eqNullSafe(sf.lit(value).cast(fields[n].dataType)) for n, value in event.items()))

    @staticmethod
    def _at(name: str, number: int) -> Column:
        from pyspark.sql import functions as sf

        return (sf.col(f"{PART}.{NAME}") == name) & (sf.col(f"{PART}.{OFFSET}") == number)

    def _events(self, meant: Column) -> Iterator[EventAudit]:
        from pyspark.sql import functions as sf

        going, only = self._going, meant
        if going.declared.dedupe is not None:  # 1
            column = quoted(going.declared.dedupe.column)
            events = going.input.read(p for step in going.steps for p in step.parts).where(meant & sf.col(column).isNotNull())
            ids = [r[0] for r in events.select(column).distinct().limit(MOST).collect()]
            only = meant | sf.col(column).isin(ids) if ids else meant
        rows = going.rows_of(going.stretch, only).withColumn("meant", sf.coalesce(meant, sf.lit(False)))
        each: list[list[Any]] = []
        for row in rows.collect():  # rows of one event follow one another
            if row[FIRST]:
                each.append([])
            each[-1].append(row)
        there = self._there([row for event in each for row in event])
        made = [(self._event(event, there), event[0]) for event in each]
        counts = [audit for audit, _ in made if all(place.fate != "duplicate" for place in audit.places)]
        shown = sorted((pair for pair in made if pair[1]["meant"]), key=lambda pair: pair[0]._step)
        for audit, row in shown[:MOST]:
            if any(place.fate == "duplicate" for place in audit.places):
                first = self._first(audit, row, counts)
                yield replace(audit, duplicate_of=None if first is None else f"{first.batches}, {first.part.name}")
            else:
                yield audit

    def _first(self, audit: EventAudit, row: Any, counts: list[EventAudit]) -> EventAudit | None:
        dedupe = self._going.declared.dedupe
        assert dedupe is not None, "there are duplicates"
        alike = [c for c in counts if c.event[dedupe.column] == row[dedupe.column] and c._step <= audit._step]
        if row[dedupe.column] is None:
            alike = [c for c in alike if c.event == audit.event]
        return max(alike, key=lambda c: c._step, default=None)

    def _event(self, rows: list[Any], there: set[tuple[Any, ...]]) -> EventAudit:
        going, row = self._going, rows[0]
        step = next(step for step in going.steps if step.number == row[STEP])
        part = next(
            p
            for p in step.parts
            if (p.source, file_name(p)) == (row[PART][SOURCE], row[PART][NAME])
            and (p.end is None or p.first <= row[PART][OFFSET] < p.end)
        )
        return EventAudit(
            event={name: row[name] for name in going.source.columns},
            batches=step.batches,
            part=part,
            offset=row[PART][OFFSET],
            watermark=_utc(row[WATERMARK]),
            places=tuple(self._place(each, there) for each in rows),
            _step=step.number,
        )

    def _place(self, row: Any, there: set[tuple[Any, ...]]) -> Place:
        name, mark_ms = row[RESOLUTION], self._last.watermark_ms[1]
        if name == DUPLICATE:
            return Place(fate="duplicate" if row[SURE] else "unsure", resolution=None)
        start, expires = (None if row[each] is None else _utc(row[each]) for each in (BUCKET, EXPIRES))
        if name.startswith(LATE):
            resolution = name.removeprefix(LATE)
            calendar = self._calendars[resolution]
            begin = calendar.start(_micros(_utc(row[self._going.declared.event_time])))
            gone = calendar.expires(begin)
            assert gone is not None, "only what expires is late"
            late = (_micros(_utc(row[WATERMARK])) - gone) / 1e6
            fate: Fate = "late" if row[SURE] else "unsure"
            return Place(
                fate=fate, resolution=resolution, bucket_start=_moment(begin), expires_at=_moment(gone), late_by_seconds=late
            )
        if name not in self._calendars:
            return Place(fate="dead letter" if row[SURE] else "unsure", resolution=name, expires_at=expires)
        is_over = row[LAST] is not None and _micros(_utc(row[LAST])) <= mark_ms * 1000
        key = tuple(row[column] for column in self._going.table.key_names)
        fate = "expired" if is_over else "in" if key in there else "missing"
        if not row[SURE]:
            fate = "unsure"
        return Place(fate=fate, resolution=name, bucket_start=start, expires_at=expires)

    def _there(self, rows: list[Any]) -> set[tuple[Any, ...]]:  # 3
        """The keys of these rows that are in the table."""
        from pyspark.sql import functions as sf

        names = self._going.table.key_names
        keys = {tuple(row[name] for name in names) for row in rows if row[RESOLUTION] in self._calendars}
        if not keys:
            return set()
        meant = [
            reduce(and_, (sf.col(f"k{i}").eqNullSafe(sf.lit(value)) for i, value in enumerate(key) if value is not None))
            for key in keys
        ]
        held = self._going.table.at(self._last.batch, self._last.watermark_ms[1]).where(reduce(or_, meant))
        return {tuple(r[f"k{i}"] for i in range(len(names))) for r in held.collect()}


def _utc(time: dt.datetime) -> dt.datetime:
    """A time as Spark gives it, local to this process."""
    return time.astimezone(dt.UTC)


def _micros(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _moment(micros: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


def _time(time: dt.datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dt.datetime):
        return _time(value.astimezone(dt.UTC))
    return value if isinstance(value, str | int | float | bool | None) else str(value)

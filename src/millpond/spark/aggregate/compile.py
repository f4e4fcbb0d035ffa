"""A declared aggregate as plain Structured Streaming.

1. The watermark is on the time of the events, without delay: it is the newest time so far.  Events
   without a time, or too far in the future, don't move it.
2. With `dedupe`, Spark's dropDuplicatesWithinWatermark drops events whose id it remembers.  An id is
   remembered until events are newer than the clock was when it came, plus the horizon.  That time
   is never before the watermark, so that no event is too late to be compared.
3. Each event becomes one row for each resolution, with the start of its bucket and with
   `expires_at`: the bucket's end plus the time for which that resolution is kept.
4. `expires_at` is a grouping column, and marked as the time of events: Spark removes a row, and
   rejects an event for it, once the watermark has passed that row's own time.  Each resolution thus
   expires by itself, and nobody chooses a watermark.
5. An event without a time, without an id, too far in the future, or too late for a resolution is a
   dead letter: a row with the reason and the event instead of a bucket.

`program.py` prints the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.schema.definition.resolutions import (
    BUCKET,
    COLUMNS,
    EXPIRES,
    FIXED,
    FUTURE,
    LATE,
    LETTER,
    METADATA,
    NO_ID,
    RESOLUTION,
    UNTIMED,
    Resolution,
)
from millpond.schema.definition.resolutions import EVENT_TIME as TIME_COLUMN
from millpond.spark.aggregate.declaration import EVENT_TIME, Declaration, Dedupe
from millpond.spark.aggregate.late import WATERMARK, watermark_of_batch
from millpond.spark.shards import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PREFIX = "__millpond_"
_ROW, _CLOCK, _SEEN, _APART = f"{PREFIX}bucket", f"{PREFIX}clock", f"{PREFIX}seen", f"{PREFIX}apart"
COPY, IN_PART = f"{PREFIX}copy", "in"
"""With `part`, the column of the remembered ids that tells copies of an event apart if they differ, and
how it begins for those that the part has."""
# Spark's default leaves out microseconds.
TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


def compile_aggregate(declared: Declaration, source: DataFrame, checkpoint: str | None, part: Column | None = None) -> DataFrame:
    """The aggregate of a source, whose columns the caller has checked.

    checkpoint:  of the job; None if late events aren't listed
    part:        which events are counted; ids are compared over all, and only equal copies of an
                 event are dropped
    """
    from pyspark.sql import functions as sf

    names = [quoted(name) for name in source.columns]
    event = _Event(declared, names, checkpoint is not None and declared.reads_watermark)
    rows = source
    if event.knows_late:
        assert checkpoint is not None, "late events are listed by the watermark in the checkpoint"
        rows = rows.crossJoin(sf.broadcast(watermark_of_batch(source.sparkSession, checkpoint)))
        names = [*names, WATERMARK]
    if declared.expires:
        rows = rows.withColumn(_CLOCK, event.clock).withWatermark(_CLOCK, "0 seconds")  # 1
    if declared.dedupe is not None:
        rows = _without_duplicates(rows, names, declared.dedupe, event, part)
    if part is not None:
        rows = rows.where(part)
    each = {str(r): r.keep_seconds for r in declared.resolutions}
    exploded = rows.select(*names, sf.explode(event.rows()).alias(_ROW)).select(  # 3
        *names,
        sf.col(f"{_ROW}.{RESOLUTION}").alias(RESOLUTION, metadata={METADATA: each, TIME_COLUMN: declared.event_time}),
        sf.col(f"{_ROW}.{BUCKET}"),
        sf.col(f"{_ROW}.{EXPIRES}").alias(EXPIRES, metadata={EVENT_TIME: 0}),  # 4
        *([] if declared.letters_seconds is None else [sf.col(f"{_ROW}.{LETTER}")]),
    )
    grouping = [*(quoted(name) for name in declared.key), *columns_of(declared)]
    return exploded.groupBy(*grouping).agg(*(value.alias(name) for name, value in declared.values.items()))


def columns_of(declared: Declaration) -> tuple[str, ...]:
    """The columns of the key that aren't the group's own."""
    return COLUMNS if declared.letters_seconds is None else (*COLUMNS, LETTER)


def _without_duplicates(rows: DataFrame, names: list[str], dedupe: Dedupe, event: _Event, part: Column | None) -> DataFrame:
    """The rows whose id isn't remembered; of a batch DataFrame the first row of each id."""
    from pyspark.sql import functions as sf

    # Spark takes all NULLs for one id: such events are compared as a whole.
    apart = sf.when(sf.col(quoted(dedupe.column)).isNull(), event.as_json)
    seen = after(sf.current_timestamp(), dedupe.horizon_seconds)
    columns = {dedupe.column: None, _APART: apart}
    if part is not None:
        columns[COPY] = sf.concat(sf.when(part, IN_PART).otherwise(""), sf.sha2(event.as_json, 256))
    made = [column.alias(name) for name, column in columns.items() if column is not None]
    rows = rows.select(*names, *made, seen.alias(_SEEN, metadata={EVENT_TIME: 0}))
    return rows.dropDuplicatesWithinWatermark(list(columns)) if rows.isStreaming else rows.dropDuplicates(list(columns))


class _Event:
    """The rows that one event becomes."""

    def __init__(self, declared: Declaration, names: list[str], knows_late: bool) -> None:
        from pyspark.sql import functions as sf

        self._declared, self._names, self.knows_late = declared, names, knows_late
        self._time, self._now = sf.col(quoted(declared.event_time)), sf.current_timestamp()

    @property
    def clock(self) -> Column:
        """The event's time, if it moves the watermark."""
        from pyspark.sql import functions as sf

        return self._time if self._declared.skew_seconds is None else sf.when(~self._is_future(), self._time)

    @property
    def as_json(self) -> Column:
        """The whole event."""
        from pyspark.sql import functions as sf

        return sf.to_json(sf.struct(*self._names), {"timestampFormat": TIME_FORMAT})

    def rows(self) -> Column:
        """An array of them."""
        from pyspark.sql import functions as sf

        rows = sf.array(*(self._bucket(resolution) for resolution in self._declared.resolutions))
        for reason, holds in reversed(self._reasons().items()):
            rows = sf.when(holds, sf.array(self._letter(reason))).otherwise(rows)
        return rows

    def _reasons(self) -> dict[str, Column]:
        """Why an event is in no bucket at all: the first of these that holds."""
        from pyspark.sql import functions as sf

        dedupe = self._declared.dedupe
        reasons = {} if dedupe is None else {NO_ID: sf.col(quoted(dedupe.column)).isNull()}
        reasons[UNTIMED] = self._time.isNull()
        if self._declared.skew_seconds is not None:
            reasons[FUTURE] = self._is_future()
        return reasons

    def _is_future(self) -> Column:
        return self._time > after(self._now, self._declared.skew_seconds or 0)

    def _bucket(self, resolution: Resolution) -> Column:
        """The row of a resolution: its name, the bucket's start, and when it expires.

        Shape:  as `tables.kept.calendar` computes them
        """
        from pyspark.sql import functions as sf

        unit, keep, time = resolution.unit, resolution.keep_seconds, self._time
        if unit in FIXED:
            seconds = resolution.most_seconds
            begin = sf.timestamp_seconds(sf.unix_seconds(time) - sf.pmod(sf.unix_seconds(time), sf.lit(seconds)))
            end = after(begin, seconds)
        else:
            begin = _start_of(unit, time)
            later = begin + sf.expr(f"INTERVAL {length_of(unit)}")
            end = later if unit == "hour" else _start_of(unit, later)
        expires = _never() if keep is None else after(end, keep)
        row = self._struct(str(resolution), begin, expires, sf.lit(None).cast("string"))
        if keep is None or not self.knows_late:
            return row
        return sf.when(expires <= sf.col(WATERMARK), self._letter(f"{LATE}{resolution}")).otherwise(row)

    def _letter(self, reason: str) -> Column:
        """The row of a dead letter."""
        from pyspark.sql import functions as sf

        seconds = self._declared.letters_seconds
        since = sf.greatest(self._now, sf.col(WATERMARK)) if self.knows_late else self._now
        return self._struct(reason, _never(), _never() if seconds is None else after(since, seconds), self.as_json)

    def _struct(self, resolution: str, begin: Column, expires: Column, letter: Column) -> Column:
        from pyspark.sql import functions as sf

        columns = [sf.lit(resolution).alias(RESOLUTION), begin.alias(BUCKET), expires.alias(EXPIRES)]
        return sf.struct(*columns, *([] if self._declared.letters_seconds is None else [letter.alias(LETTER)]))


def length_of(unit: str) -> str:
    """A unit of the calendar as a length in SQL."""
    return {"quarter": "3 MONTHS"}.get(unit, f"1 {unit.upper()}")


def after(time: Column, seconds: int) -> Column:
    """The instant so many seconds later.

    An interval of Spark has days, and a day may have 23 or 25 hours: then buckets would expire
    earlier than readers expect.
    """
    from pyspark.sql import functions as sf

    return sf.timestamp_micros(sf.unix_micros(time) + sf.lit(seconds * 1_000_000))


def _start_of(unit: str, time: Column) -> Column:
    """The start of a unit of the calendar.

    A day may have two midnights.  `date_trunc` returns the later one for what comes after it, so
    that the day would be two buckets; a date begins at its first.
    """
    from pyspark.sql import functions as sf

    return time.cast("date").cast("timestamp") if unit == "day" else sf.date_trunc(unit, time)


def _never() -> Column:
    from pyspark.sql import functions as sf

    return sf.lit(None).cast("timestamp")


class EventAt(_Event):
    """The rows of an event in a batch DataFrame that has the time and the watermark of each event's batch as columns."""

    def __init__(self, declared: Declaration, names: list[str], now: Column) -> None:
        super().__init__(declared, names, True)
        self._now = now

    def buckets(self) -> Column:
        """The rows of all resolutions, as if the event were in some bucket."""
        from pyspark.sql import functions as sf

        return sf.array(*(self._bucket(resolution) for resolution in self._declared.resolutions))

    def is_future(self, now: Column) -> Column:
        """Whether the event is too far in the future at a time; NULL without a time."""
        return self._time > after(now, self._declared.skew_seconds or 0)

    def letter(self, reason: str) -> Column:
        """The row of a dead letter."""
        return self._letter(reason)

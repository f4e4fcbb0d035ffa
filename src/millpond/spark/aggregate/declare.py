"""A declared aggregate: groups by key and by buckets of event time, in several resolutions.

The declaration compiles to plain Structured Streaming:

1. Each event becomes one row for each resolution, with the start of its bucket and with
   `expires_at`: the bucket's end plus the time for which that resolution is kept.
2. The watermark is on `expires_at`, late by the longest retention and the longest bucket, so that
   it is never ahead of the events.  `expires_at` is a grouping column: Spark removes a row, and
   rejects an event for it, once the watermark has passed that row's own time.  Each resolution thus
   expires by itself, and nobody chooses a watermark.
3. Events without a time, or too far in the future, are aggregated under `no time` and `future`.
   They would move the watermark, and so expire everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import RequestError
from millpond.schema.definition.resolutions import (
    BUCKET,
    COLUMNS,
    EXPIRES,
    FIXED,
    FUTURE,
    METADATA,
    RESOLUTION,
    UNTIMED,
    Resolution,
    parse_each,
    parse_seconds,
)
from millpond.schema.definition.table import check_table_name
from millpond.settings import Retention
from millpond.spark.aggregate.program import write_program
from millpond.spark.derive.plan import require_classic
from millpond.spark.job import Job
from millpond.spark.shards import quoted
from millpond.spark.start import Sink, start

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROW = "__millpond_bucket"


class Aggregate:
    """The declaration of a table of buckets.

    name:         the table, and the job that fills it
    key:          the columns of the source that a group has in common; may be empty
    event_time:   the column with the time of an event, a timestamp
    values:       column name -> an aggregate of the source's columns, as for `agg`; Millpond must
                  be able to merge it, which isn't so for first, last and sketches
    resolutions:  length of buckets -> how long to keep them after their end (`2 days`), None for
                  ever.  Lengths are seconds or minutes that divide the next longer unit, and 1
                  hour, day, week, month, quarter or year of the session's time zone
    future_skew:  events later than the clock by more than this are counted under the resolution
                  `future`, apart from the others; None takes every time as it is, and then one wrong
                  clock can expire all that is kept
    Raises:       INVALID_REQUEST, INVALID_NAME.
    """

    def __init__(
        self,
        name: str,
        *,
        key: Sequence[str],
        event_time: str,
        values: Mapping[str, Column],
        resolutions: Mapping[str, str | None],
        future_skew: str | None = "10 minutes",
    ) -> None:
        self.name = check_table_name(name)
        if isinstance(key, str) or any(not isinstance(column, str) for column in key):
            raise self._invalid(f"its key is {key!r:.80}", 'Name columns in a list: key=["page"].')
        if not values:
            raise self._invalid("it has no values", 'Name at least one: values={"hits": F.count("*")}.')
        names = [*key, *values]
        taken = next((n for n in names if n.lower() in COLUMNS or [m.lower() for m in names].count(n.lower()) > 1), None)
        if taken is not None:
            raise self._invalid(
                f"{taken!r} is there twice, or is a column of buckets", f"Name it otherwise than {', '.join(COLUMNS)}."
            )
        self.key, self.event_time, self.values = tuple(key), event_time, dict(values)
        try:
            keeps = {length: None if keep is None else parse_seconds(keep) for length, keep in resolutions.items()}
            self.resolutions = parse_each(list(keeps.items()))
            self._skew_seconds = None if future_skew is None else parse_seconds(future_skew)
        except (ValueError, AttributeError) as wrong:
            raise self._invalid(f"its resolutions or future_skew can't be used: {wrong}", "Mend that length.") from None

    def __repr__(self) -> str:
        return f"<Aggregate {self.name}: by {', '.join(self.key) or 'nothing'}, {', '.join(map(str, self.resolutions))}>"

    def on(self, source: DataFrame) -> DataFrame:
        """The aggregate of a source: the streaming DataFrame that `start` runs.

        Of a batch DataFrame it is the same from scratch, as of now, with all buckets.

        Raises:  INVALID_REQUEST if the source lacks a column, or its time is no timestamp;
                 SPARK_CONNECT.
        """
        require_classic(source, "_jdf")
        from pyspark.sql import functions as sf
        from pyspark.sql.types import TimestampType

        columns = {field.name: field.dataType for field in source.schema.fields}
        missing = [name for name in (*self.key, self.event_time) if name not in columns]
        if missing:
            raise self._invalid(f"the source has no column {', '.join(missing)}", f"Its columns are {', '.join(columns)}.")
        if not isinstance(columns[self.event_time], TimestampType):
            found = columns[self.event_time].simpleString()
            raise self._invalid(
                f"{self.event_time} is a {found}", f'Convert it: .withColumn("{self.event_time}", …cast("timestamp")).'
            )
        taken = [name for name in columns if name.lower() in (*COLUMNS, _ROW)]
        if taken:
            raise self._invalid(f"the source has a column {', '.join(taken)} already", "Rename that column.")
        time = source[quoted(self.event_time)]
        each = {str(r): r.keep_seconds for r in self.resolutions}
        rows = sf.array(*(_bucket(time, resolution) for resolution in self.resolutions))
        apart = sf.when(time.isNull(), sf.array(_apart(UNTIMED)))
        if self._skew_seconds is not None:
            future = time > sf.current_timestamp() + sf.expr(f"INTERVAL {self._skew_seconds} SECONDS")
            apart = apart.when(future, sf.array(_apart(FUTURE)))
        exploded = source.select("*", sf.explode(apart.otherwise(rows)).alias(_ROW)).select(
            *[quoted(name) for name in source.columns],
            sf.col(f"{_ROW}.{RESOLUTION}").alias(RESOLUTION, metadata={METADATA: each}),
            sf.col(f"{_ROW}.{BUCKET}").alias(BUCKET),
            sf.col(f"{_ROW}.{EXPIRES}").alias(EXPIRES),
        )
        delay = self._delay_seconds()
        if delay is not None:
            exploded = exploded.withWatermark(EXPIRES, f"{delay} seconds")
        grouped = exploded.groupBy(*[quoted(name) for name in self.key], RESOLUTION, BUCKET, EXPIRES)
        return grouped.agg(*(value.alias(name) for name, value in self.values.items()))

    def program(self, source: DataFrame) -> str:
        """The PySpark program that `on` stands for: of a DataFrame `source` it makes `aggregated`.

        Raises:  as `on`; UNSUPPORTED if a value has no text in SQL, such as a Python function.
        """
        self.on(source)
        return write_program(
            self.name,
            source,
            key=self.key,
            event_time=self.event_time,
            values=self.values,
            resolutions=self.resolutions,
            skew_seconds=self._skew_seconds,
            delay_seconds=self._delay_seconds(),
        )

    def explain(self, source: DataFrame) -> None:
        """Print the program of `program`.  Raises as `program`."""
        print(self.program(source))

    def start(
        self,
        source: DataFrame,
        *,
        pond: str | Path,
        job: str | None = None,
        trigger: str | None = None,
        sink: Sink = None,
        partitions: int | None = None,
        history: str | None = None,
        fenced: bool = False,
        take_over: bool = False,
    ) -> Job:
        """Start the job of this aggregate, or continue it from its checkpoint; `millpond.start` does the same.

        Expired rows aren't kept: that is what the retention of a resolution says.

        history:  which changes every follower keeps, as for `Retention.parse`; None for none
        pond, job, trigger, sink, partitions, fenced, take_over:  as for `millpond.start`
        Raises:   as `on` and `millpond.start`; NOT_DERIVABLE if the buckets of a value can't be
                  merged.
        """
        return start(
            self.on(source),
            table=self.name,
            pond=pond,
            job=job,
            trigger=trigger,
            sink=sink,
            partitions=partitions,
            retention=Retention.parse(keep_closed="no", history=history),
            strict=True,
            fenced=fenced,
            take_over=take_over,
        )

    def _delay_seconds(self) -> int | None:
        """How far the watermark is behind the latest `expires_at`; None if every bucket is kept for ever."""
        kept = [(r.keep_seconds, r.most_seconds) for r in self.resolutions if r.keep_seconds is not None]
        return max(keep for keep, _ in kept) + max(most for _, most in kept) if kept else None

    def _invalid(self, found: str, hint: str) -> RequestError:
        return RequestError("INVALID_REQUEST", f"The aggregate {self.name} can't be used: {found}.", hint=hint)


def _bucket(time: Column, resolution: Resolution) -> Column:
    """A row of a resolution for an event: its name, the bucket's start, and when it expires.

    Shape:  as `tables.buckets.calendar` computes them
    """
    from pyspark.sql import functions as sf

    unit, keep = resolution.unit, resolution.keep_seconds
    if unit in FIXED:
        seconds = resolution.most_seconds
        begin = sf.timestamp_seconds(sf.unix_seconds(time) - sf.pmod(sf.unix_seconds(time), sf.lit(seconds)))
        end = begin + sf.expr(f"INTERVAL {seconds} SECONDS")
    else:
        begin = sf.date_trunc(unit, time)
        after = begin + sf.expr({"hour": "INTERVAL 1 HOUR", "quarter": "INTERVAL 3 MONTHS"}.get(unit, f"INTERVAL 1 {unit.upper()}"))
        end = after if unit == "hour" else sf.date_trunc(unit, after)
    expires = _never() if keep is None else end + sf.expr(f"INTERVAL {keep} SECONDS")
    return sf.struct(sf.lit(str(resolution)).alias(RESOLUTION), begin.alias(BUCKET), expires.alias(EXPIRES))


def _apart(name: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.struct(sf.lit(name).alias(RESOLUTION), _never().alias(BUCKET), _never().alias(EXPIRES))


def _never() -> Column:
    from pyspark.sql import functions as sf

    return sf.lit(None).cast("timestamp")

"""The declaration of an aggregate by key and by buckets of event time: `compile.py` says what runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.catalogue import job_of
from millpond.checkpoint.log import newest_conf
from millpond.errors import RequestError
from millpond.schema.definition.indexes import Given
from millpond.schema.definition.resolutions import OF_BUCKETS, Resolution, parse_each, parse_seconds
from millpond.schema.definition.table import check_table_name
from millpond.settings import Retention
from millpond.spark.aggregate.compile import PREFIX, compile_aggregate
from millpond.spark.aggregate.cost import describe_state
from millpond.spark.aggregate.declaration import EVENT_TIME, Declaration, Dedupe
from millpond.spark.aggregate.program import write_program
from millpond.spark.aggregate.restart import make_hidden_real
from millpond.spark.derive.plan import require_classic
from millpond.spark.job import Job
from millpond.spark.start import Sink, start
from millpond.spark.supervised import reviewer
from millpond.storage import open_storage
from millpond.versions import begin_name, check_can_begin, check_declaration, check_version, job_name, write_declaration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Aggregate:
    """The declaration of a table of buckets.

    name:         the table, and the job that fills it
    version:      a number of this declaration, from 1: its job and its table are then called
                  name.v2, and the name means the version that `millpond versions cutover` chose
    key:          the columns of the source that a group has in common; may be empty
    event_time:   the column with the time of an event, a timestamp
    values:       column name -> an aggregate of the source's columns, as for `agg`; Millpond must
                  be able to merge it, which isn't so for first and last; see `distinct`,
                  `quantile` and `top_k`
    resolutions:  length of buckets -> how long to keep them after their end (`2 days`), None for
                  ever.  Lengths are seconds or minutes that divide the next longer unit, and 1
                  hour, day, week, month, quarter or year of the session's time zone
    future_skew:  events later than the clock by more than this are dead letters; None takes every
                  time as it is, and then one wrong clock can expire all that is kept
    dedupe:       a column that tells events apart, and for how long it is remembered, as
                  ("event_id", "2 days"): an event with the same value is dropped, whatever else it
                  says.  The time begins when an event comes.  None takes every event
    dead_letters: how long events that are in no bucket, or too late for one, are listed with the
                  reason; None only counts them, and not those that are late
    Raises:       INVALID_REQUEST, INVALID_NAME.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int | None = None,
        key: Sequence[str],
        event_time: str,
        values: Mapping[str, Column],
        resolutions: Mapping[str, str | None],
        future_skew: str | None = "10 minutes",
        dedupe: tuple[str, str] | None = None,
        dead_letters: str | None = "7 days",
    ) -> None:
        self.name = check_table_name(name)
        self.version = None if version is None else check_version(name, version)
        self.table = check_table_name(job_name(name, version or 0))
        if isinstance(key, str) or any(not isinstance(column, str) for column in key):
            raise self._invalid(f"its key is {key!r:.80}", 'Name columns in a list: key=["page"].')
        if not values:
            raise self._invalid("it has no values", 'Name at least one: values={"hits": F.count("*")}.')
        names = [*key, *values]
        taken = next((n for n in names if n.lower() in OF_BUCKETS or [m.lower() for m in names].count(n.lower()) > 1), None)
        if taken is not None:
            raise self._invalid(
                f"{taken!r} is there twice, or is a column of buckets", f"Name it otherwise than {', '.join(OF_BUCKETS)}."
            )
        try:
            keeps = {length: None if keep is None else parse_seconds(keep) for length, keep in resolutions.items()}
            self._declared = Declaration(
                name=self.table,
                key=tuple(key),
                event_time=event_time,
                values=dict(values),
                resolutions=parse_each(list(keeps.items())),
                skew_seconds=None if future_skew is None else parse_seconds(future_skew),
                dedupe=None if dedupe is None else _dedupe(*dedupe),
                letters_seconds=None if dead_letters is None else parse_seconds(dead_letters),
            )
        except (ValueError, AttributeError, TypeError) as wrong:
            raise self._invalid(f"a length of time can't be used: {wrong}", "Mend that length.") from None
        self._check_lengths()

    def __repr__(self) -> str:
        declared = self._declared
        return f"<Aggregate {self.table}: by {', '.join(declared.key) or 'nothing'}, {', '.join(map(str, declared.resolutions))}>"

    @property
    def declared(self) -> Declaration:
        """What it says, checked."""
        return self._declared

    def keeping(self, each: tuple[Resolution, ...]) -> Aggregate:
        """The same with other times of the same resolutions."""
        other = copy(self)
        other._declared = replace(self._declared, resolutions=each)
        return other

    def on(self, source: DataFrame, *, checkpoint: str | Path | None = None) -> DataFrame:
        """The aggregate of a source: the streaming DataFrame that `start` runs.

        Of a batch DataFrame it is the same from scratch, as of now, with all buckets.

        checkpoint:  where the job's checkpoint is or will be, for a job that you start yourself;
                     without it, events that are late aren't listed
        Raises:  INVALID_REQUEST if the source lacks a column, or its time is no timestamp, or it
                 has a watermark; SPARK_CONNECT.
        """
        return self.on_part(source, checkpoint, None)

    def on_part(self, source: DataFrame, checkpoint: str | Path | None, part: Column | None) -> DataFrame:
        """The same of the events that a condition chooses; None: all.  Raises as `on`."""
        require_classic(source, "_jdf")
        self._check_source(source)
        return compile_aggregate(self._declared, source, self._late_by(source, checkpoint), part)

    def program(self, source: DataFrame, *, checkpoint: str | Path | None = None) -> str:
        """The PySpark program that `on` stands for: of a DataFrame `source` it makes `aggregated`.

        Raises:  as `on`; UNSUPPORTED if a value has no text in SQL, such as a Python function.
        """
        self.on(source)
        return write_program(self._declared, source, self._late_by(source, checkpoint))

    def explain(self, source: DataFrame, *, checkpoint: str | Path | None = None) -> None:
        """Print the program of `program`.  Raises as `program`."""
        print(self.program(source, checkpoint=checkpoint))

    def describe_state(self) -> str:
        """How many rows a group has in the state, and for how long, as text."""
        return describe_state(self._declared)

    def check_version(self, pond: str | Path) -> None:
        """Refuse what `start` refuses by the versions in a pond.

        Raises:  DEFINITION_CHANGED if this version was declared otherwise; TABLE_EXISTS,
                 CORRUPT_FILE.
        """
        check_can_begin(pond, self.name, self.version)
        if self.version is not None:
            check_declaration(job_of(pond, self.table).storage, self._declared.to_json(), self.table)

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
        indexes: Given = (),
        fenced: bool = False,
        take_over: bool = False,
    ) -> Job:
        """Start the job of this aggregate, or continue it from its checkpoint; `millpond.start` does the same.

        Expired rows aren't kept: that is what the retention of a resolution says.  If it says the
        times for which readers see buckets already (`RetentionPlan.hide`), the state gets them first.

        history:  which changes every follower keeps, as for `Retention.parse`; None for none
        pond, job, trigger, sink, partitions, indexes, fenced, take_over:  as for `millpond.start`;
                  the job of a version has the version's name
        Raises:   as `on` and `millpond.start`; NOT_DERIVABLE if the buckets of a value can't be
                  merged; DEFINITION_CHANGED if the version was declared otherwise; TABLE_EXISTS if
                  the name means versions, and this declaration has none.
        """
        if self.version is not None and job not in (None, self.table):
            raise self._invalid(f"its job is to be {job!r:.80}, and that of a version has the version's name", "Leave job out.")
        self.check_version(pond)
        folder = job_of(pond, job or self.table)
        if (keeper := reviewer()) is not None:
            kept: Job = keeper.start_aggregate(folder.job)
            return kept
        declared = self._declared.to_json()
        if not newest_conf(open_storage(folder.checkpoint)):
            print(self.describe_state(), file=sys.stderr)
        make_hidden_real(self, source, pond, folder, take_over=take_over)
        started = start(
            self.on(source, checkpoint=folder.checkpoint),
            table=self.table,
            pond=pond,
            job=job,
            trigger=trigger,
            sink=sink,
            partitions=partitions,
            retention=Retention.parse(keep_closed="no", history=history),
            indexes=indexes,
            strict=True,
            fenced=fenced,
            take_over=take_over,
        )
        try:
            if self.version is not None:
                write_declaration(folder.storage, declared)
                begin_name(pond, self.name, self.version)
        except BaseException:
            started.stop()
            raise
        return started

    @staticmethod
    def _late_by(source: DataFrame, checkpoint: str | Path | None) -> str | None:
        return str(checkpoint) if checkpoint is not None and source.isStreaming else None

    def _check_lengths(self) -> None:
        """Refuse lengths of time by which Spark would reject events that are to count.  Raises INVALID_REQUEST."""
        declared = self._declared
        skew = declared.skew_seconds
        for name, seconds in (
            ("dedupe", declared.dedupe and declared.dedupe.horizon_seconds),
            ("dead_letters", declared.letters_seconds),
        ):
            if seconds is not None and skew is not None and seconds <= skew:
                raise self._invalid(f"{name} isn't longer than future_skew", "Choose a longer one.")
        if declared.dedupe is not None and skew is None:
            raise self._invalid(
                "dedupe goes by the clock, and without future_skew events may be ahead of it", 'Leave future_skew at "10 minutes".'
            )

    def _check_source(self, source: DataFrame) -> None:
        """Raises INVALID_REQUEST."""
        from pyspark.sql.types import TimestampType

        declared = self._declared
        columns = {field.name: field.dataType for field in source.schema.fields}
        wanted = [*declared.key, declared.event_time, *([] if declared.dedupe is None else [declared.dedupe.column])]
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise self._invalid(f"the source has no column {', '.join(missing)}", f"Its columns are {', '.join(columns)}.")
        if not isinstance(columns[declared.event_time], TimestampType):
            found = columns[declared.event_time].simpleString()
            raise self._invalid(
                f"{declared.event_time} is a {found}", f'Convert it: .withColumn("{declared.event_time}", …cast("timestamp")).'
            )
        taken = [name for name in columns if name.lower() in OF_BUCKETS or name.lower().startswith(PREFIX)]
        if taken:
            raise self._invalid(f"the source has a column {', '.join(taken)} already", "Rename that column.")
        if any(EVENT_TIME in field.metadata for field in source.schema.fields):
            raise self._invalid("the source has a watermark", "Leave withWatermark out: an aggregate has one of its own.")

    def _invalid(self, found: str, hint: str) -> RequestError:
        return RequestError("INVALID_REQUEST", f"The aggregate {self.name} can't be used: {found}.", hint=hint)


def _dedupe(column: str, horizon: str) -> Dedupe:
    if not isinstance(column, str):
        raise ValueError(f"{column!r:.40} isn't the name of a column")
    return Dedupe(column, parse_seconds(horizon))

"""What becomes of each event of an aggregate: a batch computation by the declaration and the checkpoint's batches.

1. Each event gets the time and the watermarks of its step.
2. Of the steps in which an id came, those are found in which it wasn't remembered.  One event of
   such a step counts, the others are duplicates.  If events of one id in one batch differ, nobody
   can tell which of them Spark took: each of them may count.
3. Each event becomes its rows, by the same expressions as in the job (`aggregate.compile`).
4. A step that isn't known exactly may leave more than one possibility; each is a row that isn't sure.

So for every bucket and dead letter there are two numbers, how many events it has at least and at
most.  They are equal as long as all is known.

Source:  StreamingDeduplicateWithinWatermarkExec, Spark 4.3: an id is forgotten at the end of a batch
         whose watermark has reached its time, and a duplicate doesn't prolong it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.schema.definition.resolutions import BUCKET, EXPIRES, FUTURE, LATE, LETTER, RESOLUTION
from millpond.spark.aggregate.compile import PREFIX, EventAt, after
from millpond.spark.aggregate.declaration import Declaration, Dedupe
from millpond.spark.aggregate.late import WATERMARK
from millpond.spark.audit.input import NAME, OFFSET, PART, SOURCE, file_name
from millpond.spark.audit.steps import Step
from millpond.spark.shards import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STEP, SURE, FIRST, LAST = (f"{PREFIX}{name}" for name in ("step", "sure", "first", "last"))
"""The step of a row's event; whether it is sure; whether it is the first row of its event; when it
expires at the latest: at the earliest it is `expires_at`."""
CLOCK, LATEST = f"{PREFIX}clock", f"{PREFIX}latest"
DUPLICATE = "duplicate"
"""In place of a resolution: the event's id was remembered."""
APART = f"{PREFIX}apart"
_BEFORE, _BEFORE_LATEST, _ROW, _EXACT, _ONE = (f"{PREFIX}{name}" for name in ("before", "before_latest", "row", "exact", "one"))
_OPEN, _TAKEN, _UNSURE = (f"{PREFIX}{name}" for name in ("open", "taken", "unsure"))


def recount(declared: Declaration, events: DataFrame, steps: Sequence[Step], remembered: DataFrame | None = None) -> DataFrame:
    """A row for each bucket or dead letter of each event, with its step.

    events:      the input of all steps, with the column PART
    remembered:  the ids that the state had before the first step, with APART and EXPIRES; None: none
    Shape:       the columns of the events, WATERMARK, STEP, SURE, FIRST, RESOLUTION, BUCKET, EXPIRES,
             LAST, LETTER
    """
    from pyspark.sql import functions as sf

    names = [quoted(name) for name in events.columns if name != PART]
    event = EventAt(declared, names, sf.col(CLOCK))
    rows = _with_steps(events, steps)  # 1
    duplicate, unsure = sf.lit(False), sf.lit(False)
    if declared.dedupe is not None:
        rows = _with_duplicates(rows, declared.dedupe, event, remembered)  # 2
        duplicate, unsure = sf.col(_TAKEN) == 0, sf.col(_UNSURE)
    made, is_open = event.rows(), sf.lit(False)  # 3
    if declared.skew_seconds is not None:
        # The clock of the batch may have been after that of the events, or not.
        is_open = sf.coalesce(event.is_future(sf.col(CLOCK)) & ~event.is_future(sf.col(LATEST)), sf.lit(False))
        if declared.dedupe is not None:
            is_open &= sf.col(quoted(declared.dedupe.column)).isNotNull()
        made = sf.when(is_open, sf.concat(sf.array(event.letter(FUTURE)), event.buckets())).otherwise(made)
    made = sf.when(duplicate & ~unsure, sf.array(_nothing(event))).otherwise(made)
    opened = {_OPEN: is_open | unsure, _ROW: made}
    rows = rows.select(*names, PART, STEP, CLOCK, LATEST, WATERMARK, _EXACT, *(value.alias(name) for name, value in opened.items()))
    rows = rows.select("*", sf.posexplode(_ROW).alias("pos", "each"))
    listed = declared.letters_seconds is not None
    expires, is_exact = sf.col(f"each.{EXPIRES}"), sf.col(_EXACT)
    is_letter = sf.col(f"each.{LETTER}").isNotNull() if listed else sf.lit(False)
    late = sf.col(f"each.{RESOLUTION}").startswith(LATE)
    kept_seconds = declared.letters_seconds or 0
    return rows.select(
        *names,
        PART,
        STEP,
        WATERMARK,
        (sf.col("pos") == 0).alias(FIRST),
        (~sf.col(_OPEN) & (is_exact | ~late)).alias(SURE),  # 4
        sf.col(f"each.{RESOLUTION}"),
        sf.col(f"each.{BUCKET}"),
        sf.when(is_letter & ~is_exact, after(sf.col(CLOCK), kept_seconds)).otherwise(expires).alias(EXPIRES),
        sf.when(is_letter & ~is_exact, after(sf.greatest(LATEST, WATERMARK), kept_seconds)).otherwise(expires).alias(LAST),
        (sf.col(f"each.{LETTER}") if listed else _null("string")).alias(LETTER),
    )


def _nothing(event: EventAt) -> Column:
    return event.letter(DUPLICATE).withField(EXPIRES, _null("timestamp"))


def _null(kind: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.lit(None).cast(kind)


def _with_steps(events: DataFrame, steps: Sequence[Step]) -> DataFrame:
    """The events with number, times and watermarks of their step."""
    from pyspark.sql import functions as sf

    parts = [
        (p.source, file_name(p), p.first, p.end, s.number, *s.clock_ms, s.watermark_ms[1], *s.before_ms, s.is_exact, s.is_one)
        for s in steps
        for p in s.parts
    ]
    moments = (CLOCK, LATEST, WATERMARK, _BEFORE, _BEFORE_LATEST)
    shape = f"source int, name string, first long, end long, {STEP} int, {', '.join(f'{name} long' for name in moments)}, "
    table = sf.broadcast(events.sparkSession.createDataFrame(parts, f"{shape}{_EXACT} boolean, {_ONE} boolean").alias("step"))
    offset = sf.col(f"{PART}.{OFFSET}")
    is_part = (sf.col(f"{PART}.{SOURCE}") == sf.col("step.source")) & (sf.col(f"{PART}.{NAME}") == sf.col("step.name"))
    is_part &= sf.col("step.end").isNull() | ((offset >= sf.col("step.first")) & (offset < sf.col("step.end")))
    # Never leave an event out without a word.
    lost = sf.raise_error(sf.concat(sf.lit("no step has read "), sf.to_json(PART))).cast("int")
    return events.join(table, is_part, "left").select(
        *(quoted(name) for name in events.columns),
        sf.when(sf.col(STEP).isNotNull(), sf.col(STEP)).otherwise(lost).alias(STEP),
        *(sf.timestamp_millis(name).alias(name) for name in moments),
        _EXACT,
        _ONE,
    )


def _with_duplicates(rows: DataFrame, dedupe: Dedupe, event: EventAt, remembered: DataFrame | None) -> DataFrame:
    """The rows with 1 if Spark took them and 0 if it didn't, and whether that isn't sure."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    column, text = quoted(dedupe.column), event.as_json
    rows = rows.withColumn(APART, sf.when(sf.col(column).isNull(), text))
    until, latest = (after(sf.col(name), dedupe.horizon_seconds) for name in (CLOCK, LATEST))
    step = sf.struct(
        STEP, until.alias("until"), latest.alias("latest"), sf.col(_BEFORE).alias("b"), sf.col(_BEFORE_LATEST).alias("bl")
    )
    came = rows.groupBy(column, APART).agg(sf.array_sort(sf.collect_set(step)).alias("steps"))
    first = _null("timestamp")
    if remembered is not None:
        old = remembered.select(
            sf.col(column).alias("old_id"), sf.col(APART).alias("old_apart"), sf.col(EXPIRES).alias("old_until")
        )
        came = came.join(old, _same(column, "old_id") & _same(APART, "old_apart"), "left")
        first = sf.col("old_until")
    begin = sf.struct(
        first.alias("until"), first.alias("latest"), sf.array().cast("array<int>").alias("taken"), sf.lit(False).alias("open")
    )
    folded = came.select(
        sf.col(column).alias("of_id"), sf.col(APART).alias("of_apart"), sf.aggregate("steps", begin, _next_step).alias("fold")
    )
    rows = rows.join(folded, _same(column, "of_id") & _same(APART, "of_apart"))
    of_step = Window.partitionBy(column, APART, STEP)
    place = sf.row_number().over(of_step.orderBy(text, sf.to_json(PART)))
    differ = sf.min(text).over(of_step) != sf.max(text).over(of_step)
    several = sf.count("*").over(of_step) > 1
    is_taken = sf.array_contains("fold.taken", sf.col(STEP))
    # A step of many batches may have taken an id more than once.
    may_be_forgotten = several & ~sf.col(_ONE) & (sf.col(_BEFORE_LATEST) >= until)
    taken = {_TAKEN: (is_taken & (place == 1)).cast("int"), _UNSURE: sf.col("fold.open") | (is_taken & (differ | may_be_forgotten))}
    return rows.select("*", *(value.alias(name) for name, value in taken.items()))


def _next_step(ids: Column, step: Column) -> Column:
    """Whether an id is taken once more: by then it may be forgotten, be remembered, or nobody knows."""
    from pyspark.sql import functions as sf

    is_new = ids["until"].isNull() | (step["b"] >= ids["latest"])
    is_old = ids["until"].isNotNull() & (step["bl"] < ids["until"])
    taken = sf.concat(ids["taken"], sf.array(step[STEP]))
    return sf.struct(
        sf.when(is_new, step["until"]).otherwise(ids["until"]).alias("until"),
        sf.when(is_new, step["latest"]).otherwise(ids["latest"]).alias("latest"),
        sf.when(is_new, taken).otherwise(ids["taken"]).alias("taken"),
        (ids["open"] | ~(is_new | is_old)).alias("open"),
    )


def _same(one: str, other: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(one).eqNullSafe(sf.col(other))

"""Operator state in use: rows wait in the state of the instance that got them, for release in bulk.

An instance is a shard: a value to group by that has a partition of its own (`shards`).

1. Rows of a batch come to a shard, behind those that wait.  If none waited, a timer is set.
2. As soon as there are enough, the shard releases all that wait and the rest of the batch.
3. When the timer fires, the shard releases all that wait, even if there are few.

Waiting rows lie in Spark's state: in one batch, a row either waits or is released, never both.  A
batch that runs again after a failure has the same rows and the same time, so it releases the same
rows: all of the batch or none, in whatever order they come.

State variables, one table each:

    waiting   list: the rows, in the order they came
    fill      value: rows, due_ms, releases
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import IntegerType, LongType, StructField, StructType, TimestampType

from millpond.errors import RequestError
from millpond.schema.definition.parts import SPREAD
from millpond.schema.shards import SHARD
from millpond.spark.derive.plan import require_classic
from millpond.spark.session import default_partitions
from millpond.spark.shards import pick_shards, shard_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

RELEASE = "release"
_FILL = "rows long, due_ms long, releases long"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Some 31 years: a longer time is a mistake, and a timer's time must be in the calendar.
_MOST_SECONDS = 1_000_000_000
# Types whose values the state returns unchanged.
STATE_TYPES = frozenset(
    {"boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string", "binary", "date"}
    | {"timestamp", "timestamp_ntz"}
)


def buffered(
    df: DataFrame, *, at_least: int, after_seconds: float, shards: int | None = None, partitions: int | None = None
) -> DataFrame:
    """The rows of a stream, released in bulk: at least `at_least` at a time, or after `after_seconds`.

    Each row comes out once, with its `shard` and `release`, a number from 1 up within the shard.  A
    sink that writes each release at once makes few large writes, and these two numbers tell it
    which release is repeated.  The output is exactly once if the sink is: a file sink is, and so is
    a foreachBatch that skips batches that it has already written.

    at_least:       number of rows, from 1.  A release needs memory for so many, besides Spark's own
                    rows
    after_seconds:  the longest time that the oldest row waits, from 0.001 to 1,000,000,000; it is
                    as exact as the trigger, since only a batch can release rows
    shards:         by default the number of cores.  It may change: rows in a shard that no longer
                    exists are released when their time has come
    partitions:     of the state; give `start` the same number
    Times:          Python must be able to represent a timestamp, in UTC and in the session's zone:
                    years 1 to 9999.  Spark can't pass any other to a Python function, and the job
                    ends with `date value out of range`
    Tables:         `<table>_waiting` (shard, index; the columns), `<table>_fill` (shard; rows,
                    due_ms, releases)
    Raises:         INVALID_REQUEST, SPARK_CONNECT; WRONG_TYPE if the state would change values of a
                    column's type
    """
    require_classic(df, "_jdf")
    if not df.isStreaming:
        raise _invalid("the rows aren't a stream", "Read them with spark.readStream.")
    if isinstance(at_least, bool) or not isinstance(at_least, int) or at_least < 1:
        raise _invalid(f"at_least is {at_least!r}", "Use a whole number from 1.")
    is_number = isinstance(after_seconds, int | float) and not isinstance(after_seconds, bool)
    if not is_number or not 0.001 <= after_seconds <= _MOST_SECONDS:
        raise _invalid(f"after_seconds is {after_seconds!r:.40}", f"Use a number of seconds from 0.001 to {_MOST_SECONDS:,}.")
    _check_columns(df.schema)
    spark = df.sparkSession
    values = pick_shards(spark, shards, default_partitions(spark) if partitions is None else partitions)
    spread = df.withColumn(SHARD, shard_of(df.columns, values).alias(SHARD, metadata={SPREAD: True}))
    ours = [StructField(SHARD, IntegerType()), StructField(RELEASE, LongType())]
    return spread.groupBy(SHARD).transformWithState(
        _Buffer(StructType(df.schema.fields), at_least, int(after_seconds * 1000)),
        outputStructType=StructType([*ours, *df.schema.fields]),
        outputMode="append",
        timeMode="processingTime",
    )


class _Buffer(StatefulProcessor):  # type: ignore[misc]
    """Spark's processor of all shards of a task.

    It uses rows: in pandas, whole numbers become inexact beside a NULL.
    """

    def __init__(self, schema: StructType, at_least: int, after_ms: int) -> None:
        self._schema, self._at_least, self._after_ms = schema, at_least, after_ms
        self._names = [SHARD, RELEASE, *schema.names]
        self._kinds = [f.dataType.typeName() for f in schema.fields]

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._waiting = handle.getListState("waiting", self._schema)
        self._fill = handle.getValueState("fill", _FILL)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        waiting, due_ms, releases = self._fill.get() or (0, 0, 0)
        new: list[tuple[Any, ...]] = []
        for row in rows:  # 1
            new.append(self._of_input(row))
            if waiting + len(new) >= self._at_least:  # 2
                if waiting:
                    self._handle.deleteTimer(due_ms)
                yield from self._let_go(key, releases + 1, chain(new, map(self._of_input, rows)))
                return
        if not waiting:
            due_ms = timerValues.getCurrentProcessingTimeInMs() + self._after_ms
            self._handle.registerTimer(due_ms)
        self._waiting.appendList(new)
        self._fill.update((waiting + len(new), due_ms, releases))

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo) -> Iterator[Row]:  # noqa: ARG002
        waiting, due_ms, releases = self._fill.get() or (0, 0, 0)
        if waiting and due_ms == expiredTimerInfo.getExpiryTimeInMs():  # 3
            yield from self._let_go(key, releases + 1, ())

    def close(self) -> None:
        pass

    def _let_go(self, key: Any, release: int, more: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
        """All waiting rows in the order in which they came, and then these."""
        make = Row(*self._names)
        with times_in_utc():
            waiting = list(self._waiting.get())
        for values in chain(waiting, more):
            yield make(key[0], release, *values)
        self._waiting.clear()
        self._fill.update((0, 0, release))

    def _of_input(self, row: Row) -> tuple[Any, ...]:
        """A row's values; its times, which come in the session's zone, are converted to UTC."""
        return tuple(
            value.astimezone(UTC) if kind == "timestamp" and value is not None else value
            for value, kind in zip((row[name] for name in self._schema.names), self._kinds, strict=True)
        )


@contextmanager
def times_in_utc() -> Iterator[None]:
    """Within this context, PySpark returns the state's times in UTC, as they are.

    Otherwise it returns local times of the worker's machine without a zone, which Spark would take
    for times of the session.  It also fails on the first day of year 1 and, in zones east of UTC,
    in the last hours of 9999, whose local time is in no calendar.

    Source:  TimestampType.fromInternal, PySpark 4.3.  The worker has one thread, which is in this
             context, so no other code is affected.
    """
    local = TimestampType.fromInternal
    TimestampType.fromInternal = lambda _, micros: None if micros is None else _EPOCH + timedelta(microseconds=micros)
    try:
        yield
    finally:
        TimestampType.fromInternal = local


def _check_columns(schema: StructType) -> None:
    taken = [name for name in schema.names if name.lower() in (SHARD, RELEASE)]  # Spark's SQL ignores case: `Shard` is the same
    if taken:
        raise _invalid(f"the rows have a column {', '.join(sorted(taken))}", "Rename it with withColumnRenamed.")
    for field in schema.fields:
        if field.dataType.typeName() not in STATE_TYPES:
            raise RequestError(
                "WRONG_TYPE",
                f"The column {field.name} is of type {field.dataType.simpleString()}, whose values the state would change.",
                hint="Use texts, numbers, booleans, bytes, dates and times; convert nested columns with to_json(…).",
                column=field.name,
            )


def _invalid(what: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"The rows can't be buffered: {what}.", hint=hint)

"""Broadcast state: control records (rules, settings, models) that every parallel instance sees, beside a stream of events.

Each control record goes to every shard, each event to one; both are one stream, grouped by the shard, which
transformWithStateInPandas works on.
So the control state lies in Spark's own state, a copy a shard, is checkpointed with the job and survives its failures, and
readers are shown one copy.  A stream-static join can't do that: a static side that is read again on a retry is another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.schema.definition.parts import COPIES, METADATA
from millpond.spark.broadcast.check import BROADCAST, Subject, check_streams, event_columns, invalid
from millpond.spark.broadcast.chunks import EVENTS, PACKED, pack, to_pandas
from millpond.spark.broadcast.control import CORRUPT, FILE, WHOLE, Change, Control, columns_of, has_corrupt
from millpond.spark.broadcast.shard import (
    CONTROL_COLUMN,
    NAMES,
    ORDER_COLUMN,
    TIME_COLUMN,
    BroadcastShard,
    Names,
    ShardPlan,
    Work,
)
from millpond.spark.shards import SHARD, pick_shards, quoted, shard_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
    from pyspark.sql.types import StructType

Process = Callable[["pd.DataFrame", Control], "pd.DataFrame"]
VERSION_COLUMN = "control_version"
KEEP_VERSIONS = 1000
_BEFORE_ALL = -(1 << 63)


def broadcast(
    events: DataFrame,
    control: DataFrame,
    process: Process,
    *,
    output: str | StructType,
    key: str,
    order: str,
    by: str | list[str] | None = None,
    shards: int | None = None,
    partitions: int | None = None,
    keep_versions: int = KEEP_VERSIONS,
) -> DataFrame:
    """A stream of what `process` makes of events and of the control state that they meet.

    A control record that a batch takes in is seen by every event of that batch and of later ones, exactly once, over restarts and
    failures.  The events of a batch wait in memory until all its control records are known: a shard holds its events of one batch.

    control:    its column `key` says what a record is about; the others are what that key has from here on.  Two names are ours:
                `action` (text: put, which is meant where it is NULL; remove; rollback) and `version` (long: which version a
                rollback goes back to).  Text, booleans, whole and other numbers, decimals and bytes; a key is no float or double.
                A text column `_corrupt_record`, which Spark's JSON and CSV readers fill, is no value: its record is refused
    process:    gets a chunk of events (as pandas_udf has them) and the state, a read-only dict by key, with its `version`; gives
                rows.  Called once or more for a shard and batch.
    output:     the schema of these rows; `control_version`, a long, is put behind them
    order:      the control column by which the records of one batch are put in order: whole numbers (an offset) or a timestamp
    by:         columns of the events: equal ones meet in one shard; by default all columns
    shards:     copies of the control state, each with its part of the events; by default the number of cores; a checkpoint keeps it
    partitions: of the state, as `start` gets it; by default as many as there are shards
    keep_versions: so many changes can be asked for, and gone back to; as many refused records are kept
    Tables:     `<table>_control`, `<table>_versions`, `<table>_errors`
    Raises:     INVALID_REQUEST, SPARK_CONNECT.
    """
    if not callable(process) or isinstance(process, type):  # such as a class of Spark's stateful processors
        raise invalid(
            f"process is {process!r:.60}",
            "Give a function of events and control state; state and timers for each key of the events can't be had beside it.",
        )
    schema = output_schema(output)
    if VERSION_COLUMN in schema.names:
        raise invalid(f"output names {VERSION_COLUMN}", "Leave it out: it is added.")
    work = _Function(process, tuple(schema.names), str(events.sparkSession.conf.get("spark.sql.session.timeZone")))
    return run_shards(
        events,
        control,
        work,
        output=schema.add(VERSION_COLUMN, "long"),
        key=key,
        order=order,
        by=by,
        shards=shards,
        partitions=partitions,
        keep_versions=keep_versions,
    )


def run_shards(
    events: DataFrame,
    control: DataFrame,
    work: Work,
    *,
    output: StructType,
    key: str,
    order: str,
    by: str | list[str] | None,
    shards: int | None,
    partitions: int | None,
    keep_versions: int,
    names: Names = NAMES,
    reason: str | None = None,
    variables: Mapping[str, Any] | None = None,
    computed: Mapping[str, Any] | None = None,
    fixed: Mapping[str, list[str]] | None = None,
    pond: str | None = None,
    subject: Subject = BROADCAST,
) -> DataFrame:
    """The same with work that has state of its own.

    reason:     the control column that says why a record is refused already
    variables:  of the work's state variables, how the parts of a row become one, and
    computed:   which columns are made of others
    fixed:      what a checkpoint can't change besides: see `schema.parts`
    pond:       the only one that the job may be started in; None for any
    subject:    how errors name this
    """
    from pyspark.sql import functions as F

    check_streams(events, control, key, order, subject)
    if type(keep_versions) is not int or keep_versions < 1:
        raise invalid(f"keep_versions is {keep_versions!r}", "Use a whole number from 1.", subject)
    spark = events.sparkSession
    values = pick_shards(spark, shards, partitions)
    of_event = shard_of(event_columns(events, by, subject), values)
    of_record = columns_of(control.schema, key, order)
    records = control.select(
        record_json(control, [f.name for f in of_record]).alias(CONTROL_COLUMN),
        order_number(control, order, subject).alias(ORDER_COLUMN),
        F.unix_millis(F.current_timestamp()).alias(TIME_COLUMN),
        F.explode(F.array(*[F.lit(value) for value in values])).alias(SHARD),
    )
    packed = events.withColumn(SHARD, of_event).mapInArrow(pack, PACKED)
    nothing = {CONTROL_COLUMN: F.lit(None).cast("string"), ORDER_COLUMN: F.lit(0).cast("long"), TIME_COLUMN: F.lit(0).cast("long")}
    both = records.withColumn(EVENTS, F.lit(None).cast("binary")).unionByName(packed.withColumns(nothing))
    plan = ShardPlan(
        key=key,
        columns=tuple(of_record),
        shards=len(values),
        keep_versions=keep_versions,
        identity=uuid.uuid4().hex,
        names=names,
        reason=reason,
    )
    described_parts: dict[str, Any] = {
        "values": list(values),
        "variables": {**dict.fromkeys(names, COPIES), **(variables or {})},
        "computed": dict(computed or {}),
        "fixed": dict(fixed or {}),
        **({} if pond is None else {"pond": pond}),
    }
    grouped = both.withColumn(SHARD, F.col(SHARD).alias(SHARD, metadata={METADATA: described_parts})).groupBy(SHARD)
    return grouped.transformWithStateInPandas(BroadcastShard(plan, work), output, "append", "none")


def record_json(control: DataFrame, columns: Sequence[str]) -> Column:
    """A control record as JSON of these columns; one that the reader couldn't parse as its text and, if known, its file."""
    from pyspark.sql import functions as F

    record = F.to_json(F.struct(*[F.col(quoted(name)) for name in columns]))
    if not has_corrupt(control.schema):
        return record
    file = file_column(control)
    corrupt = F.to_json(F.struct(F.col(CORRUPT), *([] if file is None else [file.alias(FILE)])))
    return F.when(F.col(CORRUPT).isNotNull(), corrupt).otherwise(record)


def file_column(df: DataFrame) -> Column | None:
    """The URI of the file that a row was read from; None where the stream doesn't tell it."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        df.select(F.col(FILE).cast("string"))
    except AnalysisException:
        return read_from(df)
    return F.col(FILE)


def read_from(df: DataFrame) -> Column | None:
    """The same by Spark's own word, whatever columns the stream has."""
    from pyspark.errors import AnalysisException

    try:
        column = df.metadataColumn("_metadata").getField("file_path")
        df.select(column)
    except AnalysisException:
        return None
    return column


def output_schema(output: str | StructType) -> StructType:
    """The schema of an output.  Raises INVALID_REQUEST."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if isinstance(output, StructType):
        return StructType(list(output.fields))
    try:
        found = StructType.fromDDL(output)
    except PySparkException as wrong:
        raise invalid(f"output is no schema: {wrong}", 'Write it like "page string, hits long".') from None
    assert isinstance(found, StructType)
    return found


def order_number(control: DataFrame, order: str, subject: Subject = BROADCAST) -> Column:
    """What records are put in order by: a long, never NULL, since pandas would make floating-point numbers of all of them.

    Records without it come first.  Raises INVALID_REQUEST.
    """
    from pyspark.sql import functions as F

    kind = control.schema[order].dataType.typeName()
    column = F.col(f"`{order}`")
    if kind not in (*WHOLE, "timestamp"):
        raise invalid(
            f"{subject.control} can't be ordered by {order}, of type {kind}",
            "Use whole numbers, such as an offset, or a timestamp.",
            subject,
        )
    return F.coalesce(F.unix_micros(column) if kind == "timestamp" else column.cast("long"), F.lit(_BEFORE_ALL))


@dataclass(frozen=True, slots=True)
class _Function:
    """A user's function as work.

    columns:   of its output
    timezone:  the session's
    """

    process: Process
    columns: tuple[str, ...]
    timezone: str

    def open(self, handle: StatefulProcessorHandle) -> None:
        """It has no state of its own."""

    def changed(self, changes: list[Change]) -> None:
        """It sees the control state with its events."""

    def run(self, events: Iterable[pa.Table], control: Control) -> Iterator[pd.DataFrame]:
        """Its rows, each with the version that it met."""
        import pandas as pd

        for chunk in events:
            found: Any = self.process(to_pandas(chunk, self.timezone), control)
            if not isinstance(found, pd.DataFrame) or not set(self.columns) <= set(found.columns):
                returned = list(found.columns) if isinstance(found, pd.DataFrame) else type(found).__name__
                raise invalid(
                    f"process has returned {returned}", f"Return a pandas DataFrame with the columns {', '.join(self.columns)}."
                )
            yield found[list(self.columns)].assign(**{VERSION_COLUMN: control.version})

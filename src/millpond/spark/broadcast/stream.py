"""Broadcast state: control records (rules, settings, models) for every instance, with a stream of events.

Each control record goes to every shard, each event to one.  Both are one stream, grouped by the
shard, for transformWithStateInPandas.  So the control state lies in Spark's own state, one copy per
shard.  Checkpoints contain it, it survives failures, and readers see one copy.  A stream-static
join can't do that: a retry may read another static side.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.schema.definition.parts import COPIES, METADATA
from millpond.schema.shards import SHARD
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
from millpond.spark.shards import pick_shards, quoted, shard_of

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
    """The stream that `process` makes of events and the control state that applies to them.

    A control record applies to every event of the batch that reads it and of later batches, exactly
    once, over restarts and failures.  The events of a batch wait in memory until all its control
    records are known: a shard needs memory for its events of one batch.

    control:    its column `key` names the key of a record; the other columns are that key's row
                from here on.  Two names are reserved: `action` (text: put, also if NULL; remove;
                rollback) and `version` (long: the version that a rollback restores).  Columns may
                be text, booleans, numbers, decimals and bytes; a key can't be a float or double.  A
                text column `_corrupt_record`, which Spark's JSON and CSV readers fill, isn't part
                of the row: a record that has it is refused
    process:    gets a chunk of events (as for pandas_udf) and the state, a read-only dict by key
                with its `version`; returns rows.  Called once or more for each shard and batch
    output:     the schema of these rows; `control_version`, a long, is added at the end
    order:      the control column that orders the records of one batch: whole numbers (an offset)
                or a timestamp
    by:         columns of the events: events with equal values go to one shard; by default all
                columns
    shards:     how many copies of the control state, each with its part of the events; by default
                the number of cores; a checkpoint keeps it until `plan_redistribute` changes it
    partitions: of the state; give `start` the same number; by default the number of shards
    keep_versions: how many changes are kept, to be asked for and rolled back to, and how many
                   refused records
    Tables:     `<table>_control`, `<table>_versions`, `<table>_errors`
    Raises:     INVALID_REQUEST, SPARK_CONNECT.
    """
    if not callable(process) or isinstance(process, type):  # such as a class of Spark's stateful processors
        raise invalid(
            f"process is {process!r:.60}",
            "Give a function of events and control state; it can't have state and timers for each key of the events.",
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
    """The same for work that has state of its own.

    reason:     the control column that says why a record is already refused
    variables:  how the parts of a row of the work's state variables become one
    computed:   which of their columns are computed from others
    fixed:      further choices that a checkpoint can't change: see `schema.definition.parts`
    pond:       the only pond in which the job may start; None for any
    subject:    the words for errors
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
    """A control record as JSON of these columns.

    If the reader couldn't parse it: its text and, if known, its file.
    """
    from pyspark.sql import functions as F

    record = F.to_json(F.struct(*[F.col(quoted(name)) for name in columns]))
    if not has_corrupt(control.schema):
        return record
    file = file_column(control)
    corrupt = F.to_json(F.struct(F.col(CORRUPT), *([] if file is None else [file.alias(FILE)])))
    return F.when(F.col(CORRUPT).isNotNull(), corrupt).otherwise(record)


def file_column(df: DataFrame) -> Column | None:
    """The URI of the file from which a row was read; None if the stream doesn't have it."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        df.select(F.col(FILE).cast("string"))
    except AnalysisException:
        return read_from(df)
    return F.col(FILE)


def read_from(df: DataFrame) -> Column | None:
    """The same from Spark's own metadata, with any columns of the stream."""
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
        raise invalid(f"output isn't a schema: {wrong}", 'Write it like "page string, hits long".') from None
    assert isinstance(found, StructType)
    return found


def order_number(control: DataFrame, order: str, subject: Subject = BROADCAST) -> Column:
    """The sort key of records: a long that is never NULL, since a NULL makes pandas use floats.

    Records without a sort key come first.  Raises INVALID_REQUEST.
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
        """Does nothing: a function has no state of its own."""

    def changed(self, changes: list[Change]) -> None:
        """Does nothing: the function gets the control state with its events."""

    def run(self, events: Iterable[pa.Table], control: Control) -> Iterator[pd.DataFrame]:
        """The function's rows, each with the control version that applied to it."""
        import pandas as pd

        for chunk in events:
            found: Any = self.process(to_pandas(chunk, self.timezone), control)
            if not isinstance(found, pd.DataFrame) or not set(self.columns) <= set(found.columns):
                returned = list(found.columns) if isinstance(found, pd.DataFrame) else type(found).__name__
                raise invalid(
                    f"process has returned {returned}", f"Return a pandas DataFrame with the columns {', '.join(self.columns)}."
                )
            yield found[list(self.columns)].assign(**{VERSION_COLUMN: control.version})

"""The three ways to name a job's state: start it, publish a running query, or define a table.

All derive the definition from the plan and write it beside the checkpoint; `start` also runs the
query with its checkpoint in the pond.  If a definition is of other state than the checkpoint's, it
is refused before anything runs, and the error names the difference (`same_state`).
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from millpond.catalogue import JobFolder, create_beside, create_job, folders_of, job_of
from millpond.checkpoint.log import committed_batches, newest_conf, read_batch
from millpond.errors import DefinitionError, RequestError, SavepointError
from millpond.ownership.lease import take_lease
from millpond.ownership.runs import Run, begin_run
from millpond.ownership.take_over import finish
from millpond.schema.definition.indexes import Given, check_indexes, parse_indexes
from millpond.schema.definition.operator_name import Entry, NamedOperator
from millpond.schema.definition.table import TableDefinition
from millpond.settings import LeaseSettings, Retention
from millpond.spark.derive.definition import MillpondWarning, derive, derive_plan
from millpond.spark.derive.plan import (
    Java,
    class_name,
    find_clock,
    is_time_zone,
    refuse_real_time_trigger,
    require_classic,
    zone_of_session,
)
from millpond.spark.derive.same_state import check_same_state, with_history
from millpond.spark.guard import JvmGuard
from millpond.spark.job import Job, JobLease, report_published
from millpond.spark.session import default_partitions
from millpond.spark.supervised import began_ms, drilled_job, note_start, orders, reviewer, starting, wait_as_standby
from millpond.storage import open_storage, uri_of
from millpond.storage.machine import host_name, process_start
from millpond.storage.names import hadoop_uri, path_of_hadoop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from millpond.spark.aggregate.declare import Aggregate

Sink = str | Callable[..., Any] | None
OUTPUT_MODES = ("update", "complete", "append")
PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_TIME_ZONE = "spark.sql.session.timeZone"
_STORE = "spark.sql.streaming.stateStore."
_REPORTS = "spark.sql.streaming.numRecentProgressUpdates"
# Files of this format have an id of their own, and commits/N names those that count.
_FENCED = {
    PROVIDER: ROCKSDB,
    _STORE + "rocksdb.changelogCheckpointing.enabled": "true",
    _STORE + "checkpointFormatVersion": "2",
}
_HOST_LETTERS = 64
_conf_lock = threading.Lock()


@overload
def start(
    df: DataFrame,
    *,
    table: str,
    pond: str | Path,
    job: str | None = None,
    trigger: str | None = None,
    output_mode: str = "update",
    sink: Sink = None,
    partitions: int | None = None,
    retention: Retention | None = None,
    indexes: Given = (),
    strict: bool = False,
    fenced: bool = False,
    take_over: bool = False,
) -> Job: ...


@overload
def start(
    df: Aggregate,
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
) -> Job: ...


def start(
    df: DataFrame | Aggregate,
    source: DataFrame | None = None,
    *,
    table: str | None = None,
    pond: str | Path,
    job: str | None = None,
    trigger: str | None = None,
    output_mode: str = "update",
    sink: Sink = None,
    partitions: int | None = None,
    retention: Retention | None = None,
    history: str | None = None,
    indexes: Given = (),
    strict: bool = False,
    fenced: bool = False,
    take_over: bool = False,
) -> Job:
    """Start a streaming job whose state can be read as tables, or continue from its checkpoint.

    df:           a streaming DataFrame; or an `Aggregate`, whose table has its name
    source:       of an `Aggregate`: the streaming DataFrame with its events
    table:        the name that readers use; for a join or transformWithState, the first part of its
                  tables' names (docs/operators.md)
    pond:         folder of jobs; made if it doesn't exist
    job:          the job's name, by default the table's
    trigger:      None for one batch after another, an interval such as `1 second`, or
                  `available-now` to end with the input.  A query that uses processing time (timers,
                  a TTL, time-outs, `buffered`) never ends: Spark plans a batch after each one,
                  unless the session has spark.sql.streaming.noDataMicroBatches.enabled=false
    output_mode:  Spark's update, complete or append
    sink:         None for no sink, a format's name (`console`), or a function: with one parameter
                  it configures and returns the DataStreamWriter; with two it gets each batch and
                  its id (foreachBatch)
    partitions:   of the state; by default the number of cores, at least 8 (for a broadcast, its
                  number of shards); an existing checkpoint keeps its own number.  The provider is
                  the session's; for transformWithState it is RocksDB, the only one that it supports
    retention:    which expired rows and history every follower keeps of the tables, e.g.
                  Retention.parse(keep_closed="forever"); it is part of the definition, which each
                  start writes again.  None leaves it to the follower
    indexes:      the columns by which every follower also sorts the table's rows, for `Table.top`:
                  `["hits", ("site", "hits")]`
    history:      of an `Aggregate`, in place of `retention`: which changes every follower keeps
    strict:       refuse a state whose meaning can't be derived, instead of serving raw buffers with
                  a MillpondWarning
    fenced:       keep the state in RocksDB and checkpoint format 2, and end the JVM when the job
                  can't renew its lease, so that a job that was paused never spoils what another has
                  committed meanwhile (docs/savepoints.md).  A checkpoint of another format is
                  refused
    take_over:    start although another job has the lease of the checkpoint; only if you know that
                  it can't write any more
    Raises:  CHECKPOINT_IN_USE if another job has the checkpoint; DEFINITION_CHANGED, NOT_DERIVABLE,
             SPARK_CONNECT, TABLE_EXISTS, INVALID_NAME, NOT_WRITABLE; INVALID_REQUEST, also if the
             query would never end; UNSUPPORTED if the sink function sets a real-time trigger; and
             Spark's own error if the query can't start.
    """
    from millpond.spark.aggregate.declare import Aggregate  # which starts jobs by this function

    if isinstance(df, Aggregate):
        if source is None or (table, output_mode, retention, strict) != (None, "update", None, False):
            raise _invalid(
                "an aggregate needs a source, and has its own name, mode and retention", "Write start(aggregate, source, pond=…)."
            )
        return df.start(
            source,
            pond=pond,
            job=job,
            trigger=trigger,
            sink=sink,
            partitions=partitions,
            history=history,
            indexes=indexes,
            fenced=fenced,
            take_over=take_over,
        )
    require_classic(df, "_jdf")
    if source is not None or history is not None or table is None:
        raise _invalid("a DataFrame needs a table's name, and has no other source or history", "Write start(df, table=…, pond=…).")
    if output_mode not in OUTPUT_MODES:
        raise _invalid(f"output_mode is {output_mode!r}", f"Use one of {', '.join(OUTPUT_MODES)}.")
    if partitions is not None and partitions < 1:
        raise _invalid(f"partitions is {partitions}", "Use a whole number from 1.")
    if (keeper := reviewer()) is not None:
        kept: Job = keeper.start_job(df, job_of(pond, job or table), trigger=trigger, output_mode=output_mode, sink=sink)
        return kept
    spark, asked = df.sparkSession, orders()
    pond, sink = (pond, sink) if asked.pond is None else (asked.pond, None)
    folder = job_of(pond, job or table)
    drilled_job(folder)
    if asked.pond is not None:
        _refuse_cleaning(df)
    lease = None
    while lease is None:  # a standby may meet another one, which is faster
        wait_as_standby(folder, fenced=fenced)
        pinned = newest_conf(open_storage(folder.checkpoint))
        definition = derive(df, table=table, strict=strict, output_mode=output_mode, pinned=pinned)
        if asked.pond is None:
            _check_pond(definition, pond)
        definition = _kept(definition, retention, indexes)
        if fenced and pinned:
            _check_can_fence(folder)
        try:
            lease = _take_lease(spark, folder, fenced=fenced, take_over=take_over)
        except SavepointError as error:
            if not (asked.is_standby and error.condition == "CHECKPOINT_IN_USE"):
                raise
    query: StreamingQuery | None = None
    try:
        finish(folder)  # a command that changed the checkpoint may have been killed
        check_same_state(folder, definition)
        definition = with_history(folder, definition)
        folder = create_job(pond, folder.job)
        writer = df.writeStream.queryName(folder.job).outputMode(output_mode)
        writer = with_trigger(with_sink(writer, sink), trigger).option("checkpointLocation", hadoop_uri(folder.checkpoint))
        wanted = partitions or shards(definition) or default_partitions(spark)
        _refuse_trigger(writer, df)
        conf = {PARTITIONS: str(wanted), **({PROVIDER: ROCKSDB} if _needs_rocksdb(definition) else {})}
        conf |= _FENCED if fenced else {}
        _tell_choices(folder.job, pinned, {PROVIDER: str(spark.conf.get(PROVIDER)), **conf}, partitions)
        folder.write_definition(definition)
        run = _begin_run(folder, _newest_committed(folder))
        with session_conf(spark, conf), starting():
            query = writer.start()
        lease.begin(query)
        folder.write_sink(_file_sink_of(query))
        note_start(folder)
        return Job(folder, query, definition, session=spark, lease=lease, run=run)
    except BaseException:
        _stop_started(spark, folder.job, query, lease)
        lease.release()  # not if the query may still write
        raise


def _stop_started(spark: SparkSession, name: str, query: StreamingQuery | None, lease: JobLease) -> None:
    """Stop the query of a job that couldn't be started to the end; Spark may have it, though `start` has raised."""
    with suppress(Exception):  # the JVM may have ended
        found = query or next((each for each in spark.streams.active if each.name == name), None)
        if found is not None:
            lease.begin(found)
            found.stop()


def _newest_committed(folder: JobFolder) -> int | None:
    return max(committed_batches(open_storage(folder.checkpoint)), default=None)


def _begin_run(folder: JobFolder, before: int | None) -> Run:
    """Record that the job runs from now on, after this batch.  Raises NOT_WRITABLE, and what the storage raises."""
    run = Run(began_ms=began_ms(), host=host_name()[:_HOST_LETTERS], batch=before)
    begin_run(folder.storage, run)
    return run


def _refuse_cleaning(df: DataFrame) -> None:
    """Refuse a file source that deletes or moves the files of a committed batch.  Raises INVALID_REQUEST."""
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if class_name(leaf) != "StreamingRelation":
            continue
        pairs = leaf.dataSource().options().toSeq()
        options = {str(pairs.apply(n)._1()).lower(): str(pairs.apply(n)._2()).lower() for n in range(pairs.size())}
        if options.get("cleansource", "off") != "off":
            raise _invalid(
                "its source cleans up the files of each batch, so a drill would take them from the real job",
                "Leave cleanSource out where MILLPOND_DRILL_POND is in the environment.",
            )


def _take_lease(spark: SparkSession, folder: JobFolder, *, fenced: bool, take_over: bool) -> JobLease:
    """The lease of the job's checkpoint, for this process and its JVM.

    Raises:  CHECKPOINT_IN_USE, and what the storage raises.
    """
    gateway, what = spark.sparkContext._gateway, f"the job {folder.job}"
    jvm = int(gateway.jvm.java.lang.ProcessHandle.current().pid())
    lease = take_lease(folder.storage, what, processes=[jvm], take_over=take_over)
    try:
        guard = JvmGuard(gateway, what, lease.length_seconds * LeaseSettings().guard_part) if fenced else None
        return JobLease(lease, guard, (jvm, process_start(jvm)))
    except BaseException:
        lease.release()
        raise


def _file_sink_of(query: StreamingQuery) -> str | None:
    """URI of the folder that a query's file sink writes to; None for another sink.

    Source:  FileStreamSink, Spark 4.3: its text is `FileSink[path]`.
    """
    sink = query._jsq.streamingQuery().sink()
    if class_name(sink) != "FileStreamSink":
        return None
    path = str(sink.toString()).removeprefix("FileSink[").removesuffix("]")
    return uri_of(path_of_hadoop(path))


def _check_can_fence(folder: JobFolder) -> None:
    """Refuse to fence a job whose checkpoint has the format in which a paused job can replace files.

    Raises:  INVALID_REQUEST.
    """
    storage = open_storage(folder.checkpoint)
    batches = committed_batches(storage)
    if batches and not read_batch(storage, batches[-1]).state_ids:
        raise _invalid(
            "only state in RocksDB and checkpoint format 2 can be fenced, and its checkpoint has another one",
            "Leave out fenced=True: the lease still refuses a second job; or begin with a new checkpoint.",
        )


def _begin_published_run(folder: JobFolder, query: StreamingQuery) -> Run | None:
    """Record the run of a query that is published; None if Spark doesn't know any more with which batch it began.

    Raises:  NOT_WRITABLE, and what the storage raises.
    Source:  StreamingQuery.recentProgress, Spark 4.3: the newest `spark.sql.streaming.numRecentProgressUpdates` reports, a hundred.
    """
    before = _newest_committed(folder)  # first: a batch that is committed meanwhile has a report
    reports = query.recentProgress
    conf = query._jsq.streamingQuery().sparkSessionForStream().conf()
    if len(reports) >= int(str(conf.get(_REPORTS, "100"))):
        return None
    if reports:
        first = int(reports[0]["batchId"])
        before = first - 1 if first > 0 else None
    return _begin_run(folder, before)


def publish(
    query: StreamingQuery,
    *,
    table: str,
    pond: str | Path | None = None,
    retention: Retention | None = None,
    indexes: Given = (),
    strict: bool = False,
) -> Entry | None:
    """Name the state of a query that runs already.  This never changes or ends the query.

    While it runs, a thread reports every two seconds that it does, how far its source is, and what
    Spark says of its batches, as for a job of `start`: so readers know its lag, and `millpond
    alerts` knows of its end.  The query has no lease: nothing keeps a second one from its
    checkpoint.

    If the state can't be described at all, this gives a MillpondWarning and returns None: a line
    after your own `start()` must not end your program.

    table:   as for `start`
    pond:    where to write the definition; None for the folder beside the query's checkpoint
    retention, indexes:  as for `start`
    strict:  as for `start`
    Raises:  UNSUPPORTED for a query in real-time mode; DEFINITION_CHANGED, NOT_DERIVABLE (strict),
             SPARK_CONNECT, TABLE_EXISTS, INVALID_NAME, NOT_WRITABLE.
    """
    if reviewer() is not None:  # no query runs
        return None
    require_classic(query, "_jsq")
    from pyspark import SparkContext

    execution = query._jsq.streamingQuery()
    refuse_real_time_trigger(execution.trigger())
    checkpoint = _checkpoint_of(execution)
    pinned = newest_conf(open_storage(checkpoint))
    context = SparkContext._active_spark_context
    assert context is not None, "a query runs in a context"
    jsession = execution.sparkSessionForStream()
    try:
        definition = derive_plan(
            jsession,
            execution.analyzedPlan(),
            context._jvm,
            table=table,
            strict=strict,
            output_mode=str(execution.outputMode().toString()),
            pinned=pinned,
            time_zone=zone_of_session(jsession),
        )
    except DefinitionError as error:
        if strict or error.condition != "NOT_DERIVABLE":
            raise
        warnings.warn(f"{error.message} {error.hint}", MillpondWarning, stacklevel=2)
        return None
    folder, definition = _put(_kept(definition, retention, indexes), checkpoint, pond, query.name)
    if orders().pond is None:  # not in a drill
        folder.write_sink(_file_sink_of(query))
        report_published(folder, query, lambda: _begin_published_run(folder, query))
    return definition


def define(
    df: DataFrame,
    checkpoint: str | Path,
    *,
    table: str,
    pond: str | Path | None = None,
    output_mode: str = "update",
    session_time_zone: str | None = None,
    retention: Retention | None = None,
    indexes: Given = (),
    strict: bool = False,
) -> Entry:
    """Name the state in a checkpoint, by the DataFrame that its query runs.  This starts nothing.

    checkpoint:   the query's checkpointLocation
    table:        as for `start`
    pond:         where to write the definition; None for the folder beside the checkpoint
    output_mode:  the query's; it matters for a limit over an aggregation, which keeps state in
                  append mode only
    session_time_zone:  spark.sql.session.timeZone of the job, which the checkpoint doesn't record;
                        by default that of a definition by `start` or `publish`.  Without either,
                        columns that depend on it aren't computed
    retention, indexes:  as for `start`
    strict:       as for `start`
    Raises:  UNSUPPORTED if a query of this session runs there in real-time mode (readers refuse it
             too, if the checkpoint shows it); INVALID_REQUEST for a time zone that doesn't exist,
             or isn't the job's; DEFINITION_CHANGED, NOT_DERIVABLE, SPARK_CONNECT, TABLE_EXISTS,
             INVALID_NAME, NOT_WRITABLE.
    """
    uri = open_storage(checkpoint).uri
    require_classic(df, "_jdf")
    for query in df.sparkSession.streams.active:
        execution = query._jsq.streamingQuery()
        if _checkpoint_of(execution) == uri:
            refuse_real_time_trigger(execution.trigger())
    pinned = newest_conf(open_storage(uri))
    definition = derive_plan(
        df.sparkSession._jsparkSession,
        df._jdf.queryExecution().analyzed(),
        df.sparkSession._jvm,
        table=table,
        strict=strict,
        output_mode=output_mode,
        pinned=pinned,
        time_zone=_zone_of_job(df.sparkSession._jvm, uri, pond, table, session_time_zone or pinned.get(_TIME_ZONE)),
        moved=True,
    )
    definition = _kept(definition, retention, indexes)
    return definition if reviewer() is not None else _put(definition, uri, pond, None)[1]


def _kept(definition: Entry, retention: Retention | None, indexes: Given) -> Entry:
    """The definition with what every follower keeps.

    Raises:  INVALID_INDEX, UNKNOWN_COLUMN, WRONG_TYPE.
    """
    wanted = parse_indexes(indexes)
    if isinstance(definition, TableDefinition):
        check_indexes(definition, wanted)
        return replace(definition, retention=retention, indexes=wanted)
    if wanted:
        raise RequestError(
            "INVALID_INDEX",
            f"The state of {definition.table} is several tables, so indexes can't be declared here.",
            hint="Name them by table where the replica is followed: millpond.open(…, indexes={…}).",
        )
    return replace(definition, retention=retention)


def _zone_of_job(jvm: Java, checkpoint: str, pond: str | Path | None, table: str, named: str | None) -> str | None:
    """The session time zone of the job at a checkpoint; None if it is unknown.

    Raises:  INVALID_REQUEST if the caller's time zone doesn't exist, or isn't the job's.
    """
    folders = [*folders_of(checkpoint), *([] if pond is None else [job_of(pond, table)])]
    entries = [entry for folder in folders for entry in folder.entries()]
    known = next((e.session_time_zone for e in entries if isinstance(e, TableDefinition) and e.session_time_zone), None)
    if named is None:
        return known
    if known not in (None, named):
        raise _invalid(f"the session time zone of the job is {known} and not {named}", "Leave session_time_zone out.", "defined")
    if not is_time_zone(jvm, named):
        raise _invalid(f"{named!r} isn't a time zone", "Use a name such as Europe/Berlin, or an offset such as +02:00.", "defined")
    return named


def _checkpoint_of(execution: Any) -> str:
    """The URI of a running query's checkpoint."""
    return uri_of(path_of_hadoop(str(execution.resolvedCheckpointRoot())))


def _put(definition: Entry, checkpoint: str, pond: str | Path | None, name: str | None) -> tuple[JobFolder, Entry]:
    folder = create_beside(checkpoint) if pond is None else create_job(pond, name or definition.table, checkpoint)
    check_same_state(folder, definition)
    definition = with_history(folder, definition)
    folder.write_definition(definition)
    return folder, definition


def with_sink(writer: DataStreamWriter, sink: Sink) -> DataStreamWriter:
    """The writer with the sink that a caller of `start` names.  Raises INVALID_REQUEST."""
    if sink is None:
        return writer.format("noop")
    if isinstance(sink, str):
        return writer.format(sink)
    if _parameters(sink) >= 2:
        return writer.foreachBatch(sink)
    configured = sink(writer)
    if configured is None:
        raise _invalid("the sink function returned None", "Return the DataStreamWriter that it was given.")
    return configured


def _refuse_trigger(writer: DataStreamWriter, df: DataFrame) -> None:
    """Refuse triggers that can't work, before anything is written.

    `start` or the sink function has configured them; Spark doesn't show a writer's trigger.

    Raises:  UNSUPPORTED for real-time mode; INVALID_REQUEST for available-now of a query that never
             ends.
    """
    jwriter = writer._jwrite
    for field in jwriter.getClass().getDeclaredFields():
        if str(field.getName()) == "trigger":
            field.setAccessible(True)
            trigger = field.get(jwriter)
            refuse_real_time_trigger(trigger)
            if class_name(trigger) == "AvailableNowTrigger$":
                _refuse_endless(df)


def _refuse_endless(df: DataFrame) -> None:
    clock = find_clock(df._jdf.queryExecution().analyzed())
    if clock is not None and str(df.sparkSession.conf.get(EMPTY_BATCHES)).lower() == "true":
        raise _invalid(
            f"with available-now it would never end: it uses processing time ({clock}), so Spark plans a batch after each one",
            f'Use trigger="1 second", and stop it; or set {EMPTY_BATCHES} to false, if work that is due may wait for new rows.',
        )


def _parameters(function: Callable[..., Any]) -> int:
    import inspect

    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty)


def with_trigger(writer: DataStreamWriter, trigger: str | None) -> DataStreamWriter:
    """The writer with the trigger that a caller of `start` names."""
    if trigger is None:
        return writer
    if trigger == "available-now":
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger)


def _check_pond(definition: Entry, pond: str | Path) -> None:
    """Refuse any pond but the one for which the query was made.  Raises INVALID_REQUEST."""
    parts = definition.parts if isinstance(definition, NamedOperator) else None
    if parts is None or parts.pond is None:
        return
    places = [open_storage(place) for place in (parts.pond, pond)]
    made_for, given = (storage.local_path() for storage in places)
    is_same = made_for.resolve() == given.resolve() if made_for and given else places[0].uri == places[1].uri
    if not is_same:
        raise _invalid(
            f"its models are in the pond {places[0].uri}, but it is to run in {places[1].uri}",
            "Name the same pond in serve_models and start.",
        )


def shards(definition: Entry) -> int | None:
    """How many shards a job has, whose values were chosen for as many partitions; None without shards."""
    return len(definition.parts.values) if isinstance(definition, NamedOperator) and definition.parts is not None else None


def _needs_rocksdb(definition: Entry) -> bool:
    """Whether it is transformWithState's, which Spark runs on RocksDB only."""
    return isinstance(definition, NamedOperator) and definition.operator_name.startswith("transformWithState")


def _tell_choices(job: str, pinned: dict[str, str], conf: dict[str, str], wanted: int | None) -> None:
    """Write to stderr which choices the checkpoint keeps for ever."""
    provider = (pinned.get(PROVIDER) or conf[PROVIDER]).rsplit(".", 1)[-1].removesuffix("StateStoreProvider")
    if pinned:
        kept = pinned.get(PARTITIONS, "?")
        ignored = f" (asked for {wanted}, which a checkpoint can't change)" if wanted and str(wanted) != kept else ""
        text = f"continues from its checkpoint: {kept} partitions{ignored}, state in {provider}"
    else:
        text = f"new checkpoint, which keeps for ever: {conf[PARTITIONS]} partitions, state in {provider}"
    print(f"millpond: {job}: {text}", file=sys.stderr)


@contextmanager
def session_conf(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    """Set these while a query starts, which clones the session; then restore the old values."""
    with _conf_lock:
        # A setting that Spark hasn't registered has no value before it is set.
        before = {name: spark.conf.get(name, None) for name in conf}
        try:
            for name, value in conf.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, str(old))


def _invalid(found: str, hint: str, done: str = "started") -> RequestError:
    return RequestError("INVALID_REQUEST", f"The job can't be {done}: {found}.", hint=hint)

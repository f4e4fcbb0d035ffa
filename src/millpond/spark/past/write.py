"""Write the state of a job that hasn't run yet from a batch DataFrame: the job begins with its past.

1. Write the past as Parquet files, beside the new checkpoint.
2. Run the job's query over these files as a stream, until it has read them.  So Spark itself writes
   the state, without what has expired by the watermark.
3. Make a savepoint of that, which has only what a restart needs, and decodes every row.
4. In the savepoint, put the job's source in place of the files: its own files, and its offsets.
   (Rejected: doing so before 3.  Offsets that are newer than their state look like real-time mode.)
5. Restore it to the new checkpoint, under an id of its own.
6. Remove all but the new checkpoint.

The new checkpoint is whole or, after an error, empty.  Killed, the program may leave a folder whose
name ends in `.writing-` and eight letters; nothing uses it.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from millpond.checkpoint.log import with_offsets
from millpond.errors import DefinitionError, SetupError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manifest import Savepoint, SavepointFile
from millpond.savepoint.restore import check_empty, restore_files
from millpond.schema.definition.operator_name import Entry
from millpond.schema.strict_json import parse_json
from millpond.settings import FileBounds
from millpond.spark.derive.definition import MillpondWarning, derive
from millpond.spark.derive.plan import class_name, every_node, find_clock, require_classic
from millpond.spark.past.check import (
    PART,
    Query,
    call_query,
    check_mode,
    check_request,
    check_same_state,
    columns_of,
    events_of,
    has_watermark,
    one_line,
)
from millpond.spark.past.differences import find_differences, state_shapes
from millpond.spark.past.source import Beginning, find_beginning, invalid, single_source
from millpond.spark.session import default_partitions
from millpond.spark.start import (
    EMPTY_BATCHES,
    PARTITIONS,
    PROVIDER,
    ROCKSDB,
    Sink,
    session_conf,
    shards,
    with_sink,
)
from millpond.storage import Storage, open_storage
from millpond.storage.names import hadoop_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Progress = Callable[[int, int], None]
"""called with (steps done, steps in all)"""

_SAVEPOINT = "past"
_BOUNDS = FileBounds()
# Spark's maintenance writes snapshots up to a minute after a query has ended, and would make the folder again that step 6 removes.
_NO_SNAPSHOTS = {"spark.sql.streaming.stateStore.minDeltasForSnapshot": str(2**31 - 1)}
_FULL = ("No space left on device", "Disk quota exceeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenState:
    """A new checkpoint whose state has the past.

    checkpoint:    its URI
    batch:         the batch after which the job goes on
    rows:          of the state, in all stores that can be read
    watermark_ms:  after the past; None if the job has none
    offsets:       per source, where it goes on
    """

    checkpoint: str
    batch: int
    rows: int | None
    watermark_ms: int | None
    offsets: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStatePlan:
    """A state that isn't written yet.

    target:       the new checkpoint
    query:        the job's function of its events
    past:         the rows before the stream's, with its columns
    source:       the stream
    output_mode:  update, complete or append
    sink:         what gets the rows that the query emits over the past; None drops them
    conf:         settings of the run
    batches:      how many batches the past is read in
    order_by:     the column by which the batches are divided
    operators:    the query's operators, with the types of their state
    beginning:    where the stream goes on
    differences:  what may differ from a job that read the past as a stream, a sentence each
    """

    target: Storage
    query: Query = field(repr=False)
    past: DataFrame = field(repr=False)
    source: DataFrame = field(repr=False)
    output_mode: str
    sink: Sink
    conf: dict[str, str]
    batches: int
    order_by: str | None
    operators: tuple[str, ...]
    beginning: Beginning
    differences: tuple[str, ...]

    def describe(self) -> str:
        """What will be done, and what may differ, in a few lines."""
        spark = self.past.sparkSession
        provider = str(self.conf.get(PROVIDER) or spark.conf.get(PROVIDER)).rpartition(".")[2].removesuffix("StateStoreProvider")
        batches = "one batch" if self.batches == 1 else f"{self.batches} batches"
        lines = [
            f"to          {self.target.uri}",
            *(f"state       {line}" for line in self.operators),
            f"for ever    {self.conf[PARTITIONS]} partitions, state in {provider}",
            f"past        in {batches}, {self.output_mode} mode, time zone {spark.conf.get('spark.sql.session.timeZone')}",
            f"goes on     {self.beginning.goes_on}",
        ]
        if skipped := self.beginning.skipped:
            more = f" and {len(skipped) - 1:,} more" if skipped[1:] else ""
            lines.append(f"never read  {skipped[0]}{more}: older than the source's maxFileAge before the newest file of the past")
        if self.sink is None:
            lines.append("sink        gets nothing that the query emits over the past; a file sink needs it, so name it here, too")
        lines += [f"differs     {line}" for line in self.differences]
        if not self.differences:
            lines.append("equals      the state of a job that read the past as a stream")
        return "\n".join(lines)

    def run(self, progress: Progress | None = None) -> WrittenState:
        """Write it.

        Raises:  TARGET_NOT_EMPTY; JOB_FAILED if Spark can't read the past or run the query over it;
                 NOT_WRITABLE, and what the storages raise.
        """
        check_empty(self.target)
        work = open_storage(f"{self.target.uri}.writing-{uuid.uuid4().hex[:8]}")
        try:
            return _Writing(self, work, progress or _silent).run()
        finally:
            work.delete_all()  # 6


def plan_write_state(
    to: str | Path,
    query: Query,
    *,
    past: DataFrame,
    source: DataFrame,
    offsets: str | None = None,
    covered: Sequence[str] | None = None,
    output_mode: str = "update",
    partitions: int | None = None,
    batches: int = 1,
    order_by: str | None = None,
    sink: Sink = None,
) -> WriteStatePlan:
    """Plan a checkpoint for a job that hasn't run yet, whose state has the rows of a batch DataFrame.

    to:           the new checkpoint, a folder that is empty or doesn't exist yet
    query:        the job's query as a function of its events: it gets a stream with the columns of
                  `source`, and returns the stream that the job starts.  All state and watermarks
                  are in it
    past:         the rows before the stream's, with the columns of `source`
    source:       the stream as the job reads it.  Its options say where it goes on, as for a job
                  without a checkpoint: Kafka's startingOffsets
    offsets:      for Kafka, in place of its startingOffsets: their JSON, `earliest` or `latest`
    covered:      for a source of files, paths and patterns of the files that the past has; by
                  default those of which `past` was read
    output_mode:  the job's
    partitions:   of the state, for ever; by default as for `start`
    batches:      read the past in so many batches, each of which needs less memory
    order_by:     the column by which the past is divided into batches: that of the watermark
    sink:         as for `start`: gets what the query emits over the past.  None drops it
    Raises:       TARGET_NOT_EMPTY; INVALID_REQUEST, also if the past hasn't the stream's columns;
                  UNSUPPORTED for several sources, and one without a position; SPARK_CONNECT.
    """
    target = open_storage(to)
    check_empty(target)
    for stream_or_batch in (past, source):
        require_classic(stream_or_batch, "_jdf")
    check_request(past, source, output_mode, partitions, batches, order_by)
    single_source(source)
    columns = columns_of(past, source)
    with TemporaryDirectory(prefix="millpond-") as empty:
        # Only its plan is looked at.
        over_past = call_query(query, events_of(past, source, empty))
        over_source = call_query(query, source)
        append = output_mode == "append"
        operators = state_shapes(over_past, append=append)
        check_same_state(operators, state_shapes(over_source, append=append))
        check_mode(over_past, output_mode)
        if batches > 1 and order_by is None and has_watermark(over_past):
            raise invalid("its query has a watermark, so batches must come in the order of time", "Name the column: order_by.")
        differences = find_differences(over_past, output_mode=output_mode, batches=batches)
        conf = _conf(over_past, output_mode, partitions)
    return WriteStatePlan(
        target=target,
        query=query,
        past=past.select(columns),
        source=source,
        output_mode=output_mode,
        sink=sink,
        conf=conf,
        batches=batches,
        order_by=order_by,
        operators=tuple(operators),
        beginning=find_beginning(source, past, offsets=offsets, covered=covered),
        differences=differences,
    )


class _Writing:
    """One run of a plan."""

    def __init__(self, plan: WriteStatePlan, work: Storage, progress: Progress) -> None:
        self._plan = plan
        self._work = work
        self._rows = f"{hadoop_uri(work.uri)}/rows"
        self._parts = f"{hadoop_uri(work.uri)}/parts"
        self._checkpoint = work.folder("checkpoint")
        self._progress = progress

    def run(self) -> WrittenState:
        with _spark_errors("The past can't be read and written as Parquet"):
            self._write_rows()  # 1
        parts = sorted(name for name in self._work.names("parts") if name.startswith(PART))
        steps = (len(parts) or 1) + 2
        self._progress(1, steps)
        for done, part in enumerate(parts or [None], 2):
            with _spark_errors("The query failed over the past"):
                if part is not None:
                    self._show(part)
                self._run_query()  # 2
            self._progress(done, steps)
        savepoint = self._with_source(plan_savepoint(self._checkpoint.uri, _SAVEPOINT).run())  # 3 4
        restore_files(savepoint, self._plan.target, str(uuid.uuid4()))  # 5
        self._progress(steps, steps)
        manifest = savepoint.manifest
        return WrittenState(
            checkpoint=self._plan.target.uri,
            batch=manifest.batch,
            rows=manifest.rows,
            watermark_ms=manifest.watermark_ms,
            offsets=manifest.offsets,
        )

    def _write_rows(self) -> None:
        from pyspark.sql import functions as F

        plan = self._plan
        if plan.batches == 1:
            plan.past.write.parquet(self._rows)
            return
        each = int(plan.past.sparkSession.sparkContext.defaultParallelism)
        pieces = plan.batches * each
        spread = plan.past.repartition(pieces) if plan.order_by is None else plan.past.repartitionByRange(pieces, plan.order_by)
        # Numbers of one length sort as texts do.
        part = F.format_string("%09d", F.floor(F.spark_partition_id() / each))
        spread.withColumn(PART, part).write.partitionBy(PART).parquet(self._parts)

    def _show(self, part: str) -> None:
        """Move the files of a part to the folder that the query reads: Spark wants all files below one path."""
        spark = self._plan.past.sparkSession
        path = spark._jvm.org.apache.hadoop.fs.Path
        files = path(self._parts).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        files.mkdirs(path(self._rows))
        for status in files.listStatus(path(f"{self._parts}/{part}")):
            if not files.rename(status.getPath(), path(f"{self._rows}/{status.getPath().getName()}")):
                raise SetupError(
                    "NOT_WRITABLE",
                    f"{status.getPath().toString()} can't be moved to {self._rows}.",
                    hint="Name a folder that this user may write to.",
                )

    def _run_query(self) -> None:
        plan = self._plan
        stream = call_query(plan.query, events_of(plan.past, plan.source, self._rows))
        writer = with_sink(stream.writeStream.outputMode(plan.output_mode), plan.sink)
        writer = writer.option("checkpointLocation", hadoop_uri(self._checkpoint.uri)).trigger(availableNow=True)
        with session_conf(stream.sparkSession, {**plan.conf, **_NO_SNAPSHOTS}):
            running = writer.start()
        try:
            running.awaitTermination()
        finally:
            running.stop()

    def _with_source(self, savepoint: Savepoint) -> Savepoint:
        """The savepoint with the job's source in place of the past's files."""
        beginning, manifest, storage = self._plan.beginning, savepoint.manifest, savepoint.checkpoint
        changed = {f"sources/0/{name}": content for name, content in beginning.files.items()}
        offsets = {"0": None if beginning.offset is None else parse_json(beginning.offset)}
        for batch in (manifest.batch, manifest.batch - 1):
            if batch >= 0:
                path = f"offsets/{batch}"
                changed[path] = with_offsets(storage.read(path, _BOUNDS.log_bytes), path, offsets, None)
        files = [file for file in manifest.files if not file.path.startswith(("sources/", "offsets/"))]
        for path, content in changed.items():
            storage.write(path, content)
            files.append(SavepointFile(path=path, size_bytes=len(content), sha256=sha256(content).hexdigest()))
        return Savepoint(replace(manifest, files=tuple(files), offsets=offsets), savepoint.storage)


def _conf(stream: DataFrame, output_mode: str, partitions: int | None) -> dict[str, str]:
    """The settings of the run, and of the new checkpoint for ever."""
    definition: Entry | None = None
    with warnings.catch_warnings(), suppress(DefinitionError):  # plain Spark runs it all the same
        warnings.simplefilter("ignore", MillpondWarning)
        definition = derive(stream, table=_SAVEPOINT, output_mode=output_mode)
    parts = None if definition is None else shards(definition)
    conf = {PARTITIONS: str(partitions or parts or default_partitions(stream.sparkSession))}
    if any(class_name(node) == "TransformWithStateInPySpark" for node in every_node(stream._jdf.queryExecution().analyzed())):
        conf[PROVIDER] = ROCKSDB  # it has no other
    if find_clock(stream._jdf.queryExecution().analyzed()) is not None:
        conf[EMPTY_BATCHES] = "false"  # it would plan batches without end
    return conf


@contextmanager
def _spark_errors(what: str) -> Iterator[None]:
    """Raises JOB_FAILED, with Spark's reason; NOT_WRITABLE if the disk is full."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as failed:
        if full := next((reason for reason in _FULL if reason in str(failed)), None):
            raise SetupError(
                "NOT_WRITABLE",
                f"{what}: {full}.",
                hint="Free some space where the checkpoint and Spark's own files (spark.local.dir) lie; nothing was written.",
            ) from failed
        raise SetupError(
            "JOB_FAILED", f"{what}: {one_line(failed)}", hint="Mend the past or the query; nothing was written."
        ) from failed


def _silent(done: int, every: int) -> None:
    pass

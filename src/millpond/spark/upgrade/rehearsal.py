"""What Spark itself says of a query on a checkpoint, found out without running the query.

1. Clone the session, and set what the checkpoint's newest batch has pinned, as Spark does when it
   starts a query.
2. Put an empty relation in place of each streaming source.  So no source is asked for anything.
3. Let Spark plan the first batch on an empty folder.  It writes the schema of its state, which
   `checkpoint.operators` reads.
4. Let Spark plan the next batch on a copy of the checkpoint's schemas.  It compares them with the
   query, and raises the error with which the job would end.

Planning runs no task.  Only for transformWithState Spark starts a Python worker, which calls the
processor's `init` to list its variables.  The copy has neither state nor data.

Source:  MicroBatchExecution, IncrementalExecution, Spark 4.3; restarts of real jobs in
         tests/spark/upgrade.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import anchored, read_operator_files
from millpond.settings import FileBounds
from millpond.spark.derive.batch_plan import batch_plan, scala_map
from millpond.spark.derive.plan import Java, elements, zone_of_session
from millpond.storage import Storage, open_storage
from millpond.storage.names import hadoop_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BOUNDS = FileBounds()
# As StreamExecution sets them for every query.
_NEVER = ("spark.sql.adaptive.enabled", "spark.sql.cbo.enabled")
# Defaults of the constructor's last parameters, which depend on Spark's version.
_DEFAULTS = (12, 13, 14, 15, 16)


@dataclass(frozen=True, slots=True)
class SparkError:
    """An error of Spark's.

    name:     its error class, or the class of an exception without one
    message:  its first line
    """

    name: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A query on a checkpoint, as Spark plans it.

    fresh:    the folder with the schemas of its state, as of batch 0; it is deleted afterwards
    invalid:  why Spark runs it on no checkpoint at all
    refusal:  why Spark doesn't go on from this checkpoint
    """

    fresh: Storage
    invalid: SparkError | None
    refusal: SparkError | None


@contextmanager
def rehearse(df: DataFrame, output_mode: str, checkpoint: Storage, batch: CommittedBatch, newest: int) -> Iterator[Rehearsal]:
    """Let Spark plan a query, on an empty folder and on a checkpoint.

    batch:   the newest committed batch
    newest:  the newest planned batch, whose settings Spark takes
    """
    with tempfile.TemporaryDirectory(prefix="millpond-") as folder:
        fresh, copy = (open_storage(Path(folder) / name) for name in ("fresh", "copy"))
        player = _Player(df, output_mode, checkpoint, newest)
        invalid = refusal_of(player.check) or refusal_of(player.prepare) or refusal_of(lambda: player.plan_batch(fresh, 0))
        refusal = None
        if invalid is None:
            _copy_schemas(checkpoint, batch, copy)
            refusal = refusal_of(lambda: player.plan_batch(copy, batch.batch + 1))
        yield Rehearsal(fresh=fresh, invalid=invalid, refusal=refusal)


class _Player:
    """A query in a session of its own."""

    def __init__(self, df: DataFrame, output_mode: str, checkpoint: Storage, newest: int) -> None:
        self._jvm = jvm = df.sparkSession._jvm
        self._context = df.sparkSession.sparkContext._jsc
        self._streaming = jvm.org.apache.spark.sql.execution.streaming
        self._planned = checkpoint.read(f"offsets/{newest}", _BOUNDS.log_bytes)
        log = self._streaming.checkpointing.OffsetSeqMetadata
        self._metadata = log.apply(self._planned.decode().split("\n")[1])
        self._session = df.sparkSession._jsparkSession.cloneSession()
        conf = self._session.sessionState().conf()
        for name in _NEVER:
            conf.setConfString(name, "false")
        log.setSessionConf(self._metadata, conf)  # 1
        self._analyzed = df._jdf.queryExecution().analyzed()
        self._mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
        self._plan: Java = None

    def check(self) -> None:
        """As Spark before it starts a query in this output mode."""
        checker = self._jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        checker.checkForStreaming(self._analyzed, self._mode)

    def prepare(self) -> None:
        """Make the query's micro-batch."""
        batch = batch_plan(self._session, self._jvm, self._analyzed, time_zone=zone_of_session(self._session))
        leaves = [leaf for leaf in elements(batch.analyzed.collectLeaves()) if leaf.isStreaming()]
        empty = [(leaf, self._empty(leaf)) for leaf in leaves]
        self._plan = batch.analyzed.transform(scala_map(self._jvm, empty))  # 2

    def _empty(self, leaf: Java) -> Java:
        """A relation without rows, whose number of rows the optimizer doesn't know: else it would drop a limit."""
        jvm = self._jvm
        nothing = jvm.org.apache.spark.api.python.PythonUtils.toSeq(jvm.java.util.ArrayList())
        none = jvm.scala.Option.empty()
        rows = self._context.emptyRDD().rdd()
        somehow = jvm.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(0)
        relation = jvm.org.apache.spark.sql.execution.LogicalRDD
        return relation(leaf.output(), rows, somehow, nothing, True, none, self._session, none, none, False)

    def plan_batch(self, folder: Storage, number: int) -> None:
        """Let Spark plan a batch on a checkpoint as the first one of a run, and write its schemas.  # 3, 4"""
        execution = self._streaming.runtime.IncrementalExecution
        option, uuid = self._jvm.scala.Option, self._jvm.java.util.UUID.randomUUID()
        folder.write(f"offsets/{number}", self._planned)  # of operators with variables, Spark looks for it
        planned = execution(
            self._session,
            self._plan,
            self._mode,
            hadoop_uri(folder.uri) + "/state",
            uuid,
            uuid,
            number,
            option.apply(self._metadata) if number else option.empty(),
            self._metadata,
            self._streaming.runtime.WatermarkPropagator.noop(),
            True,
            *(getattr(execution, f"$lessinit$greater$default${place}")() for place in _DEFAULTS),
        )
        planned.executedPlan()
        if not number:
            planned.writeRecordedStateMetadata()


def _copy_schemas(checkpoint: Storage, batch: CommittedBatch, target: Storage) -> None:
    """Copy what Spark reads of a checkpoint before its first batch: no state, and no data."""
    target.write("metadata", checkpoint.read("metadata", _BOUNDS.note_bytes))
    for path in (f"offsets/{batch.batch}", f"commits/{batch.batch}"):
        target.write(path, checkpoint.read(path, _BOUNDS.log_bytes))
    for operator in read_operator_files(checkpoint, batch.batch):
        paths = {path for paths in operator.stores.values() for path in paths}
        for path in (*paths, *([operator.metadata] if operator.metadata else ())):
            if checkpoint.stamp(path) is None:
                continue
            text = checkpoint.read(path, _BOUNDS.schema_bytes)
            # Else Spark would read the schemas there, and write beside them.
            target.write(path, anchored(text, hadoop_uri(target.uri)) if "/_metadata/v2/" in path else text)


def refusal_of(action: Callable[[], object]) -> SparkError | None:
    """The error of Spark that an action ends with."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        action()
    except (PySparkException, Py4JError) as error:
        return spark_error(error)
    return None


def spark_error(error: Exception) -> SparkError:
    """An error of the JVM, by the first of its causes that has an error class."""
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException) and (name := error.getCondition()):
        return SparkError(name, _first_line(str(error)))
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    outermost = cause
    while cause is not None:
        if name := _condition(cause):
            return SparkError(name, _first_line(str(cause.getMessage())))
        cause = cause.getCause()
    if outermost is not None:
        return SparkError(str(outermost.getClass().getName()), _first_line(str(outermost.getMessage())))
    return SparkError(type(error).__name__, _first_line(str(error)))


def _condition(throwable: Any) -> str | None:
    """The error class of a throwable; None if its kind has none."""
    from py4j.protocol import Py4JError

    try:
        name = throwable.getCondition()
    except Py4JError:  # py4j finds out by the call whether there is such a method
        return None
    return None if name is None else str(name)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]

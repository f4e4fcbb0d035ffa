"""Runs a case as a streaming query of Spark: the rows that it emits in each batch, in stored form, and Millpond's definition."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import millpond
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import MillpondError
from millpond.schema.types import Field, parse_fields
from random_queries.build import stream, whole_frame, write_batch, write_input
from random_queries.case import ANSI, INTERPRETED, PROVIDER, ZONE, Case
from suite.waiting import TimedOut

_SECONDS = 240
_UTC = {ZONE: "UTC", ANSI: "true", PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}
_ALWAYS = {
    # Spark interprets each query, since compiling takes most of a small query's time.
    **INTERPRETED,
    "spark.sql.timeType.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "true",
}


@dataclass
class Batch:
    """The rows that a batch emitted, and what Spark reported.

    fields:  the output columns
    rows:    their values in the stored form of `checkpoint.unsaferow`
    state_rows:  the number of rows in the aggregation's state after it, None if unknown
    """

    fields: tuple[Field, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    state_rows: int | None = None
    input_rows: int = -1


@dataclass
class QueryRun:
    """One run of a case: its pond, and the emitted rows.

    refused:  Spark's error, if it refused to start the query
    error:    Millpond's error, if it refused
    failed:   the query's error, if it failed at a batch
    goes_on:  if the second definition was refused, whether Spark goes on correctly with it; otherwise None
    functions: the aggregate functions that Spark stored, as its plan names them
    """

    case: Case
    pond: Path
    checkpoint: Path
    table: str
    batches: dict[int, Batch] = field(default_factory=dict)
    definition: Any = None
    refused: str = ""
    error: Exception | None = None
    failed: str = ""
    restarted_at: int | None = None
    goes_on: bool | None = None
    functions: str = ""


class Collector:
    """A sink that takes each batch's rows as Spark's own bytes, which needs no second query and works for all types."""

    def __init__(self, batches: dict[int, Batch]) -> None:
        self.batches = batches
        self.error: Exception | None = None

    def __call__(self, frame: Any, number: int) -> None:
        try:
            self._take(frame, number)
        except Exception as error:
            self.error = error
            raise

    def _take(self, frame: Any, number: int) -> None:
        fields = parse_fields(json.loads(frame.schema.json()))
        decode = decoder(fields)
        rows = [decode(bytes(row.getBytes())) for row in frame._jdf.queryExecution().executedPlan().executeCollect()]
        self.batches[number] = Batch(fields, rows)


def session_of(spark: Any, conf: dict[str, str]) -> Any:
    """A new session in the same JVM; it becomes the thread's active session, by whose settings Spark parses."""
    session = spark.newSession()
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    for name, value in {**_UTC, **_ALWAYS, **conf}.items():
        session.conf.set(name, value)
    return session


def run_case(spark: Any, case: Case, folder: Path, table: str, *, mode: str = "") -> QueryRun:
    """Run a case to the end of its input.

    folder:  gets `input`, shared by all cases, and the case's own pond
    mode:    an output mode that replaces the case's
    """
    pond = folder / f"pond-{table}{mode}"
    run = QueryRun(case, pond, pond / "jobs" / table / "checkpoint", table)
    source = write_input(session_of(spark, {}), case, folder / "input")
    if case.restart is not None:  # the last batch belongs to the second run
        first = pond.with_name(pond.name + "-input")
        shutil.copytree(source, first)
        (first / f"{len(case.batches) - 1:03}.parquet").unlink()
        source = first
    _run_once(spark, run, source, case.after, mode or case.mode)
    if case.restart is not None and not (run.refused or run.failed or run.error):
        run.restarted_at = max(run.batches, default=-1) + 1
        functions = run.functions
        write_batch(session_of(spark, {}), case, case.batches[-1], source, len(case.batches) - 1)
        before = pond.with_name(pond.name + "-before")
        shutil.copytree(run.checkpoint, before)
        _run_once(spark, run, source, case.restart["after"], mode or case.mode)
        if isinstance(run.error, MillpondError) and run.error.condition == "DEFINITION_CHANGED":
            run.goes_on = _goes_on(spark, run, source, before, mode or case.mode, functions)
        shutil.rmtree(before, ignore_errors=True)
    return run


def _goes_on(spark: Any, run: QueryRun, source: Path, before: Path, mode: str, functions: str) -> bool:
    """Whether Spark goes on with the second query as if it had run from the beginning.

    It must emit the same rows, and store the same functions in the same order: otherwise rows only agree by chance.

    functions:  the functions that the first query stored
    """
    case, emitted = run.case, []
    assert case.restart is not None
    for checkpoint in (before, before.with_name(before.name + "-anew")):
        alone = QueryRun(replace(case, door="none"), run.pond, checkpoint, run.table)
        _run_once(spark, alone, source, case.restart["after"], mode)
        shutil.rmtree(checkpoint, ignore_errors=True)
        if alone.failed or alone.refused or not alone.batches:
            return False
        last = alone.batches[max(alone.batches)]
        emitted.append((last.fields, sorted(map(repr, last.rows))))
    return emitted[0] == emitted[1] and functions == alone.functions


def _run_once(spark: Any, run: QueryRun, source: Path, after: list[list[Any]], mode: str) -> None:
    case = run.case
    session = session_of(spark, {**case.conf, "spark.sql.shuffle.partitions": str(case.partitions)})
    sink = Collector(run.batches)
    query = None
    try:
        frame = whole_frame(session, case, stream(session, case, source), after)
        _refuse_what_spark_refuses(session, frame, mode)
        if case.door == "start":
            job = millpond.start(
                frame,
                table=run.table,
                pond=run.pond,
                trigger="available-now",
                output_mode=mode,
                sink=sink,
                partitions=case.partitions,
            )
            query, run.definition = job.query, job.definition
            try:
                _wait(run, query)
            finally:
                job.stop()
        else:
            query = (
                frame.writeStream.queryName(run.table)
                .outputMode(mode)
                .foreachBatch(sink)
                .option("checkpointLocation", str(run.checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            if case.door == "publish":
                run.definition = millpond.publish(query, table=run.table, pond=run.pond)
            _wait(run, query)
            if case.door == "define":
                other = session_of(spark, {**case.conf, "spark.sql.shuffle.partitions": "7", **case.definer})
                again = whole_frame(other, case, stream(other, case, source), after)
                zone = {**_UTC, **case.conf}[ZONE] if case.says_zone else None
                run.definition = millpond.define(
                    again, run.checkpoint, table=run.table, pond=run.pond, output_mode=mode, session_time_zone=zone
                )
    except MillpondError as refused:
        run.error = refused
    except Refused as refused:
        run.refused = str(refused)
    finally:
        if query is not None:
            if query.isActive:
                query.stop()
            _note_progress(run, query)
            run.functions = "" if run.failed else _functions(query)
    if (
        sink.error is not None
        and "Py4JJavaError" not in type(sink.error).__name__
        and "captured" not in type(sink.error).__module__
    ):
        raise sink.error


class Refused(Exception):
    """Spark refuses the query."""


def _refuse_what_spark_refuses(session: Any, frame: Any, mode: str) -> None:
    """Raise Refused if Spark's own check of streaming plans refuses the query, before Millpond sees it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm = session._jvm
    try:
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), getattr(modes, mode.capitalize())())
    except (PySparkException, Py4JJavaError) as refused:
        raise Refused(str(refused)[:300]) from None


def _wait(run: QueryRun, query: Any) -> None:
    from pyspark.errors import StreamingQueryException

    try:
        if not query.awaitTermination(_SECONDS):
            raise TimedOut("the end of the query", _SECONDS, query.lastProgress)
    except StreamingQueryException as failed:
        run.failed = str(failed)


def _functions(query: Any) -> str:
    """The aggregate functions whose buffers Spark stores, in order, as its plan names them.

    Empty if Spark makes no plan: the state has other buffers.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        explained = str(query._jsq.explainInternal(False))
    except (PySparkException, Py4JJavaError):
        return ""
    plan = re.sub(r"#\d+L?", "", explained)
    saved = plan.partition("StateStoreSave")[2] or plan.partition("SessionWindowStateStoreSave")[2]
    return "".join(re.findall(r"functions=\[.*\]", saved)[:1])


def _note_progress(run: QueryRun, query: Any) -> None:
    for progress in query.recentProgress:
        facts = json.loads(progress.json if hasattr(progress, "json") else json.dumps(progress))
        batch = run.batches.get(facts["batchId"])
        if batch is not None and facts["stateOperators"]:
            batch.input_rows = facts["numInputRows"]
            batch.state_rows = facts["stateOperators"][0]["numRowsTotal"]

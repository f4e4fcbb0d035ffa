"""A running job: its query, its table's definition, and the heartbeat that readers look at."""

from __future__ import annotations

import atexit
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.catalogue import HEARTBEAT_SECONDS, JobFolder
from millpond.errors import CheckpointError, MillpondError
from millpond.logs import EventLog, Trouble
from millpond.ownership.lease import Lease
from millpond.ownership.runs import Run, change_run
from millpond.schema.definition.operator_name import Entry
from millpond.signals import stop_signals
from millpond.spark.causes import failure_of, name_of
from millpond.spark.guard import JvmGuard
from millpond.spark.progress import ProgressCounts
from millpond.storage import open_storage
from millpond.storage.machine import is_running
from millpond.storage.names import numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_STOP_SECONDS = 20.0
log = EventLog(__name__)


class Heartbeat:
    """A thread that reports every HEARTBEAT_SECONDS that the job runs, and once that it was stopped.

    It also records when the run's first batch was committed, and why the run ended.
    """

    def __init__(self, folder: JobFolder, query: StreamingQuery, run: Run | None, release: Callable[[], None]) -> None:
        """
        run:      the record to complete; None if nobody knows when the run began
        release:  called once the job has ended
        """
        self._folder = folder
        self._query = query
        self._run_id = query.runId
        self._trouble = Trouble(log, "heartbeat", job=folder.job)
        self._run_record = run
        self._release = release
        self._counts = ProgressCounts(query)
        self._ended = threading.Event()
        self.last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"heartbeat of {folder.job}", daemon=True)
        self._beat("running")
        self._thread.start()

    def _beat(self, state: str) -> None:
        try:
            is_running = state == "running"
            self._folder.write_heartbeat(state, self._newest() if is_running else None, self._progress() if is_running else None)
            self._note_run(has_ended=state == "stopped")
            self.last_error = None
            self._trouble.over()
        except MillpondError as broken:
            self.last_error = str(broken)
            self._trouble.met(broken)

    def _note_run(self, *, has_ended: bool) -> None:
        """Record what has become known of the run."""
        run = self._run_record
        if run is None or run.ended_ms is not None:
            return
        if run.committed_ms is None:
            storage = open_storage(self._folder.checkpoint)
            before = -1 if run.batch is None else run.batch
            first = min((number for number in numbers(storage.names("commits")) if number > before), default=None)
            stamp = None if first is None else storage.stamp(f"commits/{first}")
            if stamp is not None:
                run = msgspec.structs.replace(run, committed_ms=stamp.modified_ns // 1_000_000)
        if has_ended:
            run = msgspec.structs.replace(run, ended_ms=int(time.time() * 1000), error=self._error())
        if run != self._run_record:
            change_run(self._folder.storage, run)
            self._run_record = run

    def _error(self) -> str | None:
        try:
            failure = failure_of(self._query)
        except Exception as gone:  # noqa: BLE001 as of isActive
            return type(gone).__name__
        return None if failure is None else name_of(failure)

    def _progress(self) -> dict[str, int | float] | None:
        try:
            return self._counts.look()
        except Exception:  # noqa: BLE001 as of isActive
            return None

    def _newest(self) -> dict[str, Any] | None:
        try:
            return newest_offsets(self._query)
        except Exception:  # noqa: BLE001 as of isActive; that the job runs matters more
            return None

    def _run(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            try:
                active = bool(self._query.isActive)
            except Exception as gone:  # noqa: BLE001 the JVM may end before us, in many ways
                self.last_error = f"{type(gone).__name__}: {gone}"
                active = False
            if not active:
                break
            self._beat("running")
        self._beat("stopped")
        self._release()

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def is_of(self, folder: JobFolder, query: StreamingQuery) -> bool:
        """Whether it reports this run of a query in this folder, until the run has ended."""
        return self._folder.storage.uri == folder.storage.uri and self._run_id == query.runId and not self.has_ended

    def end(self) -> None:
        """Report that the job was stopped, and end the thread."""
        self._ended.set()
        self._thread.join(_STOP_SECONDS)
        self._release()


def newest_offsets(query: StreamingQuery) -> dict[str, Any] | None:
    """Source -> where it ended when the query last asked it; None if a source doesn't say, or it hasn't asked yet.

    Shape:   as in the checkpoint's offsets: `{"0": {"views": {"0": 11170}}}`; only of Kafka
    Source:  StreamingQueryProgress.sources, Spark 4.3: the JSON of an offset as text, or `null`.
    """
    progress = query.lastProgress
    if not progress or not progress["sources"]:
        return None
    found: dict[str, Any] = {}
    for number, source in enumerate(progress["sources"]):
        end = source["latestOffset"]
        with contextlib.suppress(ValueError):
            end = json.loads(end) if isinstance(end, str) else end
        if not (source["description"].startswith("KafkaV2[") and isinstance(end, dict)):
            return None
        found[str(number)] = end
    return found


class JobLease:
    """The lease of a job's checkpoint, from before its query starts until it has ended.

    A fenced job's JVM ends itself if the lease isn't renewed.  Any job is stopped when somebody else
    has its lease.
    """

    def __init__(self, lease: Lease, guard: JvmGuard | None, jvm: tuple[int, str]) -> None:
        """
        jvm:     id and start of the process that writes
        Raises:  CHECKPOINT_IN_USE if the lease was lost meanwhile; what the storage raises.
        """
        self._lease = lease
        self._guard = guard
        self._jvm = jvm
        self._query: StreamingQuery | None = None
        lease.keep(on_lost=self._stop, is_over=lambda: self._query is not None and not self._may_write(), guard=guard)
        if guard is not None:
            lease.check()  # the guard counts from here, and the lease began before

    @property
    def is_fenced(self) -> bool:
        """Whether its JVM ends itself."""
        return self._guard is not None

    @property
    def error(self) -> MillpondError | None:
        """Why it was lost, or couldn't be renewed; None if all is well."""
        return self._lease.last_error

    def begin(self, query: StreamingQuery) -> None:
        """The query writes from now on."""
        self._query = query
        if self._lease.is_lost:
            self._stop()

    def release(self) -> None:
        """Give it back, unless the query may still write: then it runs out."""
        if self._may_write():
            return
        if self._guard is not None:
            self._guard.release()
        self._lease.release()

    def _may_write(self) -> bool:
        if self._query is None:
            return False
        try:
            return bool(self._query.isActive)
        except Exception:  # noqa: BLE001 the JVM doesn't answer, for many reasons
            return is_running(*self._jvm)

    def _stop(self) -> None:
        if self._query is not None:
            with contextlib.suppress(Exception):  # it has ended, or ends by itself
                self._query.stop()


_JOBS: list[Job] = []
"""the jobs that this process has started; a program may have forgotten them"""
_PUBLISHED: dict[str, Heartbeat] = {}
"""URI of a job's folder -> the heartbeat of the query that was published there last"""
_publishing = threading.Lock()


def report_published(folder: JobFolder, query: StreamingQuery, begin_run: Callable[[], Run | None]) -> None:
    """Report from now on that a query runs which `start` didn't start; nothing if it has ended, or is reported already.

    begin_run:  records the run, if it is a new one
    """
    with _publishing:
        before = _PUBLISHED.get(folder.storage.uri)
        known = [job._heartbeat for job in _JOBS] + ([] if before is None else [before])
        if not query.isActive or any(beat.is_of(folder, query) for beat in known):
            return
        if before is not None:  # its last words, before the next ones
            before.end()
        elif not _PUBLISHED:
            atexit.register(_end_published)
        _PUBLISHED[folder.storage.uri] = Heartbeat(folder, query, begin_run(), lambda: None)


def _end_published() -> None:
    """The program ends, and Spark's queries with it."""
    for beat in _PUBLISHED.values():
        beat.end()


def started_jobs() -> list[Job]:
    """The jobs that this process has started and that still run, as far as it knows."""
    for job in _JOBS:
        if job.has_ended and not job.is_settled:
            with contextlib.suppress(Exception):  # the JVM may have ended: then nobody knows
                job.is_settled = job.query.exception() is None
    _JOBS[:] = [job for job in _JOBS if not (job.has_ended and job.is_settled)]
    return [job for job in _JOBS if not job.has_ended]


def unseen_jobs() -> list[Job]:
    """The jobs whose end the program hasn't seen: those that run, and those that have ended by themselves."""
    started_jobs()
    return [job for job in _JOBS if not job.is_settled]


def is_known(query: StreamingQuery) -> bool:
    """Whether it is the query of a job that this process has started and whose end it may not have seen."""
    return any(job.query.runId == query.runId for job in _JOBS)


class Job:
    """One streaming query whose state has a name.

    A context manager: it stops the query at the end of the block.

    name:        the job's name in its pond
    query:       Spark's StreamingQuery
    definition:  the meaning of its state, or the names of its operator's tables
    checkpoint:  URI of its checkpoint
    is_settled:  whether the program has stopped it or seen its end
    """

    def __init__(
        self, folder: JobFolder, query: StreamingQuery, definition: Entry, *, session: SparkSession, lease: JobLease, run: Run
    ) -> None:
        self.name = folder.job
        self.query = query
        self.definition = definition
        self.checkpoint = folder.checkpoint
        self.session = session
        self._started = time.monotonic()
        self.is_settled = False
        self._lease = lease
        lease.begin(query)
        self._heartbeat = Heartbeat(folder, query, run, lease.release)
        started_jobs()
        _JOBS.append(self)

    @property
    def has_ended(self) -> bool:
        """Whether its end is recorded.  This doesn't ask the JVM."""
        return self._heartbeat.has_ended

    def __repr__(self) -> str:
        """This doesn't ask the JVM, which may have ended."""
        return f"<Job {self.name}: table {self.definition.table}, checkpoint {self.checkpoint}>"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the query and wait until its batch has ended; a second call does nothing.

        This doesn't end the session.  End it with `spark.stop()`, or a JVM with RocksDB state may
        never end.
        """
        self.is_settled = True
        try:
            self.query.stop()
        finally:
            self._heartbeat.end()

    def wait_for_end(self, timeout_seconds: float | None = None) -> bool:
        """Block until the query ends by itself (available-now, an error); False after the timeout.

        Raises:  pyspark's StreamingQueryException if the query failed.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        # In slices: a thread inside one long call to the JVM can't be interrupted by Ctrl-C.
        while deadline is None or time.monotonic() < deadline:
            left = 0.5 if deadline is None else max(0.01, min(0.5, deadline - time.monotonic()))
            try:
                has_ended = self.query.awaitTermination(left)
            except Exception as failed:
                self.is_settled = True
                failed.millpond_job = self.name  # type: ignore[attr-defined]
                self._heartbeat.end()
                raise
            if has_ended:
                self.is_settled = True
                self._heartbeat.end()
                return True
        return False

    def wait_for_batch(self, batch: int, timeout_seconds: float) -> None:
        """Block until this batch is committed.

        Raises:  NO_COMMITTED_BATCH after the timeout, or if the query ends before that batch.
        """
        storage = open_storage(self.checkpoint)
        deadline = time.monotonic() + timeout_seconds
        while True:
            active = self.query.isActive
            if any(number >= batch for number in numbers(storage.names("commits"))):
                return
            if not active:
                failure = self.query.exception()
                raise CheckpointError(
                    "NO_COMMITTED_BATCH",
                    f"The job {self.name!r} ended before batch {batch}" + (f": {failure}" if failure else "."),
                    hint="Look at the query's exception; start the job again to go on from its checkpoint.",
                    job=self.name,
                    batch=batch,
                )
            if time.monotonic() > deadline:
                raise CheckpointError(
                    "NO_COMMITTED_BATCH",
                    f"The job {self.name!r} didn't commit batch {batch} within {timeout_seconds:g} seconds.",
                    hint="Wait longer, or check that its source has new data.",
                    job=self.name,
                    batch=batch,
                )
            time.sleep(0.02)

    def statistics(self) -> dict[str, Any]:
        """Facts about the running job, with the last errors of query, heartbeat and lease, or None."""
        progress = self.query.lastProgress
        failure = self.query.exception()
        return {
            "job": self.name,
            "table": self.definition.table,
            "checkpoint": self.checkpoint,
            "active": bool(self.query.isActive),
            "running_seconds": time.monotonic() - self._started,
            "batch": progress["batchId"] if progress else None,
            "input_rows_per_second": progress["inputRowsPerSecond"] if progress else None,
            "last_error": str(failure) if failure else None,
            "heartbeat_error": self._heartbeat.last_error,
            "lease_error": None if (lost := self._lease.error) is None else str(lost),
            "fenced": self._lease.is_fenced,
        }


def run_until_stopped(jobs: Sequence[Job]) -> None:
    """Block until Ctrl-C, SIGTERM or the end of all jobs; then stop the jobs and their session once.

    Call it from the main thread.  It ignores further signals while it stops, since a Spark that
    stops halfway leaves a JVM that never ends (seen with RocksDB state).

    Raises:  pyspark's StreamingQueryException of the first job that failed, after all are stopped.
    """
    with stop_signals() as stop_asked:
        try:
            while not stop_asked.is_set() and any(job.query.isActive for job in jobs):
                failed = next((j for j in jobs if not j.query.isActive and failure_of(j.query)), None)
                if failed is not None:
                    break
                stop_asked.wait(0.2)
            failure = next((f for f in (failure_of(job.query) for job in jobs) if f), None)
        finally:
            stop_all(jobs)
        if failure is not None and not stop_asked.is_set():
            raise failure


def stop_all(jobs: Sequence[Job]) -> None:
    """Stop all jobs, then their sessions.

    If stopping one fails, stderr says so, and the others are stopped all the same.
    """
    for job in jobs:
        try:
            job.stop()
        except Exception as broken:  # noqa: BLE001 the next job must be stopped all the same
            print(f"millpond: stopping {job.name} failed: {broken}", file=sys.stderr)
    for session in {id(job.session): job.session for job in jobs}.values():
        session.stop()

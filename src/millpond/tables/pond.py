"""A pond opened for reading: its jobs' replicas and their tables.

Each job has a replica of its own.  An answer is one batch of one job, and names both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from millpond.catalogue import ARRIVAL_SECONDS, JobFolder, KnownEntries, read_catalogue, wait_for_jobs
from millpond.errors import CONDITIONS, CheckpointError, MillpondError, RequestError
from millpond.logs import EventLog, Trouble
from millpond.replica.backends.choice import LMDB, BackendChoice, choose_backend
from millpond.replica.indexes import StoreIndexes
from millpond.replica.record import StoresRecord
from millpond.replica.replica import Replica
from millpond.schema.definition.indexes import Given, check_indexes, parse_indexes
from millpond.schema.definition.operator_name import Entry, NamedOperator
from millpond.schema.definition.table import TableDefinition
from millpond.schema.shard import Shard, parse_shard
from millpond.settings import ReplicaSettings, Retention, RetentionWords, home
from millpond.storage import open_storage, uri_of
from millpond.storage.places import Places
from millpond.storage.polling import until_answered
from millpond.tables.align import align
from millpond.tables.cut import PondCut
from millpond.tables.default_tables import StoredTable, stored_tables, unknown_table, why_hidden
from millpond.tables.forms.html import html_tables
from millpond.tables.job.bounds import ARRIVING, Bounds
from millpond.tables.job.reads import JobReads
from millpond.tables.scan.binding import Define
from millpond.tables.sql.answer import SqlAnswer
from millpond.tables.sql.end import SqlLimits
from millpond.tables.sql.run import run_sql
from millpond.tables.sql.subscribe import AnswerAt, NextBatch, Pause, SqlChanges, Step, run_steps, subscribe
from millpond.tables.table import Table
from millpond.tables.versions.names import NameFiles, VersionsOf, versions_of
from millpond.tables.wanted import Wanted
from millpond.versions import parse_job, table_name

log = EventLog(__name__)
# For so long a known name doesn't cause the catalogue to be read again.
_CATALOGUE_SECONDS = 1.0
RetentionByTable = Retention | Mapping[str, Retention | RetentionWords] | None
"""one retention for all tables, or retentions by table name"""
_CATCH_UP_SECONDS = 60.0


def open(
    path: str | Path,
    *,
    replica_dir: str | Path | None = None,
    follow: bool = True,
    wait_seconds: float | None = None,
    retention: RetentionByTable = None,
    indexes: Mapping[str, Given] | None = None,
    shard: str | None = None,
    backend: str = LMDB,
    allow: Iterable[str | Path] = (),
    settings: ReplicaSettings | None = None,
) -> Pond:
    """Open a pond, or a bare checkpoint, for reading.  Needs no Spark and no Java.

    replica_dir:   where replicas are kept; MILLPOND_HOME or the user's cache folder by default;
                   `memory://` keeps them in memory
    follow:        keep the replicas up to date, unless another process does; False only reads
                   replicas that other processes follow
    wait_seconds:  the most seconds to wait until the pond or checkpoint exists and its replicas
                   have all that is committed now; 0 returns at once.  By default, wait 60 seconds
                   for replicas, but refuse a path that is neither pond nor checkpoint at once
    retention:     which expired rows and which history to keep, of all tables or by table name.
                   The process that follows decides.  Other tables follow their definitions.  A name
                   that no table has raises UNKNOWN_TABLE, unless `wait_seconds=0` left no time to
                   learn the names
    indexes:       by table, the columns by which to sort its rows besides the key, more than its
                   definition names: `{"page_views": ["hits", ("site", "hits")]}`.  The process that
                   follows keeps them up to date
    shard:         follow only some partitions of each job: `1/3`, or by number `0-31`.  Then reads of
                   whole tables need `Bounds(shard=…)`, and `connect_shards` has them combined
    backend:       what keeps the replicas on disk: `lmdb`, or the name of one in an installed package
    allow:         places outside the pond where checkpoints and targets of links may lie.  Places
                   that this user's own `publish` and `define` named need no permission
    Raises:        NO_CHECKPOINT, UNKNOWN_TABLE, REPLICA_NOT_WRITABLE, NETWORK_FILE_SYSTEM, and what
                   damaged files raise.
    """
    settings, deadline = settings or ReplicaSettings(), time.monotonic() + (wait_seconds or 0.0)
    if wait_seconds:
        wait_for_jobs(path, wait_seconds, allow=allow)
    pond = Pond(
        path,
        replica_dir=replica_dir or home(),
        follow=follow,
        settings=settings,
        retention=retention,
        indexes=indexes,
        shard=None if shard is None else parse_shard(shard),
        backend=choose_backend(backend),
        allow=allow,
    )
    if wait_seconds is None or wait_seconds > 0:
        try:
            pond.catch_up(_CATCH_UP_SECONDS if wait_seconds is None else max(0.0, deadline - time.monotonic()))
        except MillpondError:
            # A job that can't be read doesn't hide the others; reads of its own tables say why.
            if not pond._any_readable():
                pond.close()
                raise
        except BaseException:
            pond.close()
            raise
        pond._check_names()
    return pond


class Pond:
    """Tables by name: `pond["page_views"]`.  A context manager; `close` ends its threads."""

    def __init__(
        self,
        path: str | Path,
        *,
        replica_dir: str | Path,
        follow: bool,
        settings: ReplicaSettings,
        retention: RetentionByTable = None,
        indexes: Mapping[str, Given] | None = None,
        shard: Shard | None = None,
        backend: BackendChoice | None = None,
        allow: Iterable[str | Path] = (),
    ) -> None:
        self.shard = shard
        self._backend = backend
        self._path = path
        self._places = Places.of(allow)
        same_for_all = isinstance(retention, Retention)
        if isinstance(retention, Retention):
            settings, retention = replace(settings, retention=retention), None
        self._home = replica_dir
        self._follow = follow
        self._settings = settings
        self._jobs: dict[str, JobReads] = {}
        self._tables: dict[str, Table] = {}
        # The tables of jobs, and names that mean one version of a table at a time.
        self._own: dict[str, Table] = {}
        self._versions: dict[str, VersionsOf] = {}
        # Per job: its state's schemas as they were last read; and names without a table, with the
        # reason.
        self._shown: dict[str, list[StoredTable]] = {}
        self._hidden: list[tuple[NamedOperator, MillpondError]] = []
        # Jobs that are gone, whose followers haven't been ended yet.
        self._retired: list[JobReads] = []
        self._read_at = self._asked_at = 0.0
        self._closed = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._catalogue: list[tuple[JobFolder, list[Entry]]] = []
        self._entries = KnownEntries()
        # The jobs that can't be read, and the tables that can't be read of other jobs, with the
        # reason.
        self._broken_jobs: dict[str, MillpondError] = {}
        self._broken_definitions: dict[str, MillpondError] = {}
        self._broken: dict[str, MillpondError] = {}
        self._catalogue_error: MillpondError | None = None
        self._trouble = Trouble(log, "catalogue", pond=str(path))
        root = open_storage(path)
        self._is_remote = root.is_remote
        self._names = NameFiles(root)
        asked = {table: parse_indexes(given) for table, given in (indexes or {}).items()}
        self._wanted = Wanted(settings.retention, same_for_all, dict(retention or {}), asked, self._names)
        self._refresh()
        if self._is_remote:
            threading.Thread(target=self._watch, name="millpond-catalogue", daemon=True).start()

    @property
    def uri(self) -> str:
        """Where the pond or checkpoint lies."""
        return uri_of(self._path)

    @property
    def place(self) -> str | Path:
        """Where it is, as it was named."""
        return self._path

    @property
    def allowed(self) -> tuple[str, ...]:
        """The places outside of it that it may name."""
        return self._places.uris

    def __repr__(self) -> str:
        """The tables that were known last; this reads nothing."""
        return f"<Pond {self.uri}: {', '.join(sorted(self._tables)) or 'no tables yet'}>"

    def _repr_html_(self) -> str:
        return html_tables(((name, table.job, table._columns_text()) for name, table in sorted(self._tables.items())), self.uri)

    def __getitem__(self, name: str) -> Table:
        """The table of that name.

        If the name means a version, each use of the table looks up which one.

        Raises:  UNKNOWN_TABLE, which lists similar names.
        """
        table, versions = self.now(name), self._versions.get(name)
        return table if versions is None else versions.table

    def now(self, name: str) -> Table:
        """The same; of a name that means a version, the table of the present one.

        Raises as `pond[name]`; UNKNOWN_VERSION.
        """
        if name not in self._tables or (not self._is_remote and time.monotonic() - self._read_at > _CATALOGUE_SECONDS):
            self._look()
        if name not in self._tables and self._is_remote and time.monotonic() - self._asked_at > _CATALOGUE_SECONDS:
            self._asked_at = time.monotonic()
            self._refresh()
        versions = self._versions.get(name)
        if versions is not None:
            return versions.now()
        table = self._tables.get(name)
        if table is not None:
            return table
        if name in self._broken:
            raise self._broken[name]
        for entry, error in self._hidden:
            if entry.may_name(name):
                raise error
        for job, error in self._broken_jobs.items():
            if name == job or name.startswith(f"{job}."):
                raise error
        raise unknown_table(name, self.uri, self._tables)

    def meant_by(self, table: str) -> str | None:
        """The name that means this table's version now, if that is another name; None if no name does."""
        for name, versions in list(self._versions.items()):
            if name != table and versions.now_is(table):
                return name
        return None

    def wait_for_table(self, name: str, timeout_seconds: float = 60.0) -> Table:
        """The table of that name, as soon as it is defined.

        To wait for its first batch as well, read with `Bounds(wait_seconds=…)`.
        Raises:  UNKNOWN_TABLE after the timeout.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                return self[name]
            except MillpondError as error:
                left = deadline - time.monotonic()
                if error.condition not in ARRIVING or left <= 0:
                    raise
            time.sleep(min(left, ARRIVAL_SECONDS))

    def __contains__(self, name: object) -> bool:
        self._look()
        return name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    def tables(self) -> list[str]:
        """The names of all tables, sorted.

        Tables whose definition can't be read are among them; reads of them say why.
        """
        self._look()
        return sorted({*self._tables, *self._broken})

    def jobs(self) -> list[str]:
        """The names of all jobs, sorted."""
        self._look()
        return sorted({*self._jobs, *self._broken_jobs})

    def tables_of(self, job: str) -> list[str]:
        """The names of all tables of a job, sorted: of everything in its state.  Empty if there is no such job.

        Raises:  why not all of them are known: what the job's folder or its replica raises,
                 such as REPLICA_BUILDING; why a store can't be read.
        """
        self._look()
        if job in self._broken_jobs:
            raise self._broken_jobs[job]
        found = self._jobs.get(job)
        if found is None:
            return []
        with found.replica.snapshot() as view:
            stores = view.stores
        for unread in stores.unread:
            raise CONDITIONS[unread.condition].kind(unread.condition, unread.message, hint=unread.hint)
        own = {definition.table for definition in self._defined(found.folder, stores)}
        # Those that were defined twice are in neither job's list; a version has another name, too.
        named = {name for name, table in dict(self._tables).items() if name not in self._versions and table.job == job}
        return sorted(own | named)

    def broken_jobs(self) -> dict[str, MillpondError]:
        """Jobs whose folder can't be read, and why.

        Their tables aren't known.  Tables of other jobs can be read.
        """
        self._look()
        return dict(self._broken_jobs)

    def at(self, tables: Iterable[str], *, offsets: Mapping[str, Any] | None = None) -> dict[str, Table]:
        """Tables of several jobs as of the same point of their input, by name.

        The jobs must read the same sources and keep history.

        offsets:  where the input ends, in the form of an answer's position; by default the newest
                  offsets at which a batch of each job ends
        Raises:   UNKNOWN_TABLE; NOT_ALIGNED if there is no such batch; HISTORY_GONE if it is no
                  longer kept.
        """
        return align({name: self.now(name) for name in tables}, offsets)

    def sql(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        bounds: Bounds | None = None,
        limits: SqlLimits | None = None,
        separate: bool = False,
        at: int | str | None = None,
    ) -> SqlAnswer:
        """The answer of a SELECT over tables of the pond, in DuckDB's SQL, all of one batch.

            pond.sql("SELECT page, hits FROM page_views WHERE page >= ? ORDER BY hits DESC LIMIT 10", ["/a"])

        Conditions on key columns choose which rows are read, and only the columns that are needed
        are computed.  `t AT (VERSION => 41)` is a table as of a batch, `t AT (TIMESTAMP => '…')` as
        of a time, if history is kept.  `EXPLAIN SELECT …` says how each table would be read.

        parameters:  for `?`, a list; for `$name`, a dict
        bounds:      what the tables must reflect
        limits:      by default 60 seconds, and 1 GiB of memory
        separate:    whether tables of several jobs may be of batches that end at different offsets
        at:          a batch's number, or a time as a text, for all tables that have no AT
        Raises:      INVALID_STATEMENT, UNKNOWN_TABLE, LIBRARY_MISSING; NOT_ALIGNED if the tables'
                     jobs have no batch that ends at the same offsets; WRONG_TYPE for values that
                     SQL can't hold; READ_TOO_LONG, ANSWER_TOO_LARGE, SQL_OUT_OF_MEMORY; as
                     `Table.scan`.
        """
        return run_sql(self, statement, parameters, bounds=bounds, limits=limits or SqlLimits(), separate=separate, at=at)

    def subscribe(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        key: Sequence[str] | None = None,
        limits: SqlLimits | None = None,
    ) -> Iterator[SqlChanges]:
        """The answer of a SELECT from one table, and then, without end, what each batch changes in it.

            for changes in pond.subscribe("SELECT site, sum(hits) AS hits FROM page_views GROUP BY site", key=["site"]):
                for change in changes:
                    change.kind, change.old, change.new

        The first changes insert the rows of the newest batch.  Each change is what two answers of
        the statement show; where history is kept, none of the batches is passed over.

        key:     columns of the answer that name a row, so that another value of the others is an
                 update; without it rows only come and go
        Raises:  as `sql`; INVALID_STATEMENT if two rows have the same key.
        """

        def do(step: Step) -> Any:
            match step:
                case AnswerAt():
                    return self.sql(statement, parameters, limits=limits, at=step.batch)
                case NextBatch():
                    return self[step.table].get_all((), bounds=Bounds(min_batch=step.batch, wait_seconds=step.seconds))
                case Pause():
                    return time.sleep(step.seconds)

        return run_steps(subscribe(key), do)

    def catch_up(
        self, timeout_seconds: float = 60.0, on_progress: Callable[[str], None] | None = None, *, table: str | None = None
    ) -> None:
        """Wait until all that is committed by now can be read, of all jobs or of one table's job.

        While a store can't be reached, it is asked again.

        Raises:  REPLICA_BEHIND or STORAGE_UNAVAILABLE after the timeout, or the error that stops a replica from following.
                 The other jobs are brought up to date before either is raised.
        """
        deadline = time.monotonic() + timeout_seconds
        if table is None:
            until_answered(self._refresh, deadline)  # jobs that have begun since the last look
        jobs = {self[table].job} if table is not None else set(self._jobs)
        problem: MillpondError | None = None
        for name in sorted(jobs & self._jobs.keys()):

            def tell(text: str, name: str = name) -> None:
                if on_progress is not None:
                    on_progress(f"{name}: {text}")

            try:
                self._jobs[name].replica.catch_up(max(0.0, deadline - time.monotonic()), tell)
            except MillpondError as error:
                problem = problem or error
        until_answered(self._refresh, deadline)
        if table is None:
            problem = problem or next(iter(self._broken_jobs.values()), None)
        if problem is not None:
            raise problem

    def wait_until_begun(self, timeout_seconds: float) -> None:
        """Return when all jobs are followed with the retention asked for, or after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        for job in list(self._jobs.values()):
            job.replica.wait_until_begun(max(0.0, deadline - time.monotonic()))

    def cut(self, name: str, *, bounds: Bounds | None = None) -> PondCut:
        """One batch of one job for several reads and tables.

            with pond.cut("page-views") as cut:
                cut["page_views"].get(page="/index.html")

        name:    the name of a job, or of one of its tables
        bounds:  what that batch must reflect
        Raises:  UNKNOWN_TABLE; on entering the context: NOT_UP_TO_BOUND, REPLICA_BUILDING,
                 JOB_REPLACED, …
        """
        job = self._jobs.get(name) if name not in self._versions else None
        return PondCut(self.now, job if job is not None else self.now(name).job_reads, bounds)

    def _check_names(self) -> None:
        """Close, and raise the error, if retention or indexes name a table that doesn't exist, or can't have the index."""
        try:
            for name in self._wanted.retention:
                self[name]
            for name, indexes in self._wanted.indexes.items():
                check_indexes(self[name].definition, indexes)
        except BaseException:
            self.close()
            raise

    def _any_readable(self) -> bool:
        for job in list(self._jobs.values()):
            try:
                with job.replica.snapshot():
                    return True
            except MillpondError:
                continue
        return False

    def ready(self, max_behind_seconds: float = 30.0) -> tuple[bool, str]:
        """Whether each job with a commit can be read and isn't further behind than this; if not, why.

        Versions that their name doesn't mean don't count: one that reads the past is behind for long.
        """
        try:
            self._look()
        except MillpondError as error:
            return False, f"{self.uri}: {error.condition}: {error.message}"
        others = {job for versions in list(self._versions.values()) for job in versions.others()}
        for name, why in sorted(self._broken_jobs.items()):
            return False, f"{name}: {why.condition}: {why.message}"
        for name, job in sorted(dict(self._jobs).items()):
            if name in others:
                continue
            try:
                with job.replica.snapshot() as view:
                    behind = job.cut(view).lag.behind_seconds
                    damaged = [u for u in view.stores.unread if u.condition != "UNSUPPORTED"]
            except MillpondError as error:
                if error.condition == "NO_COMMITTED_BATCH":
                    continue
                return False, f"{name}: {error.condition}: {error.message}"
            if damaged:
                return False, f"{name}: {damaged[0].condition}: {damaged[0].message}"
            if behind > max_behind_seconds:
                return False, f"{name}: {behind:.1f} seconds behind, {max_behind_seconds:g} are allowed"
        return True, "ready"

    def statistics(self) -> dict[str, Any]:
        """Per job: its replica's position, lag and size, what its follower does, and the last error."""
        self._look()
        found = {name: self._job_statistics(job) for name, job in self._jobs.items()}
        for name, error in self._broken_jobs.items():
            found[name] = {
                "checkpoint": None,
                "job_state": "unknown",
                **found.get(name, {}),
                "batch": None,
                "error": _error_json(error),
            }
        return dict(sorted(found.items()))

    def close(self) -> None:
        """End the threads that follow the jobs; another process may take over."""
        self._closed = True
        self._stop.set()
        with self._lock:
            pass  # nobody adds a job from here on
        self._close_retired()
        for job in self._jobs.values():
            job.close()

    def __enter__(self) -> Pond:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _job_statistics(self, job: JobReads) -> dict[str, Any]:
        out: dict[str, Any] = {"checkpoint": job.folder.checkpoint, "job_state": job.job_state(), **job.replica.statistics()}
        if self._is_remote:
            error = self._catalogue_error
            out["catalogue_error"] = None if error is None else {"condition": error.condition, "message": error.message}
        try:
            with job.replica.snapshot() as view:
                lag = job.cut(view).lag
                rows = {s.id: view.rows.count(s.id) for s in view.stores.stores}
                out |= {
                    "job_state": job.job_state(view.record),
                    "batch": view.record.batch,
                    "behind_batches": lag.behind_batches,
                    "behind_seconds": lag.behind_seconds,
                    "age_seconds": lag.age_seconds,
                    "event_lag_seconds": lag.event_lag_seconds,
                    "rows": rows,
                    "unread": [{"operator": u.operator, "store": u.store, "why": u.message} for u in view.stores.unread],
                }
        except MillpondError as error:
            out |= {"batch": None, "error": _error_json(error)}
        return out

    # ------------------------------------------------------------ the catalogue

    def _refresh(self) -> None:
        """Read the catalogue again."""
        if self._closed:
            return
        # Not under the lock: an object store may be slow, and reads must go on meanwhile.
        found = read_catalogue(self._path, self._places)
        catalogue: list[tuple[JobFolder, list[Entry]]] = []
        unread: dict[str, MillpondError] = {}
        # On an object store a look at a file costs as much as reading it.
        known = None if self._is_remote else KnownEntries(self._entries)
        for folder in found.jobs:
            try:
                entries, broken = folder.read_entries(known)
            except CheckpointError as error:  # not even the list of its tables can be read
                found.broken[folder.job] = error
                continue
            catalogue.append((folder, entries))
            unread |= broken
        if self._names.names() or any(parse_job(job) for job in (*found.broken, *(folder.job for folder in found.jobs))):
            self._names.refresh()
        with self._lock:
            if not self._closed:
                self._catalogue, self._broken_jobs, self._broken_definitions = catalogue, found.broken, unread
                self._entries = known or self._entries
                self._read_at = time.monotonic()
                self._combine()
        self._close_retired()
        if self._is_remote:
            self._read_heartbeats()

    def _look(self) -> None:
        """The same for a reader, without requests: on an object store it only looks at the replicas."""
        if not self._is_remote:
            self._refresh()
            return
        with self._lock:
            if not self._closed:
                self._combine()
        self._close_retired()

    def _close_retired(self) -> None:
        """End followers of jobs whose folder was removed or names another checkpoint.

        Not under the lock: it may take long.
        """
        with self._lock:
            retired, self._retired = self._retired, []
        for job in retired:
            log.info("job.retired", job=job.folder.job, checkpoint=job.folder.checkpoint)
            job.close()

    def _watch(self) -> None:
        """Read catalogue and heartbeats of a pond on an object store, so that no reader has to."""
        while not self._stop.wait(self._settings.remote_heartbeat_seconds):
            try:
                if time.monotonic() - self._read_at > self._settings.remote_catalogue_seconds:
                    self._refresh()
                elif self._names.names():
                    self._names.refresh()
                self._catalogue_error = None
                self._trouble.over()
            except MillpondError as error:
                self._catalogue_error = error
                self._trouble.met(error)
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would show an old catalogue for ever
                self._catalogue_error = MillpondError("INTERNAL_ERROR", f"{error!r}", hint="Report this.")
                self._trouble.met(error)
            self._read_heartbeats()

    def _read_heartbeats(self) -> None:
        for job in list(self._jobs.values()):
            job.read_heartbeat()
            job.shorter.refresh()

    def _combine(self) -> None:
        """Make the tables from what the catalogue and the replicas know."""
        tables: dict[str, Table] = {}
        broken = dict(self._broken_definitions)
        hidden: list[tuple[NamedOperator, MillpondError]] = []
        for folder, entries in self._catalogue:
            job = self._jobs.get(folder.job)
            if job is None or job.folder.checkpoint != folder.checkpoint:
                asked = self._wanted
                if job is not None:
                    self._retired.append(job)
                replica = Replica(
                    folder.open_checkpoint(),
                    home=self._home,
                    settings=self._settings,
                    follow=self._follow,
                    retention=partial(self._retentions, folder),
                    wanted=partial(self._asked_retentions, folder) if asked.same_for_all or asked.retention else None,
                    indexes=partial(self._store_indexes, folder),
                    shard=self.shard,
                    backend=self._backend,
                )
                job = self._jobs[folder.job] = JobReads(folder, replica, self._settings)
            for definition, define in self._definitions(job, entries, hidden):
                known = self._own.get(definition.table)
                if known is None or known.definition != definition or known.job != folder.job:
                    known = Table(definition, job, define)
                other = tables.get(definition.table)
                if other is None:
                    tables[definition.table] = known
                elif other.job != known.job:
                    broken[definition.table] = _defined_twice(definition.table, other.job, known.job)
        for name, error in broken.items():
            if error.condition == "AMBIGUOUS_TABLE":
                del tables[name]  # neither of the two has precedence
        before, self._own = self._own, dict(tables)
        self._add_versions(tables, broken)
        # A known table doesn't vanish with its job's folder: reads of it say why they fail.
        lost = {name: self._broken_jobs[table.job] for name, table in before.items() if table.job in self._broken_jobs}
        lost |= {name: error for name, error in self._broken.items() if error in self._broken_jobs.values()}
        self._broken = {name: error for name, error in {**lost, **broken}.items() if name not in tables}
        self._tables, self._hidden = tables, hidden
        for name in self._jobs.keys() - {folder.job for folder, _ in self._catalogue}:
            self._retired.append(self._jobs.pop(name))
            self._shown.pop(name, None)

    def _add_versions(self, tables: dict[str, Table], broken: dict[str, MillpondError]) -> None:
        """Add names that mean a version, and tables of version 0 under a name of their own."""
        own = self._own
        found: dict[str, VersionsOf] = {}
        for name in self._names.names():
            if name in own and own[name].job != name:
                broken[name] = _defined_twice(name, own[name].job, name)
                tables.pop(name)
                continue
            versions = self._versions.get(name) or VersionsOf(
                name, self._names, self._refresh, lambda job: self._broken_jobs.get(job)
            )
            of_name = versions_of(name, own.values())
            versions.use(of_name)
            found[name] = versions
            for number, table in of_name:
                tables.setdefault(table_name(name, number), table)
            tables[name] = versions.table
            broken.pop(name, None)
        self._versions = found

    # A job's follower calls these.
    def _retentions(self, folder: JobFolder, stores: StoresRecord) -> dict[str, Retention]:
        return self._wanted.retentions(folder, self._defined(folder, stores))

    def _asked_retentions(self, folder: JobFolder, stores: StoresRecord) -> dict[str, tuple[str, Retention]]:
        return self._wanted.asked_retentions(folder, self._defined(folder, stores))

    def _store_indexes(self, folder: JobFolder, stores: StoresRecord) -> dict[str, StoreIndexes]:
        return self._wanted.store_indexes(folder, self._defined(folder, stores), stores)

    def _defined(self, folder: JobFolder, stores: StoresRecord) -> list[TableDefinition]:
        """All tables of a job as last read: a definition that can't be read now doesn't stop following."""
        entries = next((entries for known, entries in self._catalogue if known.job == folder.job), [])
        tables = [e for e in entries if isinstance(e, TableDefinition)]
        return tables + [definition for definition, _ in stored_tables(folder, stores, entries)]

    def _definitions(
        self, job: JobReads, entries: list[Entry], hidden: list[tuple[NamedOperator, MillpondError]]
    ) -> Iterator[tuple[TableDefinition, Define | None]]:
        """The job's definitions, then one for each other store; adds names without a table to `hidden`."""
        yield from ((entry, None) for entry in entries if isinstance(entry, TableDefinition))
        named = [entry for entry in entries if isinstance(entry, NamedOperator)]
        try:
            with job.replica.snapshot() as view:
                stores = view.stores
        except MillpondError as error:
            # A table whose definition can't be read now doesn't vanish: reads of it say why.
            hidden += [(entry, error) for entry in named]
            yield from self._shown.get(job.folder.job, ())
            return
        definitions = self._shown[job.folder.job] = list(stored_tables(job.folder, stores, entries))
        hidden += [(entry, why) for entry in named if (why := why_hidden(entry, stores)) is not None]
        yield from definitions


def _error_json(error: MillpondError) -> dict[str, str]:
    return {"condition": error.condition, "message": error.message, "hint": error.hint}


def _defined_twice(table: str, *jobs: str) -> RequestError:
    first, second = sorted(jobs)
    return RequestError(
        "AMBIGUOUS_TABLE",
        f"Two jobs of this pond define a table {table!r}: {first!r} and {second!r}.",
        hint=f"Remove one of the two: jobs/{first}/tables/{table}.json or jobs/{second}/tables/{table}.json in the pond.",
        table=table,
    )

"""A pond opened for reading: its jobs' replicas and their tables.

Three jobs are three replicas: an answer is one cut through one job, and names that job and its batch.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from millpond.catalogue import JobFolder, open_jobs
from millpond.checkpoint.operators import SHORT_NAMES
from millpond.errors import MillpondError, RequestError
from millpond.replica.record import StoresRecord
from millpond.replica.replica import Replica
from millpond.schema.definition import TableDefinition
from millpond.schema.undefined import StoreShape, table_suffix, undefined_table
from millpond.settings import ReplicaSettings, home
from millpond.storage import open_storage
from millpond.tables.table import JobReads, Table

# How long the catalogue isn't read again for a name that is known.
_CATALOGUE_SECONDS = 1.0
StoreId = tuple[int, str, str]
"""(operator, store, column family)"""
_UNDEFINED = "nobody defined this table: it shows the state's own columns"


def open(
    path: str | Path,
    *,
    replica_dir: str | Path | None = None,
    follow: bool = True,
    wait_seconds: float = 60.0,
    settings: ReplicaSettings | None = None,
) -> Pond:
    """Open a pond, or a bare checkpoint, for reading.  Needs no Spark and no Java.

    replica_dir:   where replicas are kept; MILLPOND_HOME or the user's cache folder by default; `memory://` keeps them in memory
    follow:        keep the replicas up to date, unless another process does; False only reads what others keep
    wait_seconds:  wait so long until the replicas have what is committed now; 0 returns at once
    Raises:        NO_CHECKPOINT, REPLICA_NOT_WRITABLE, NETWORK_FILE_SYSTEM, and what damaged files raise.
    """
    pond = Pond(path, replica_dir=replica_dir or home(), follow=follow, settings=settings or ReplicaSettings())
    if wait_seconds > 0:
        try:
            pond.catch_up(wait_seconds)
        except MillpondError:
            # One job that can't be read doesn't hide the others; reads of its own tables say why.
            if not pond._any_readable():
                pond.close()
                raise
        except BaseException:
            pond.close()
            raise
    return pond


class Pond:
    """Tables by name: `pond["page_views"]`.  A context manager; `close` ends its threads."""

    def __init__(self, path: str | Path, *, replica_dir: str | Path, follow: bool, settings: ReplicaSettings) -> None:
        self._path = path
        self._home = replica_dir
        self._follow = follow
        self._settings = settings
        self._jobs: dict[str, JobReads] = {}
        self._tables: dict[str, Table] = {}
        self._read_at = 0.0
        self._closed = False
        self._lock = threading.Lock()
        self._refresh()

    @property
    def uri(self) -> str:
        """Where the pond or checkpoint lies."""
        return open_storage(self._path).uri

    def __getitem__(self, name: str) -> Table:
        """The table of that name.  Raises UNKNOWN_TABLE, with names that are near."""
        if name not in self._tables or time.monotonic() - self._read_at > _CATALOGUE_SECONDS:
            self._refresh()
        table = self._tables.get(name)
        if table is not None:
            return table
        raise unknown_table(name, self.uri, self._tables)

    def __contains__(self, name: object) -> bool:
        self._refresh()
        return name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    def tables(self) -> list[str]:
        """The names of all tables, sorted."""
        self._refresh()
        return sorted(self._tables)

    def jobs(self) -> list[str]:
        """The names of all jobs, sorted."""
        self._refresh()
        return sorted(self._jobs)

    def catch_up(
        self, timeout_seconds: float = 60.0, on_progress: Callable[[str], None] | None = None, *, table: str | None = None
    ) -> None:
        """Wait until everything that has been committed by now can be read: by any job, or by the job of one table.

        Raises:  REPLICA_BEHIND after the timeout, and what keeps a replica from following; of several jobs, all others are
                 brought up to date first.
        """
        deadline = time.monotonic() + timeout_seconds
        jobs = {self[table].job} if table is not None else set(self._jobs)
        problem: MillpondError | None = None
        for name in sorted(jobs):

            def tell(text: str, name: str = name) -> None:
                if on_progress is not None:
                    on_progress(f"{name}: {text}")

            try:
                self._jobs[name].replica.catch_up(max(0.0, deadline - time.monotonic()), tell)
            except MillpondError as error:
                problem = problem or error
        self._refresh()
        if problem is not None:
            raise problem

    def _any_readable(self) -> bool:
        for job in self._jobs.values():
            try:
                with job.replica.snapshot():
                    return True
            except MillpondError:
                continue
        return False

    def ready(self, max_behind_seconds: float = 30.0) -> tuple[bool, str]:
        """Whether every job that has committed something can be read and isn't further behind than that; if not, why."""
        for name, job in sorted(self._jobs.items()):
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
        """Per job: where its replica stands, how far it is behind, its size, what its follower does, and its last error."""
        self._refresh()
        return {name: self._job_statistics(job) for name, job in sorted(self._jobs.items())}

    def close(self) -> None:
        """End the threads that follow; another process takes over."""
        with self._lock:
            self._closed = True
        for job in self._jobs.values():
            job.replica.close()

    def __enter__(self) -> Pond:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _job_statistics(self, job: JobReads) -> dict[str, Any]:
        out: dict[str, Any] = {"checkpoint": job.folder.checkpoint, "job_state": job.job_state(), **job.replica.statistics()}
        try:
            with job.replica.snapshot() as view:
                lag = job.cut(view).lag
                rows = {s.id: view.rows.count(s.id) for s in view.stores.stores}
                out |= {
                    "batch": view.record.batch,
                    "behind_batches": lag.behind_batches,
                    "behind_seconds": lag.behind_seconds,
                    "age_seconds": lag.age_seconds,
                    "event_lag_seconds": lag.event_lag_seconds,
                    "rows": rows,
                    "unread": [{"operator": u.operator, "store": u.store, "why": u.message} for u in view.stores.unread],
                }
        except MillpondError as error:
            out |= {"batch": None, "error": {"condition": error.condition, "message": error.message, "hint": error.hint}}
        return out

    # ------------------------------------------------------------ the catalogue

    def _refresh(self) -> None:
        with self._lock:
            if not self._closed:
                self._read_catalogue()

    def _read_catalogue(self) -> None:
        tables: dict[str, Table] = {}
        for folder in open_jobs(self._path):
            job = self._jobs.get(folder.job)
            if job is None or job.folder.checkpoint != folder.checkpoint:
                replica = Replica(open_storage(folder.checkpoint), home=self._home, settings=self._settings, follow=self._follow)
                job = self._jobs[folder.job] = JobReads(folder, replica, self._settings)
            for definition in self._definitions(job):
                known = self._tables.get(definition.table)
                same = known is not None and known.definition == definition and known.job == folder.job
                tables[definition.table] = known if known is not None and same else Table(definition, job)
        self._tables = tables
        self._read_at = time.monotonic()

    def _definitions(self, job: JobReads) -> Iterator[TableDefinition]:
        """The job's definitions, then a raw one for each store that nobody defined."""
        defined = job.folder.definitions()
        yield from defined.values()
        try:
            with job.replica.snapshot() as view:
                stores = view.stores
        except MillpondError:
            # What can't be read now doesn't vanish: reads of it say why.
            known = [t.definition for t in self._tables.values() if t.job == job.folder.job]
            yield from (d for d in known if d.warnings == (_UNDEFINED,))
            return
        yield from undefined_tables(job.folder, stores, {d.store_id for d in defined.values()})


def unknown_table(name: str, uri: str, tables: Iterable[str]) -> RequestError:
    """There is no table of that name; these are there."""
    names = sorted(tables)
    known = ", ".join(difflib.get_close_matches(name, names, n=3) or names[:10])
    return RequestError(
        "UNKNOWN_TABLE",
        f"There is no table {name!r} in {uri}.",
        hint=f"Did you mean: {known}?" if known else "Start a job with `millpond.start`, or define a table on its checkpoint.",
        table=name,
    )


def undefined_tables(folder: JobFolder, stores: StoresRecord, defined: set[StoreId]) -> Iterator[TableDefinition]:
    """A definition for each store that isn't in `defined`."""
    for schema in stores.schemas():
        if (schema.operator, schema.store, schema.family) not in defined:
            shape = StoreShape(
                operator=schema.operator,
                operator_name=schema.operator_name,
                store=schema.store,
                family=schema.family,
                key=schema.key,
                value=schema.value,
                variable=schema.variable,
                ttl=schema.ttl,
                many=schema.many,
            )
            word = SHORT_NAMES.get(schema.operator_name, "state")
            yield undefined_table(f"{folder.job}.{word}_{schema.operator}{table_suffix(shape)}", shape, _UNDEFINED)

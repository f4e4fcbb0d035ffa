"""Counts of requests and of followers' work.  Each process counts for itself; a scrape adds up all processes.

A server may have several processes, and a scrape reaches any one of them.  Each process writes its
counts to its own file every second, and the process that is asked adds the files up.  A file stays
when its process ends, so no total ever decreases.

Rejected: prometheus_client's multiprocess mode.  It writes every count to a mapped file, which
takes about ten times as long for each request and three times as long for a scrape
(`benchmarks/counts.py`).  It also takes its folder from an environment variable that must be set
before the first import, and needs a call when a process ends, or that process's gauges stay.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from millpond.logs import EventLog
from millpond.operate.durations import Durations
from millpond.schema.prepared import ready

log = EventLog(__name__)
# What followers count: `replica.follower.Follower.statistics`.
FOLLOWER_COUNTS = (
    "batches_applied",
    "rows_applied",
    "apply_seconds",
    "bootstraps",
    "bootstrap_records",
    "bootstrap_seconds",
    "errors",
    "journal_errors",
    "aside_errors",
)
# What a process that makes backups counts besides: `serve.backups.Backups.facts`.
BACKUP_COUNTS = ("savepoints_made", "savepoint_errors", "archived_batches", "archive_errors")
# What `requests` and `transferred` of `Pond.statistics` count, by the names of followers' counts.
STORE_KINDS = ("head", "get", "list", "put", "copy", "delete", "retried")
STORE_BYTES = ("read_bytes", "written_bytes")


class Process(msgspec.Struct, kw_only=True):
    """The state of one process, or of several together.

    started:      when the first of them began, by the system's clock
    cpu_seconds:  processor time, including that of processes that have ended
    failing_backups:  savepoints at intervals and archives whose last try went wrong
    """

    started: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    descriptors: int = 0
    connections: int = 0
    streams: int = 0
    waits: int = 0
    failing_backups: int = 0


# Facts that only a running process has.  A file that is older than so many seconds is that of a process that has ended.
_PASSING = ("memory_bytes", "descriptors", "connections", "streams", "waits", "failing_backups")
_STALE_SECONDS = 5.0


class Counts(msgspec.Struct, kw_only=True):
    """The counts of one process since it began, or of several together.

    requests:   route -> status -> number of answers
    durations:  route -> how long its answers took
    reads:      table -> how long answers with its rows took, by all doors
    followers:  job -> counts of its follower, by the names of FOLLOWER_COUNTS, BACKUP_COUNTS, STORE_KINDS and STORE_BYTES
    process:    the state of the process
    looked_at:  when `process` was read, by the machine's monotonic clock
    """

    requests: dict[str, dict[int, int]] = {}
    durations: dict[str, Durations] = {}
    reads: dict[str, Durations] = {}
    followers: dict[str, dict[str, float]] = {}
    process: Process = msgspec.field(default_factory=Process)
    looked_at: float = 0.0


class Meter:
    """The counts of this process.

    folder:        where all processes of one server write their counts; None for a server of one process
    log_requests:  whether to log each request, by its route; never by its key, which may be private
    note_load:     adds the numbers of connections, streams and waits
    """

    def __init__(self, folder: Path | None = None, *, log_requests: bool = False) -> None:
        self.counts = Counts(process=Process(started=time.time()))
        self.note_load: Callable[[Process], None] | None = None
        self._log_requests = log_requests
        self._folder = folder
        self._path = folder / f"{os.getpid()}-{time.monotonic_ns()}.json" if folder is not None else None
        self._statements: dict[str, Durations] = {}
        self._lock = threading.Lock()

    @property
    def is_shared(self) -> bool:
        """Whether other processes count too."""
        return self._folder is not None

    def count(self, route: str, status: int, seconds: float, times: int = 1, *, tables: Iterable[str] = ()) -> None:
        """Count one answered request, or several that took as long each.

        tables:  whose rows they read
        """
        if self._log_requests:
            for _ in range(times):
                log.info("request", route=route, status=status, seconds=seconds)
        counts = self.counts
        statuses = counts.requests.get(route)
        if statuses is None:
            statuses = counts.requests[route] = {}
            counts.durations[route] = Durations()
        statuses[status] = statuses.get(status, 0) + times
        counts.durations[route].add(seconds, times)
        for table in tables:
            took = counts.reads.get(table) or counts.reads.setdefault(table, Durations())
            took.add(seconds, times)

    def count_statement(self, tables: Iterable[str], seconds: float) -> None:
        """Count a statement's reads of these tables.  Unlike `count`, from any thread."""
        with self._lock:
            for table in tables:
                self._statements.setdefault(table, Durations()).add(seconds)

    def reads(self) -> dict[str, Durations]:
        """`Counts.reads` of all processes of this server."""
        return dict(self.total().reads)

    def note_followers(self, statistics: dict[str, dict[str, Any]]) -> None:
        """Take over the counts of this process's followers, from `Pond.statistics`."""
        for job, facts in statistics.items():
            if "batches_applied" in facts:
                store = {**facts.get("requests", {}), **facts.get("transferred", {})}
                self.counts.followers[job] = {name: facts[name] for name in FOLLOWER_COUNTS}
                self.counts.followers[job] |= {name: facts[name] for name in BACKUP_COUNTS if name in facts}
                self.counts.followers[job] |= {
                    f"store_{name}": store[name] for name in (*STORE_KINDS, *STORE_BYTES) if name in store
                }
        self.counts.process.failing_backups = sum(len(facts.get("backup_errors", ())) for facts in statistics.values())

    def write(self) -> None:
        """Write the counts for the other processes.  If the disk is full, only the counts are lost."""
        if self._path is None:
            return
        self._look()
        temporary = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(self._all()))
            temporary.replace(self._path)

    def _look(self) -> None:
        """Read the state of this process."""
        process, self.counts.looked_at = self.counts.process, time.monotonic()
        process.cpu_seconds = time.process_time()
        with contextlib.suppress(OSError):
            process.memory_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            process.descriptors = len(os.listdir("/proc/self/fd"))
        if self.note_load is not None:
            self.note_load(process)

    def total(self) -> Counts:
        """The counts of all processes of this server."""
        self._look()
        if self._folder is None:
            return self._all()
        others = (_read(path) for path in self._folder.glob("*.json") if path != self._path)
        return _sum([self._all(), *(counts for counts in others if counts is not None)])

    def _all(self) -> Counts:
        """The counts of this process, with those of statements."""
        with self._lock:
            reads = {table: Durations().join(took) for table, took in self._statements.items()}
        for table, took in list(self.counts.reads.items()):
            reads.setdefault(table, Durations()).join(took)
        return structs.replace(self.counts, reads=reads)


def _read(path: Path) -> Counts | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ready(Counts))
    except (OSError, msgspec.MsgspecError):
        return None


def _sum(parts: Iterable[Counts]) -> Counts:
    total = Counts()
    oldest = time.monotonic() - _STALE_SECONDS
    for part in parts:
        process = total.process
        process.cpu_seconds += part.process.cpu_seconds
        process.started = min(filter(None, (process.started, part.process.started)), default=0.0)
        for name in _PASSING if part.looked_at >= oldest else ():
            setattr(process, name, getattr(process, name) + getattr(part.process, name))
        for route, statuses in part.requests.items():
            into = total.requests.setdefault(route, {})
            for status, answers in statuses.items():
                into[status] = into.get(status, 0) + answers
        for into_all, took in ((total.durations, part.durations), (total.reads, part.reads)):
            for name, durations in took.items():
                into_all.setdefault(name, Durations()).join(durations)
        for job, facts in part.followers.items():
            known_facts = total.followers.setdefault(job, {})
            for name, number in facts.items():
                known_facts[name] = known_facts.get(name, 0) + number
    return total

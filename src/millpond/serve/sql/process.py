"""A process for statements, as the server sees it: one statement at a time, ended or killed in time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from millpond.errors import MillpondError, ReplicaError
from millpond.logs import EventLog
from millpond.serve.sql import messages as say
from millpond.tables.sql.reading.opened import OpenedTables, Opening
from millpond.tables.sql.reading.order import Unordered
from millpond.wire.answers import sql_cuts, sql_reads

log = EventLog(__name__)
# A statement that was ended has so long to obey; then its process is killed.
_GRACE_SECONDS = 1.0
# Of the server's environment, what a process gets: no credentials.
_KEPT = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "MILLPOND_NATIVE")
# Allocators that reserve much more than they use would meet the limit of memory too early.
_ALLOCATORS = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
# Errors after which a process isn't used again.
_UNWELL = frozenset({"SQL_OUT_OF_MEMORY", "INTERNAL_ERROR"})
# Signals by which the system, or a library, ends a process for want of memory.
_OF_MEMORY = frozenset({signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})
CountStatement = Callable[[Iterable[str], float], None]
_ENDED = say.Failure("READ_TOO_LONG", "The statement was ended.", "Ask again.")


class SqlProcess:
    """A process for statements.

    memory_bytes:  that it may use for one
    is_well:       whether it can answer another statement
    """

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.is_well = True
        ours, theirs = socket.socketpair()
        read, self._control = os.pipe()
        words = [sys.executable, "-m", "millpond.serve.sql.program", str(theirs.fileno()), str(read), str(memory_bytes)]
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | _ALLOCATORS
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(), read),
                start_new_session=True,  # Ctrl-C in a terminal reaches the server alone, which ends this one
            )
        finally:
            theirs.close()
            os.close(read)
        self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_there(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def interrupt(self, number: int) -> None:
        """Ask it to end a statement."""
        with contextlib.suppress(OSError):
            os.write(self._control, number.to_bytes(8))

    def kill(self) -> int:
        """End it, and return how it ended."""
        self.is_well = False
        with contextlib.suppress(OSError):
            self.connection.close()
        self._process.kill()
        code = self._process.wait()
        if self._control >= 0:
            os.close(self._control)
            self._control = -1
        return code


class SqlSession:
    """A statement that a process answers, step by step.

    catalog:  returns the reply to Catalog
    count:    learns which tables a statement has read, and in how many seconds
    head:    of the answer, None until it has begun
    tables:  that it reads
    """

    def __init__(
        self,
        process: SqlProcess,
        ask: say.Ask,
        opening: Opening,
        catalog: Callable[[], str] | None = None,
        count: CountStatement | None = None,
    ) -> None:
        self._process, self._ask, self._opening, self._catalog, self._count = process, ask, opening, catalog, count
        self._began = time.monotonic()
        self._ends = self._began + ask.seconds + _GRACE_SECONDS
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._has_begun = self._is_over = self._is_closed = self._is_dry = False
        self._scans: dict[int, Iterator[Any]] = {}
        self.head: say.Head | say.PostgresHead | None = None
        self.tables = OpenedTables()

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def next(self) -> bytes | None:
        """The next piece of the answer, None at its end; `head` is there before the first one.

        Raises:  the errors of the statement; SQL_OUT_OF_MEMORY, READ_TOO_LONG, also after `close`;
                 SQL_ENDED if its process has ended.
        """
        with self._lock:
            if self._is_closed:  # while this thread waited for its turn; the process answers somebody else by now
                raise _was_ended()
            try:
                if not self._has_begun:
                    self._has_begun = True
                    say.send(self._process.connection, self._ask)
                while not self._is_over:
                    found = self._receive()
                    if isinstance(found, bytes):
                        return found
                    self._go_on(found)
            except (EOFError, OSError, ValueError) as gone:
                raise self._gone() from gone
            return None

    def end(self) -> None:
        """End the statement soon, from any thread."""
        self._ending.set()
        self._process.interrupt(self._ask.number)

    def close(self) -> None:
        """Let go of tables and process: a statement that still runs is ended, or its process killed."""
        if not self._is_over:
            self.end()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                while self._has_begun and not self._is_over and self._process.is_well:
                    found = self._receive()
                    if not isinstance(found, bytes):
                        self._go_on(found, refused=_ENDED)
            except (MillpondError, EOFError, OSError, ValueError):
                if not self._is_over:
                    self._process.kill()
            for scan in self._scans.values():
                scan.close()  # type: ignore[attr-defined]
            self._scans.clear()
            self.tables.__exit__()

    def _go_on(self, found: Any, refused: say.Failure | None = None) -> None:
        """Do what a message says.

        refused:  the reply to all questions; None to answer them
        """
        match found:
            case say.Head() | say.PostgresHead():
                self.head = found
            case say.Done():
                self._is_over = True
                self._process.is_well = not found.is_tired
                if self._count is not None and not self._is_dry:
                    self._count({read.table for read in self.tables.reads}, time.monotonic() - self._began)
            case say.Failure():
                self._is_over = True
                self._process.is_well = found.condition not in _UNWELL
                error = say.error_of(found)
                if isinstance(error, MillpondError) and (trace := error.context.pop("trace", None)) is not None:
                    log.error("sql.mistake", process=self._process.pid, condition=found.condition, trace=trace)
                raise error
            case _:
                say.send(self._process.connection, refused or self._reply(found))

    def _receive(self) -> Any:
        """The next message.  Raises READ_TOO_LONG if none comes in time."""
        while not self._process.connection.poll(max(0.0, min(self._ends - time.monotonic(), _GRACE_SECONDS))):
            if self._ending.is_set():
                self._ends = min(self._ends, time.monotonic() + _GRACE_SECONDS)
                self._ending.clear()
            if time.monotonic() >= self._ends:
                log.warning("sql.killed", process=self._process.pid, seconds=self._ask.seconds)
                self._process.kill()
                raise ReplicaError(
                    "READ_TOO_LONG",
                    f"The statement was ended after {self._ask.seconds:g} seconds.",
                    hint="Name key columns in WHERE, or allow more seconds.",
                )
        return say.receive(self._process.connection)

    def _reply(self, asked: Any) -> Any:
        try:
            match asked:
                case say.Open():
                    self._is_dry = asked.is_dry
                    self.tables = self._opening(asked.names, is_dry=asked.is_dry)
                    found = self.tables.relations
                    schemas = [each.schema.serialize().to_pybytes() for each in found]
                    return say.Opened(schemas, [list(each.sortable) for each in found], sql_cuts(self.tables.cuts))
                case say.Scan():
                    relation = self.tables.relations[asked.table]
                    self._scans[asked.number] = iter(relation.batches(asked.names, asked.condition, asked.hint))
                    return self._next(asked.number)
                case say.More():
                    return self._next(asked.number)
                case say.Reads():
                    return say.Lines([sql_reads(self.tables.reads)])
                case say.Plan():
                    return say.Lines(self.tables.plan_lines())
                case say.Catalog() if self._catalog is not None:
                    return say.Lines([self._catalog()])
            raise ValueError(f"{type(asked).__name__} is no question")
        except (MillpondError, Unordered) as error:
            self.tables.failed.clear()
            return say.failure_of(error)

    def _next(self, number: int) -> Any:
        batch = next(self._scans[number], None)
        if batch is None:
            del self._scans[number]
            return say.Nothing()
        return memoryview(batch.serialize())

    def _gone(self) -> MillpondError:
        if not self._process.is_well:  # killed here, by another thread
            return _was_ended()
        code = self._process.kill()
        log.warning("sql.process_ended", process=self._process.pid, exit_code=code)
        name = signal.Signals(-code).name if code < 0 else f"code {code}"
        if code < 0 and -code in _OF_MEMORY:
            why = f", most likely for want of memory: it may use {self._process.memory_bytes:,} bytes"
            hint = "Read, group or join fewer rows, and make no long texts or lists; otherwise ask again."
        else:
            why, hint = "", "Ask again; if that happens again, report it with the server's log."
        return ReplicaError("SQL_ENDED", f"The process that ran the statement ended ({name}){why}.", hint=hint)


def _was_ended() -> MillpondError:
    return ReplicaError("READ_TOO_LONG", "The statement was ended.", hint="Ask again.")

"""Operations of a server on savepoints: each is started by a request, and asked for its progress.

1. A request starts an operation in a thread, and gets its id at once.
2. A place among `max_operations` is free, and no other operation makes a savepoint of the same job:
   both are locked files in a folder that all doors of the server share, so that they count
   together, and a door that was killed holds none.
3. The id names the door that runs it.  Another door forwards questions there (`forwarding`).
4. At the server's end, each operation ends at its next step, and takes back what it has made.
5. So many ended operations are remembered, the oldest are forgotten.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from millpond.errors import MillpondError, RequestError, SavepointError
from millpond.logs import EventLog
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.verify import verify_savepoint
from millpond.serve.ponds import Ponds
from millpond.settings import ServeSettings
from millpond.tables.job.held_views import HOLDER
from millpond.wire.answers import (
    OperationAnswer,
    SavepointAnswer,
    SavepointsAnswer,
    UnreadSavepoint,
    VerifiedAnswer,
    error_json,
    savepoint_json,
    savepoint_summary,
    verified_json,
)
from millpond.wire.questions import CreateSavepoint

log = EventLog(__name__)
_MODE = 0o600
Kind = Literal["create", "verify"]
Step = Callable[[int, int], None]


class _Ending(Exception):
    """The server ends.  It isn't an error of a savepoint, so that nobody takes it for one."""


@dataclass(slots=True)
class _Operation:
    """One operation, as far as it has come."""

    id: str
    kind: Kind
    savepoint: str
    started: float = field(default_factory=time.time)
    ended: float | None = None
    done: int = 0
    files: int = 0
    made: SavepointAnswer | None = None
    verified: VerifiedAnswer | None = None
    error: MillpondError | None = None

    def answer(self) -> OperationAnswer:
        """What can be said of it now."""
        ended = self.ended
        return OperationAnswer(
            operation=self.id,
            kind=self.kind,
            savepoint=self.savepoint,
            state="running" if ended is None else "done" if self.error is None else "failed",
            files_done=self.done,
            files=self.files,
            started_ms=int(self.started * 1000),
            ended_ms=None if ended is None else int(ended * 1000),
            made=self.made,
            verified=self.verified,
            error=None if self.error is None else error_json(self.error).error,
        )


class Operations:
    """The savepoints of a server's ponds, and the operations on them of this process."""

    def __init__(self, ponds: Ponds, settings: ServeSettings, shared: Path | None) -> None:
        """shared: the folder that the processes of one server share; None if there is one process"""
        self._ponds = ponds
        self._settings = settings
        self._own = tempfile.TemporaryDirectory(prefix="millpond-operations-") if shared is None else None
        self._folder = shared or Path(self._own.name if self._own else "")
        self._known: dict[str, _Operation] = {}
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._ending = threading.Event()

    def use(self, settings: ServeSettings) -> None:
        """Bound operations by these settings from here on."""
        self._settings = settings

    # ------------------------------------------------------------ reads

    def savepoints(self) -> SavepointsAnswer:
        """All savepoints of all ponds."""
        found, incomplete, unread = [], [], []
        for pond, (place, _) in self._ponds.places().items():
            prefix = self._ponds.prefix(pond)
            every = list_savepoints(place)
            found += [savepoint_summary(prefix + s.manifest.name, s.manifest) for s in every.found]
            incomplete += [prefix + name for name in every.incomplete]
            unread += [UnreadSavepoint(savepoint=prefix + n, error=error_json(e).error) for n, e in every.broken.items()]
        return SavepointsAnswer(savepoints=found, incomplete=incomplete, unread=unread)

    def savepoint(self, name: str) -> SavepointAnswer:
        """One savepoint.  Raises UNKNOWN_SAVEPOINT, and as `open_savepoint`."""
        return savepoint_json(name, self._open(name).manifest)

    def _open(self, name: str) -> Savepoint:
        place, _, own = self._ponds.place_of(name)
        return open_savepoint(place, own)

    # ------------------------------------------------------------ operations

    def create(self, question: CreateSavepoint) -> OperationAnswer:
        """Begin to make a savepoint.

        Raises:  TOO_MANY_OPERATIONS, and as `plan_savepoint`.
        """
        place, allow, name = self._ponds.place_of(question.name)
        with ExitStack() as held:
            held.enter_context(self._slot())
            plan = plan_savepoint(
                place, name, job=question.job, batch=question.batch, note=question.note, count=question.count, allow=allow
            )
            digest = hashlib.sha256(plan.job.checkpoint.encode()).hexdigest()[:32]
            if not held.enter_context(self._locked(f"operation-job-{digest}")):
                raise _too_many(f"Another operation makes a savepoint of {plan.job.job}.")

            def work(operation: _Operation, step: Step) -> None:
                operation.made = savepoint_json(question.name, plan.run(step).manifest)

            return self._start("create", question.name, work, held.pop_all())

    def verify(self, name: str) -> OperationAnswer:
        """Begin to read all of a savepoint.  Raises TOO_MANY_OPERATIONS, and as `savepoint`."""
        found = self._open(name)
        with ExitStack() as held:
            held.enter_context(self._slot())

            def work(operation: _Operation, step: Step) -> None:
                operation.verified = verified_json(name, verify_savepoint(found, step))

            return self._start("verify", name, work, held.pop_all())

    def operation(self, identity: str) -> OperationAnswer:
        """What an operation has come to.  Raises UNKNOWN_OPERATION."""
        with self._lock:
            found = self._known.get(identity)
        if found is None:
            raise RequestError(
                "UNKNOWN_OPERATION",
                f"This server knows no operation {identity[:80]!r}.",
                hint="Look at GET /savepoints: ended operations are forgotten after a while, and with the server.",
                holder=identity.partition("-")[0],
            )
        return found.answer()

    def close(self, seconds: float) -> None:
        """End all operations; return when they have taken back what isn't finished, or after so long."""
        self._ending.set()
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._own is not None:
            self._own.cleanup()

    def _start(self, kind: Kind, name: str, work: Callable[[_Operation, Step], None], held: ExitStack) -> OperationAnswer:
        operation = _Operation(f"{HOLDER}-{secrets.token_hex(8)}", kind, name)
        thread = threading.Thread(target=self._run, args=(operation, work, held), name=f"operation {operation.id}")
        with self._lock:
            self._forget()
            self._known[operation.id] = operation
            self._threads.add(thread)
        thread.start()
        return operation.answer()

    def _run(self, operation: _Operation, work: Callable[[_Operation, Step], None], held: ExitStack) -> None:
        def step(done: int, files: int) -> None:
            operation.done, operation.files = done, files
            if self._ending.is_set():
                raise _Ending

        try:
            with held:
                step(0, 0)
                work(operation, step)
        except MillpondError as error:
            operation.error = error
        except _Ending:
            operation.error = SavepointError(
                "OPERATION_CANCELLED",
                "The server ended before the operation.",
                hint="Start it again; nothing of it is left.",
                savepoint=operation.savepoint,
            )
        except Exception as mistake:  # noqa: BLE001 - whoever asks for the operation is told
            name = type(mistake).__name__
            operation.error = MillpondError(
                "INTERNAL_ERROR", f"This is a bug in Millpond ({name}).", hint="Report it with the log."
            )
            log.error("operation.mistake", kind=operation.kind, traceback=traceback.format_exc())
        finally:
            operation.ended = time.time()
            condition = "none" if operation.error is None else operation.error.condition
            log.info("operation.ended", kind=operation.kind, savepoint=operation.savepoint, condition=condition)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _forget(self) -> None:
        ended = [o for o in self._known.values() if o.ended is not None]
        for operation in ended[: max(0, len(ended) + 1 - self._settings.kept_operations)]:
            del self._known[operation.id]

    # ------------------------------------------------------------ bounds

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """A place among those that may run.  Raises TOO_MANY_OPERATIONS."""
        if self._ending.is_set():
            raise _too_many("The server ends.")
        for number in range(self._settings.max_operations):
            with self._locked(f"operation-{number}") as is_ours:
                if is_ours:
                    yield
                    return
        raise _too_many(f"{self._settings.max_operations} operations run already.")

    @contextmanager
    def _locked(self, name: str) -> Iterator[bool]:
        """Hold a lock that all doors share; False if another operation holds it."""
        file = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _MODE)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(file)


def _too_many(what: str) -> RequestError:
    return RequestError("TOO_MANY_OPERATIONS", what, hint="Ask again when an operation has ended.")

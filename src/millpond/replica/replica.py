"""One job's replica for readers: a snapshot of all tables at one batch, or the reason for none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millpond.checkpoint.identity import judge, replaced_error
from millpond.checkpoint.log import committed_batches
from millpond.checkpoint.position import Batch
from millpond.errors import CONDITIONS, PASSING, MillpondError, ReplicaError, StorageError
from millpond.native.lookup import Reader
from millpond.replica.backends.base import Backend, Snapshot
from millpond.replica.backends.choice import BackendChoice, choose_backend
from millpond.replica.backends.lmdb import LmdbBackend, LmdbSnapshot
from millpond.replica.backends.memory import MemoryBackend
from millpond.replica.folder import FollowerStatus, ReplicaPlace
from millpond.replica.follower import Follower, Retentions, Wanted
from millpond.replica.indexes import WantedIndexes
from millpond.replica.record import ReplicaRecord, StoresRecord
from millpond.schema.shard import Shard
from millpond.settings import ReplicaSettings
from millpond.storage import FileStamp, Storage
from millpond.storage.polling import until_answered

MEMORY = "memory://"
Serving = tuple[Backend, StoresRecord]
# How old a poll of the checkpoint may be.
_LOOK_SECONDS = 0.001
# A follower tries again at least once per second, after any error.
_FOREIGN_RETRY_SECONDS = 1.5
_REMOTE_FOREIGN_RETRY_SECONDS = 10.0
_FOREIGN_STATUS_SECONDS = 0.02
# How long to wait for a step of the follower, which only reports steps after which nothing was left
# to do.
_STEP_SECONDS = 0.05
# Errors from which a follower recovers by itself.
_PASSING = PASSING | {"NO_CHECKPOINT"}


@dataclass(frozen=True, slots=True)
class Newer:
    """The batches that the job has committed after a given one.

    batches:           how many
    oldest_commit_ns:  when the first of them was committed, None if there is none
    """

    batches: int
    oldest_commit_ns: int | None


NOTHING_NEWER = Newer(0, None)


class View:
    """A reader's view: rows, their position, and the replica's stores.

    A context manager that ends it.  A function that opens a view and then does work that may fail
    returns `view.hand_on()` from its `with` block.  Then the caller ends it, and the block only
    does so after an error.

    newer:       the batches committed after it: at most a millisecond old on a local disk, of the
                 last poll on an object store
    generation:  the name of the generation that it reads
    is_own:      whether it is a snapshot that nobody else reads; not a lent one, or one that shows
                 another batch than its own
    """

    __slots__ = ("_end", "generation", "is_own", "newer", "record", "rows", "stores")

    def __init__(
        self,
        rows: Snapshot,
        record: ReplicaRecord,
        stores: StoresRecord,
        newer: Newer,
        generation: str,
        end: Callable[[], object] | None = None,
    ) -> None:
        """A view of a snapshot, or a lent one: `end` gives it back."""
        self.rows = rows
        self.record = record
        self.stores = stores
        self.newer = newer
        self.generation = generation
        self.is_own = end is None
        self._end: Callable[[], object] | None = end or rows.__exit__

    def lend(self, end: Callable[[], object]) -> View:
        """The same view for one more reader, who gives it back by ending it."""
        return View(self.rows, self.record, self.stores, self.newer, self.generation, end)

    def hand_on(self) -> View:
        """The same view, which the caller ends: leaving this one no longer ends it."""
        other = self.lend(_nothing)
        other.is_own, other._end, self._end = self.is_own, self._end, None
        return other

    def hand_on_as(self, rows: Snapshot, record: ReplicaRecord) -> View:
        """As `hand_on`, but as of another batch."""
        other = self.hand_on()
        other.rows, other.record, other.is_own = rows, record, False
        return other

    def close(self) -> None:
        """End it, unless it was handed on or has ended."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _nothing() -> None:
    """The `end` of a view that has none yet."""


class Replica:
    """The replica of one job: follows it, or reads a replica that another process follows."""

    def __init__(
        self,
        storage: Storage,
        *,
        home: Path | str,
        settings: ReplicaSettings,
        follow: bool = True,
        retention: Retentions | None = None,
        wanted: Wanted | None = None,
        indexes: WantedIndexes | None = None,
        shard: Shard | None = None,
        backend: BackendChoice | None = None,
    ) -> None:
        """A replica of a job, or of some of its partitions; `backend` keeps it unless it is in memory."""
        self._backend = backend or choose_backend()
        self._storage = storage
        self.shard = shard
        self._settings = settings
        self._serving: Serving | None = None
        self._reader: tuple[LmdbBackend, Reader | None] | None = None
        self._looked: tuple[ReplicaRecord, Newer, float] | None = None
        self._foreign: tuple[FollowerStatus | None, float] | None = None
        self._unanswered_until = 0.0
        self._replaced_at: int | None = None
        self._lock = threading.Lock()
        self._accepted: tuple[int, FileStamp | None] | None = None
        self._closed = False
        in_memory = str(home) == MEMORY
        self._place = None if in_memory else ReplicaPlace(Path(home), storage.uri, shard, self._backend.name)
        self._follower: Follower | None = None
        if follow or in_memory:
            self._follower = Follower(
                storage,
                self._place,
                settings,
                new_backend=MemoryBackend if in_memory else None,
                on_backend=self._serve_from,
                retention=retention,
                wanted=wanted,
                indexes=indexes,
                shard=shard,
                backend=self._backend,
            )
            self._follower.start()

    def snapshot(self) -> View:
        """A view of all tables at one batch; leaving its `with` block ends it.

        Raises:  REPLICA_BUILDING (with progress), NO_COMMITTED_BATCH, NO_CHECKPOINT, JOB_REPLACED,
                 REPLICA_CLOSED.
        """
        serving = self._serving or self._attach()
        snapshot = serving[0].snapshot()
        try:
            record = snapshot.record()
            if record.status != "live":
                # This generation no longer serves. There is a newer one, or a reason why there
                # isn't.
                snapshot.__exit__()
                serving = self._next_generation(serving, record)
                snapshot = serving[0].snapshot()
                record = snapshot.record()
                if record.status != "live":
                    raise replaced_error(self._storage, record.batch)
            return View(snapshot, record, serving[1], self._look(record, serving[1]), serving[0].name)
        except BaseException:
            snapshot.__exit__()
            raise

    def reader(self, view: View) -> tuple[Reader, int, float] | None:
        """Compiled code that reads the newest batch, given a view of it.

        Its transaction may be read until the time that follows, by the monotonic clock: then the
        checkpoint is to be polled again.  None if there is no such code for this replica.
        """
        rows, looked = view.rows, self._looked
        if not isinstance(rows, LmdbSnapshot) or not view.is_own:
            return None
        known = self._reader
        if known is None or known[0] is not rows.backend:
            with self._lock:
                if self._serving is None or self._serving[0] is not rows.backend:
                    return None
                self._end_reader()
                known = self._reader = rows.backend, rows.backend.reader(rows)
        if known[1] is None:
            return None
        if self._storage.is_remote:
            return known[1], rows.transaction.id(), time.monotonic() + _LOOK_SECONDS
        if looked is None or looked[0] is not view.record:
            return None
        return known[1], rows.transaction.id(), looked[2] + _LOOK_SECONDS

    def _end_reader(self) -> None:
        """Let go of the environment, which may then be closed."""
        known, self._reader = self._reader, None
        if known is not None and known[1] is not None:
            known[1].end()

    def wait_until_begun(self, timeout_seconds: float) -> None:
        """Return when this replica follows, or can't follow; or after the timeout."""
        if self._follower is not None:
            self._follower.wait_for_first_step(timeout_seconds)

    def newer_than(self, view: View) -> Newer:
        """The batches committed after a kept view.  Raises JOB_REPLACED."""
        return self._look(view.record, view.stores)

    def wait_for_step(self, timeout_seconds: float) -> None:
        """Return when there may be something new to read, or after the timeout."""
        if self._follower is None or not self._follower.following:
            time.sleep(min(timeout_seconds, _FOREIGN_STATUS_SECONDS))
            return
        self._follower.wait_for_step(min(timeout_seconds, _STEP_SECONDS))

    def _next_generation(self, ended: Serving, record: ReplicaRecord) -> Serving:
        with self._lock:
            if self._serving is ended:
                self._serving = None
                self._end_reader()
                self._replaced_at = record.batch if record.status == "replaced" else None
        return self._serving or self._attach()

    def _look(self, record: ReplicaRecord, stores: StoresRecord) -> Newer:
        """Poll the checkpoint: check that it is the same job, and find newer commits.

        Raises JOB_REPLACED.

        The two system calls cost as much as the rest of a read, so a poll is valid for a
        millisecond.
        """
        if self._storage.is_remote:
            return self._newer_by_follower(record, stores)
        looked, now = self._looked, time.monotonic()
        if looked is not None and looked[0] is record and now - looked[2] < _LOOK_SECONDS:
            return looked[1]
        self._check_identity(record, stores)
        newer = self._newer(record.batch)
        self._looked = (record, newer, now)
        return newer

    def _newer_by_follower(self, record: ReplicaRecord, stores: StoresRecord) -> Newer:
        """The result of the follower's last poll: on an object store, reads make no request.

        If the follower has been silent for long, all that time counts as behind, since nobody knows
        what was committed.  If nobody follows, and this replica won't either, it polls by itself,
        as rarely as an idle follower.
        """
        status = self._status()
        if status is not None and status.newest > record.batch and status.oldest_commit_ns is not None:
            return Newer(status.newest - record.batch, status.oldest_commit_ns)
        looked_at = status.looked_at if status is not None else 0.0
        if time.time() - looked_at > self._settings.remote_silence_seconds:
            if self._follower is None and (newer := self._own_look(record, stores)) is not None:
                return newer
            return Newer(0, max(record.commit_modified_ns, int(looked_at * 1e9)))
        return NOTHING_NEWER

    def _own_look(self, record: ReplicaRecord, stores: StoresRecord) -> Newer | None:
        looked, now = self._looked, time.monotonic()
        if looked is not None and looked[0] == record and now - looked[2] < self._settings.remote_idle_poll_seconds:
            return looked[1]
        if now < self._unanswered_until:
            return None
        try:
            self._check_identity(record, stores)
            newer = self._newer(record.batch)
        except StorageError:
            self._unanswered_until = time.monotonic() + self._settings.remote_silence_seconds
            return None
        self._looked = (record, newer, now)
        return newer

    def _status(self) -> FollowerStatus | None:
        """The follower's status, at most a few milliseconds old."""
        if self._follower is not None and (self._follower.following or self._place is None):
            return self._follower.status
        assert self._place is not None
        read, now = self._foreign, time.monotonic()
        if read is None or now - read[1] > _FOREIGN_STATUS_SECONDS:
            read = self._foreign = (self._place.read_status(), now)
        return read[0]

    def _newer(self, batch: int) -> Newer:
        first = self._storage.stamp(f"commits/{batch + 1}")
        if first is None:
            return NOTHING_NEWER
        newest = [b for b in committed_batches(self._storage) if b > batch]
        return Newer(len(newest) or 1, first.modified_ns)

    def catch_up(self, timeout_seconds: float, on_progress: Callable[[str], None] | None = None) -> None:
        """Wait until all that is committed now is applied.

        A job without a committed batch counts as caught up.

        Raises:  the follower's error, if it can't continue; REPLICA_BEHIND or STORAGE_UNAVAILABLE after the timeout.
        """
        deadline = time.monotonic() + timeout_seconds
        goal, began = until_answered(self._newest_committed, deadline), time.monotonic()
        if goal is None:
            return
        errors = self._follower.counts.errors if self._follower is not None else 0
        if self._follower is not None:
            self._follower.wake()
            self.wait_until_begun(timeout_seconds)  # from then on, the requested retention applies
        while True:
            reached, problem = self._reached()
            follower = self._follower
            has_indexes = follower is None or not follower.following or follower.has_indexes
            if reached is not None and reached >= goal and has_indexes:
                return
            # Only errors since this call count: the cause of an earlier one may be mended.
            own = self._follower is not None and self._follower.following
            fresh = self._follower.counts.errors > errors if self._follower is not None and own else self._is_old(began)
            if problem is not None and problem.condition not in _PASSING and fresh:
                raise problem
            if on_progress is not None:
                on_progress(self._progress(reached, goal))
            if time.monotonic() > deadline:
                raise problem or ReplicaError(
                    "REPLICA_BEHIND",
                    f"The replica is at batch {reached}, the job at {goal}, after {timeout_seconds:g} seconds.",
                    hint="Wait longer, or read the present batch.",
                    batch=reached,
                    newest=goal,
                )
            self.wait_for_step(_STEP_SECONDS)

    def _newest_committed(self) -> Batch | None:
        committed = committed_batches(self._storage)
        if not committed:
            return None
        newest = committed[-1]
        # Listings may lag behind; reads by name don't.
        while self._storage.is_remote and self._storage.stamp(f"commits/{newest + 1}") is not None:
            newest = Batch(newest + 1)
        return newest

    def statistics(self) -> dict[str, Any]:
        """The replica's folder, size and requests, and its follower's state with its last error."""
        follower = self._follower.statistics() if self._follower is not None else {"following": False}
        if not follower["following"] and self._place is not None and (status := self._place.read_status()) is not None:
            follower |= msgspec.to_builtins(status)
        serving = self._serving
        return {
            "path": str(self._place.path) if self._place is not None else MEMORY,
            "size_bytes": serving[0].size_bytes() if serving is not None else 0,
            **follower,
            "requests": dict(self._storage.requests),
            "transferred": dict(self._storage.transferred),
        }

    def close(self) -> None:
        """Stop following.  Answers already given stay valid."""
        self._closed = True
        if self._follower is not None:
            self._follower.stop()
        with self._lock:
            self._serving = None
            self._end_reader()

    # ------------------------------------------------------------ finding a generation

    def _serve_from(self, backend: Backend) -> None:
        stores = backend.stores()
        assert stores is not None
        with self._lock:
            if self._reader is not None and self._reader[0] is not backend:
                self._end_reader()
            self._serving = (backend, stores)
            self._replaced_at = None

    def _attach(self) -> Serving:
        if self._closed:
            raise ReplicaError("REPLICA_CLOSED", "The pond was closed.", hint="Open it again.")
        if self._place is not None and (path := self._place.current()) is not None:
            if not self._backend.is_shared and (self._follower is None or not self._follower.following):
                raise ReplicaError(
                    "REPLICA_NOT_SHARED",
                    f"The backend {self._backend.name} keeps a replica for one process, the one that follows.",
                    hint="Ask that process, such as `millpond serve`; or use another --replica-dir, or the backend lmdb.",
                    backend=self._backend.name,
                )
            try:
                backend = self._backend.open(path, self._settings)
            except FileNotFoundError:
                raise self._why_nothing() from None  # superseded between two looks
            stores = backend.stores()
            if stores is not None:
                self._serve_from(backend)
                return backend, stores
        raise self._why_nothing()

    def _check_identity(self, record: ReplicaRecord, stores: StoresRecord) -> None:
        """Refuse a snapshot of a job that is no longer at this path, even before the follower notices.

        Raises:  JOB_REPLACED.
        """
        stamp = self._storage.stamp(f"commits/{record.batch}")
        if stamp == record.commit_stamp or self._accepted == (record.batch, stamp):
            return
        verdict, judged = judge(self._storage, record, stores.job_id)
        if verdict == "replaced":
            raise replaced_error(self._storage, record.batch)
        self._accepted = (record.batch, judged)

    def _why_nothing(self) -> MillpondError:
        """Why there is no generation to read."""
        if self._replaced_at is not None:
            return replaced_error(self._storage, self._replaced_at)
        status = self._follower.status if self._follower is not None else None
        if self._place is not None and (status is None or not (self._follower and self._follower.following)):
            status = self._place.read_status() or status
        if status is not None and status.error is not None:
            return _revive(status.error)
        if self._storage.is_remote:
            # By the follower's poll: readers make no requests.
            nothing_yet = status is not None and status.state == "waiting" and status.looked_at > 0
        else:
            nothing_yet = not committed_batches(self._storage)
        if nothing_yet:
            return ReplicaError(
                "NO_COMMITTED_BATCH",
                f"The job at {self._storage.uri} hasn't committed a batch yet.",
                hint="Start the job, or ask again when its first batch is done.",
                checkpoint=self._storage.uri,
            )
        done, of, records = (status.partitions_done, status.partitions, status.records) if status else (0, 0, 0)
        return ReplicaError(
            "REPLICA_BUILDING",
            f"The replica is being built: {done} of {of} partitions, {records} records so far.",
            hint="Ask again in a moment.",
            partitions_done=done,
            partitions=of,
            records=records,
        )

    def _reached(self) -> tuple[Batch | None, MillpondError | None]:
        try:
            with self.snapshot() as view:
                reached = Batch(view.record.batch)
                # The snapshot's own poll may be older than the call.
                self._check_identity(view.record, view.stores)
        except MillpondError as error:
            return None, error
        return reached, self._follower_error()

    def _follower_error(self) -> MillpondError | None:
        """The error that stops the follower, in this process or another one."""
        if self._follower is not None and self._follower.following:
            return self._follower.last_error
        status = self._place.read_status() if self._place is not None else None
        return _revive(status.error) if status is not None and status.error is not None else None

    def _is_old(self, began: float) -> bool:
        """Whether a follower in another process has tried again since then."""
        return time.monotonic() - began > (_REMOTE_FOREIGN_RETRY_SECONDS if self._storage.is_remote else _FOREIGN_RETRY_SECONDS)

    def _progress(self, reached: Batch | None, goal: Batch) -> str:
        if reached is not None:
            return f"at batch {reached} of {goal}"
        status = self._follower.status if self._follower is not None else None
        return f"building, {status.records} records" if status is not None else "waiting for the process that follows"


def _revive(error: dict[str, Any]) -> MillpondError:
    """The error that a follower left in its status."""
    condition = error["condition"]
    kind = CONDITIONS[condition].kind if condition in CONDITIONS else ReplicaError
    return kind(condition, error["message"], hint=error["hint"])

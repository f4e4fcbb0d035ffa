"""The thread that keeps a replica up to date.

One step:

1. If this process doesn't follow, try to become the follower; another one may follow instead.
2. If there is no generation, or only one of another format, boot or checkpoint, or without the
   indexes that are wanted: build.
3. Check that it is still the same job (`identity`).  If not, refuse reads at once, and build.  If
   our batch was cleaned up, or the job rescaled: build.
4. If commits/N+1 exists, here or put aside: apply it, and continue with the next.  If one of its
   files is missing: build.
5. Otherwise wait, then poll again: on a local disk when the system reports a commit
   (`storage/watch.py`), or after milliseconds; on an object store, where a poll is two requests,
   after a tenth of the time since the last commit (0.25 to 3 seconds).

To build: read the newest committed batch into a new generation, let it serve, mark the old one
superseded, remove it.  Until then the old generation serves, unless the job was replaced.  Batches
that commit meanwhile are put aside (`aside`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from millpond.checkpoint.identity import judge
from millpond.checkpoint.log import CommittedBatch, committed_batches, job_id, read_batch
from millpond.checkpoint.operators import metadata_path, read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError, MillpondError, ReplicaError
from millpond.logs import EventLog, Trouble
from millpond.replica.apply import apply_batch
from millpond.replica.aside import Aside, AsideErrors, remove_all
from millpond.replica.backends.base import Backend
from millpond.replica.backends.choice import BackendChoice, choose_backend
from millpond.replica.counts import Clock, FollowerCounts
from millpond.replica.folder import FollowerStatus, ReplicaPlace
from millpond.replica.generation import Generation, Generations
from millpond.replica.history.keeper import Keeper
from millpond.replica.indexes import WantedIndexes
from millpond.replica.journal.writer import JournalCopy
from millpond.replica.record import DAMAGED, StoresRecord
from millpond.schema.shard import Shard
from millpond.settings import ReplicaSettings, Retention
from millpond.storage import FileStamp, Storage
from millpond.storage.names import numbers
from millpond.storage.polling import polling_of
from millpond.storage.watch import FolderWatch

# How often to check that the folder is still ours.
_FOLDER_SECONDS = 0.5
_READERS_SECONDS = 10.0
_STATUS_SECONDS = 0.25
_LOCK_SECONDS = 0.5
_MAX_BACKOFF_SECONDS = 1.0
_COUNT_SECONDS = 2.0
_INDEXES_SECONDS = 1.0
_BEHIND_SECONDS = 1.0
# How often to look for commits to put aside, and from how many on a follower may be far behind.
_ASIDE_SECONDS = 0.01
_LONG_BEHIND = 4


Retentions = Callable[[StoresRecord], Mapping[str, Retention]]
"""a replica's stores -> the retention of each, by id"""
Wanted = Callable[[StoresRecord], Mapping[str, tuple[str, Retention]]]
"""a replica's stores -> by table, the id of its store and the retention that was asked for"""
log = EventLog(__name__)
# The errors of a job that hasn't begun, which are normal.
_NOT_YET = frozenset({"NO_CHECKPOINT"})


class Follower:
    """Keeps the replica of one job up to date, in a thread of its own.

    place:        the replica's folder, or None for a replica in memory
    on_backend:   called with each generation that begins to serve
    retention:    the retention of stores that differs from the settings
    wanted:       the retention that the replica's opener asked for, by table
    indexes:      the indexes of stores
    shard:        the partitions to follow; None for all
    backend:      of replicas on disk
    has_indexes:  whether the replica had all that were wanted when that was last looked at
    """

    def __init__(
        self,
        storage: Storage,
        place: ReplicaPlace | None,
        settings: ReplicaSettings,
        *,
        new_backend: Callable[[], Backend] | None = None,
        on_backend: Callable[[Backend], None],
        retention: Retentions | None = None,
        wanted: Wanted | None = None,
        indexes: WantedIndexes | None = None,
        shard: Shard | None = None,
        backend: BackendChoice | None = None,
    ) -> None:
        self._storage = storage
        self._place = place
        self._settings = settings
        self.polling = polling_of(storage, settings)
        self._on_backend = on_backend
        self._retention = retention or (lambda _stores: {})
        self._backend = backend or choose_backend()
        self._generations = Generations(
            storage=storage,
            place=place,
            settings=settings,
            new_backend=new_backend,
            make_keeper=self._make_keeper,
            wanted_indexes=indexes or (lambda _stores: {}),
            build_reads=self.polling.build_reads,
            shard=shard,
            open_backend=self._backend.open,
        )
        self._shard = shard
        self._wanted = wanted
        self._ignored: dict[str, str] = {}
        self._trouble = Trouble(log, "follower", checkpoint=storage.uri)
        self._generation: Generation | None = None
        self._stop = threading.Event()
        self._commits = FolderWatch(storage.local_path("commits"))
        self._is_notified = False
        self._stepped = threading.Condition()
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None
        self._status_clock = Clock(_STATUS_SECONDS)
        self._folder_clock = Clock(_FOLDER_SECONDS)
        self._skipped_clock = Clock(self.polling.check_seconds)
        self._count_clock = Clock(_COUNT_SECONDS)
        self._indexes_clock = Clock(_INDEXES_SECONDS)
        self._aside_clock = Clock(_BEHIND_SECONDS)
        self._aside: Aside | None = None
        self._aside_errors = AsideErrors(storage.uri)
        self._was_too_slow = False  # Spark deleted files that the last build needed
        self._applied_last = False
        self._missing: tuple[Batch, float] | None = None
        self._readers_clock = Clock(_READERS_SECONDS)
        # Expired rows also outlive restarts of the machine; not those of a shard, which may be
        # another's after the job was rescaled.
        self.journal = JournalCopy(place.path) if place is not None and shard is None else None
        self.status = FollowerStatus(started_at=time.time())
        self.counts = FollowerCounts()
        self.last_error: MillpondError | None = None
        self.following = False
        self.has_indexes = True

    def start(self) -> None:
        """Begin, in a daemon thread."""
        if self.journal is not None:
            self.journal.start()
        self._thread = threading.Thread(target=self._run, name="millpond-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and let another process follow."""
        self._stop.set()
        self._commits.wake()
        if self._thread is not None:
            self._thread.join(self.polling.stop_seconds)
            if self._thread.is_alive():
                return  # the thread waits for an object store; after the answer or a time-out it ends and unlocks
        self._commits.close()
        self._let_go()

    def _let_go(self) -> None:
        self._generation = None
        self._end_aside()
        if self.journal is not None:
            self.journal.close()
        if self._place is not None:
            self._place.unlock()

    def wake(self) -> None:
        """Take the next step now, even if a pause is due after an error."""
        self._commits.wake()

    def wait_for_first_step(self, timeout_seconds: float) -> None:
        """Return when this process follows, another one does, or neither is possible; or after the timeout."""
        self._begun.wait(timeout_seconds)

    def wait_for_step(self, timeout_seconds: float) -> None:
        """Return after the next step, or the timeout."""
        with self._stepped:
            self._stepped.wait(timeout_seconds)

    def statistics(self) -> dict[str, Any]:
        """This follower's state and counts, with its last error."""
        return {
            "following": self.following,
            **msgspec.to_builtins(self.status),
            **{name: getattr(self.counts, name) for name in FollowerCounts.__slots__},
            "journal_error": self.journal.error if self.journal is not None else None,
            "journal_errors": self.journal.errors if self.journal is not None else 0,
            "aside_error": None if (failed := self._aside_errors.error) is None else str(failed) or repr(failed),
            "aside_errors": self._aside_errors.errors,
        }

    # ------------------------------------------------------------ the loop

    def _run(self) -> None:
        failures, last_commit = 0, time.monotonic()
        waited = is_notified = False
        while not self._stop.is_set():
            try:
                if self.step():
                    self._begun.set()
                    last_commit = time.monotonic()
                    if waited:
                        self._is_notified, waited = is_notified, False
                    continue
                failures = 0
                quiet = time.monotonic() - last_commit
                pause = self.polling.pause(quiet, is_notified=self._is_notified) if self.following else _LOCK_SECONDS
            except MillpondError as error:
                failures += 1
                self._failed(error)
                pause = min(self.polling.longest_pause_seconds, 0.02 * 2 ** min(failures, 20))
            except Exception as error:  # noqa: BLE001 - a follower that dies silently would serve old answers for ever
                failures += 1
                unknown = ReplicaError(
                    "FOLLOWER_FAILED",
                    f"The follower had an unexpected error: {error!r}.",
                    hint="Report this with the checkpoint's Spark version; deleting the replica's folder may help.",
                )
                log.debug("follower.traceback", raised=error, checkpoint=self._storage.uri)
                self._failed(unknown)
                pause = _MAX_BACKOFF_SECONDS
            self._begun.set()
            with self._stepped:
                self._stepped.notify_all()
            is_notified = self._commits.wait(pause)
            waited = True
        if self.polling.stop_seconds is not None:
            self._let_go()  # `stop` may have given up waiting

    def _failed(self, error: MillpondError) -> None:
        self.last_error = error
        self._trouble.met(error, expected=error.condition in _NOT_YET)
        self.counts.errors += 1
        facts = {"condition": error.condition, "message": error.message, "hint": error.hint}
        self._say(state="failed", error=facts, now=True)

    def step(self) -> bool:
        """Take one step; returns whether anything was applied or built."""
        if not self.following and not self._take_over():  # 1
            return False
        if self._place is not None and self._folder_clock.due() and self._folder_is_gone():
            return False
        generation = self._generation  # 2
        if generation is None:
            generation = self._generations.open()
            if generation is None:
                return self._build()
            self._serve(generation)
            if generation.indexes is None:  # before a batch is applied without them
                return self._build()
            self._has_indexes(generation)
        verdict, stamp = judge(self._storage, generation.record, generation.job_id)  # 3
        if verdict == "replaced":
            self._refuse_reads(generation)
            return self._build()
        following = Batch(generation.record.batch + 1)
        reader = self._aside.reader(following, generation.reader) if self._aside is not None else None
        if verdict == "rescaled" or (verdict == "behind" and reader is None):
            return self._build()
        if stamp is not None and stamp != generation.record.commit_stamp:
            self._restamp(generation, stamp.identity, stamp.modified_ns, stamp.size_bytes)
        reader = reader or generation.reader
        commit = reader.storage.stamp(f"commits/{following}")
        self._looked(generation.record.batch, commit)
        if commit is None:
            self._applied_last = False
            self._end_aside()
            self._aside_errors.over()
            # An error stays until a step shows that its cause is gone.
            if (self._skipped_clock.due() or self.last_error is not None) and self._skipped(generation):
                return self._build()
            if (not self.has_indexes or self._indexes_clock.due()) and not self._has_indexes(generation):
                return self._build()
            if self._readers_clock.due():
                generation.backend.check_readers()
            self._well("following")
            return False
        return self._apply(generation, following, reader)  # 4

    def _looked(self, batch: int, commit: FileStamp | None) -> None:
        """Record what a poll of the checkpoint has shown, for readers that don't poll."""
        status = self.status
        if commit is None:
            status.newest, status.oldest_commit_ns = batch, None
        else:
            # The list of commits is one request, which is only worth it while batches come one
            # after the other.
            if self._applied_last and self.polling.shared and self._count_clock.due():
                status.newest = max(committed_batches(self._storage), default=-1)
            status.newest = max(status.newest, batch + 1)
            status.oldest_commit_ns = commit.modified_ns
        status.looked_at = time.time()

    def _take_over(self) -> bool:
        if self._place is None:
            self.following = True
        else:
            self._place.prepare()
            if not self._place.try_lock():
                self._say_what_is_ignored()
                return False
            self.following = True
            self._place.clean()
            remove_all(self._place.path)
        return True

    def _say_what_is_ignored(self) -> None:
        """Warn once if another process follows, and so decides on retention, with another one."""
        assert self._place is not None
        if (
            self._wanted is None
            or not self._backend.is_shared
            or (path := self._place.current()) is None
            or (status := self._place.read_status()) is None
        ):
            return
        stores = self._backend.open(path, self._settings).stores()
        for table, (store, retention) in ({} if stores is None else self._wanted(stores)).items():
            kept = status.kept.get(store)
            if kept is not None and kept not in (retention.words(), self._ignored.get(table)):
                self._ignored[table] = kept
                log.warning(
                    "retention.ignored",
                    table=table,
                    message=f"process {status.pid} follows the job, so its retention applies",
                    wanted=retention.words(),
                    kept=kept,
                    hint="Give the retention to that process; or end that process, so that this one follows.",
                )

    def _folder_is_gone(self) -> bool:
        """Whether somebody deleted the replica's folder, which is allowed: then begin again."""
        assert self._place is not None
        if self._generation is None or self._place.current() == self._generation.path:
            return False
        self._leave()
        self._place.unlock()
        self.following = False
        return True

    def _serve(self, generation: Generation) -> None:
        self._generation = generation
        self.status.kept = generation.keeper.words()
        if self.journal is not None and generation.path is not None:
            self.journal.follow(generation.path.name, generation.backend, generation.stores, generation.keeper)
        self._on_backend(generation.backend)

    def _leave(self) -> None:
        self._generation = None
        self._end_aside()
        if self.journal is not None:
            self.journal.leave()

    def _make_keeper(self, stores: StoresRecord) -> Keeper:
        return Keeper(stores.stores, self._retention(stores), self._settings.retention)

    def _apply(self, generation: Generation, number: Batch, reader: StateReader) -> bool:
        began = time.monotonic()
        batch = read_batch(reader.storage, number)
        if (batch.settings.partitions, batch.settings.provider) != (generation.record.partitions, generation.record.provider):
            return self._build()  # repartitioned offline
        if self._has_other_stores(generation, number):
            return self._build()
        assert generation.indexes is not None, "else it was built again"
        try:
            rows = apply_batch(
                reader,
                generation.backend,
                batch,
                generation.tables,
                generation.keeper,
                generation.record,
                indexes=generation.indexes,
                reads=self.polling.apply_reads,
                shard=self._shard,
            )
        except CheckpointError as error:
            if error.condition != "FILE_GONE" or (reader is generation.reader and self._may_come_yet(batch, error)):
                raise
            return self._build()
        with generation.backend.snapshot() as snapshot:
            generation.record = snapshot.record()
        self.counts.batches_applied += 1
        self.counts.rows_applied += rows
        self.counts.apply_seconds += (seconds := time.monotonic() - began)
        self._applied_last = True
        self.counts.batches_aside += reader is not generation.reader
        self._put_aside(batch, generation.stores)
        if self.status.newest <= number:
            self.status.oldest_commit_ns = None
        log.debug("batch.applied", checkpoint=self._storage.uri, batch=number, rows=rows, seconds=seconds)
        self._well("following")
        return True

    def _has_other_stores(self, generation: Generation, number: Batch) -> bool:
        """Whether this batch's run has added, removed or changed state variables."""
        metadata = tuple(metadata_path(self._storage, operator, number) for operator in generation.evolving)
        if metadata != generation.metadata:
            known = [store.to_json() for store in read_stores(self._storage, number)[0]]
            if known != [store.to_json() for store in generation.stores.stores]:
                return True
            generation.metadata = metadata
        return False

    def _may_come_yet(self, batch: CommittedBatch, missing: CheckpointError) -> bool:
        """Whether an object store may not show a missing state file yet, which is possible for a while."""
        if not self.polling.lag_seconds:
            return False
        if self._missing is None or self._missing[0] != batch.batch:
            self._missing = (batch.batch, time.monotonic())
        if time.monotonic() - self._missing[1] > self.polling.lag_seconds:
            return False
        # RocksDB without change logs writes a snapshot instead; no file says which of them a job
        # writes.
        path = str(missing.context.get("path", "")).removeprefix(f"{self._storage.uri}/")
        return not path.endswith(".changelog") or self._storage.stamp(path.removesuffix("changelog") + "zip") is None

    def _skipped(self, generation: Generation) -> bool:
        """Whether this generation can't continue.

        Either newer batches are committed, but the next one is missing: it was cleaned up or
        skipped.  Or there are operators that the replica lacks: a checkpoint is being copied to
        this path, and the replica was built from a part of it.
        """
        operators = set(numbers(self._storage.names("state")))
        if operators != generation.stores.operators():
            return True
        if generation.stores.is_damaged():
            unread = read_stores(self._storage, Batch(generation.record.batch))[1]
            if not any(u.error.condition in DAMAGED for u in unread):
                return True
        batches = committed_batches(self._storage)
        return bool(batches) and batches[-1] > generation.record.batch + 1 and generation.record.batch + 1 not in batches

    def _has_indexes(self, generation: Generation) -> bool:
        """Whether a generation has the indexes that are wanted now."""
        self.has_indexes = self._generations.has_all_indexes(generation)
        return self.has_indexes

    def _restamp(self, generation: Generation, identity: str, modified_ns: int, size_bytes: int) -> None:
        """Record the new stamp of files that were copied with the same content."""
        record = msgspec.structs.replace(
            generation.record, commit_identity=identity, commit_modified_ns=modified_ns, commit_size_bytes=size_bytes
        )
        with generation.backend.write() as write:
            write.set_record(record)
        generation.record = record

    def _refuse_reads(self, generation: Generation) -> None:
        self._set_status(generation, "replaced")
        self._leave()
        if self._place is not None and generation.path is not None:
            (self._place.path / "current").unlink(missing_ok=True)

    def _set_status(self, generation: Generation, status: str) -> None:
        with generation.backend.write() as write:
            write.set_record(msgspec.structs.replace(generation.record, status=status))

    # ------------------------------------------------------------ batches put aside

    def _begin_aside(self, batch: CommittedBatch, stores: StoresRecord, *, whole: bool) -> StateReader | None:
        """Put aside the batches after this one; returns a reader of its state if that is put aside as well."""
        self._end_aside()
        if self._place is None:
            return None
        settings = self._settings
        self._aside = Aside(
            self._storage,
            self._place.path,
            batch,
            stores.stores,
            shard=self._shard,
            most_bytes=settings.aside_bytes,
            pause_seconds=settings.remote_poll_seconds if self.polling.shared else _ASIDE_SECONDS,
            threads=self.polling.build_reads,
            errors=self._aside_errors,
        )
        return self._aside.begin(whole=whole, copy=self._was_too_slow)

    def _put_aside(self, batch: CommittedBatch, stores: StoresRecord) -> None:
        """Put batches aside if the replica, at this batch, has fallen so far behind that Spark may delete the next ones."""
        if self._place is None or self._aside is not None or not self._aside_clock.due():
            return
        if self.polling.shared and self.status.newest - batch.batch < _LONG_BEHIND:  # a list would be a request
            return
        batches = committed_batches(self._storage)
        if len(batches) >= _LONG_BEHIND and batch.batch < batches[len(batches) // 2]:
            self._begin_aside(batch, stores, whole=False)

    def _end_aside(self) -> None:
        if self._aside is not None:
            self._aside.end()
            self._aside = None

    # ------------------------------------------------------------ building

    def _build(self) -> bool:
        batches = committed_batches(self._storage)
        if not batches:
            job_id(self._storage)  # raises NO_CHECKPOINT
            self.status.looked_at = time.time()
            self._well("waiting")
            self._stop.wait(max(0.05, self._settings.poll_seconds))
            return False
        began, ended = time.monotonic(), self._generation
        batch, stores = self._generations.plan(batches[-1], ended)
        self.counts.bootstraps += 1

        def progress(done: int, of: int, records: int) -> None:
            self.status.partitions_done, self.status.partitions, self.status.records = done, of, records
            self._say(state="building", error=self.status.error)
            if self._stop.is_set():
                raise ReplicaError("REPLICA_CLOSED", "The replica was closed while it was built.", hint="Open the pond again.")

        reader = self._begin_aside(batch, stores, whole=True)
        if reader is not None:
            batch = read_batch(reader.storage, batch.batch)
        try:
            built, records = self._generations.build(batch, stores, ended, progress, reader)
            self._was_too_slow = False
        except BaseException as error:
            self._end_aside()
            self._was_too_slow = isinstance(error, CheckpointError) and error.condition == "FILE_GONE"
            raise
        self._generation = None
        if self._place is not None and built.path is not None:
            self._place.publish(built.path)
        self._serve(built)
        self._has_indexes(built)
        if ended is not None:
            self._set_status(ended, "superseded")
        if self._place is not None:
            self._place.clean()
        self.counts.bootstrap_records += records
        self.counts.bootstrap_seconds += (seconds := time.monotonic() - began)
        log.info("replica.built", checkpoint=self._storage.uri, batch=batch.batch, rows=records, seconds=seconds)
        if ended is not None and ended.job_id == built.job_id and ended.record.partitions != built.record.partitions:
            log.info(
                "job.rescaled",
                checkpoint=self._storage.uri,
                batch=batch.batch,
                partitions_before=ended.record.partitions,
                partitions=built.record.partitions,
            )
        self._well("following", now=True)
        return True

    def _well(self, state: str, *, now: bool = False) -> None:
        """Called after a step without an error."""
        self._say(state=state, error=None, now=now)
        self.last_error = None
        self._trouble.over()

    def _say(self, *, state: str, error: dict[str, Any] | None, now: bool = False) -> None:
        """Write the status for other processes, if it changed or is due."""
        changed = state != self.status.state or error != self.status.error
        due = state == "building" or self.polling.shared
        self.status.state, self.status.error, self.status.pid = state, error, os.getpid()
        if self._place is not None and (changed or now or (due and self._status_clock.due())):
            self.status.requests = dict(self._storage.requests)
            self._place.write_status(self.status)

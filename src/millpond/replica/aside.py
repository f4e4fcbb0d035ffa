"""Batches that Spark may delete before the replica has read them, put aside in the replica's folder.

The build of a large state takes minutes, and a quick job may commit more batches meanwhile than
Spark keeps.  Then the replica would have to be built again, each time.

    <replica>/aside-<unique>/    laid out as the checkpoint: metadata, commits/N, offsets/N, state/…

1. If the folder is on the disk of the checkpoint, the files of the batch that is built get a second
   name here, and the build reads these.  Otherwise it reads the checkpoint.  If Spark deletes files
   meanwhile, the next build begins with copies of all of them.
2. A thread puts aside each later batch as it commits: the changes, the log, at last commits/N.  On
   another disk, or from an object store, that is a copy.
3. The follower applies batches from here until it has all of them; then the folder is removed.

A batch is read from here only while the newest one here is the checkpoint's own: else the job was
replaced or rewound, or the thread has missed a batch.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millpond.checkpoint.identity import judge
from millpond.checkpoint.log import CommittedBatch, check_still_committed, committed_batches, job_id, read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import RestartFile, partition_files
from millpond.checkpoint.state import StateReader, change_path
from millpond.errors import MillpondError, ReplicaError
from millpond.logs import EventLog, Trouble
from millpond.replica.apply import files_of, plan_tables
from millpond.replica.folder import FOLDER_MODE
from millpond.schema.shard import Shard
from millpond.schema.store import StoreSchema
from millpond.settings import FileBounds
from millpond.storage import LocalStorage, Storage

_BOUNDS = FileBounds()
_PIECE_BYTES = 4 << 20
_PREFIX = "aside-"
_MODE = 0o600
_END_SECONDS = 2.0
# After an error, the next try comes later each time, and after so long at most.
_LAST_PAUSE_SECONDS = 1.0
log = EventLog(__name__)


class AsideErrors:
    """What went wrong with putting batches aside, for one follower.

    error:   why it doesn't work now; None if it does, or if there is nothing to put aside
    errors:  how often it went wrong
    """

    def __init__(self, checkpoint: str) -> None:
        self.error: Exception | None = None
        self.errors = 0
        self._trouble = Trouble(log, "aside", checkpoint=checkpoint)

    def met(self, error: Exception) -> None:
        """A batch couldn't be put aside."""
        self.error, self.errors = error, self.errors + 1
        self._trouble.met(error)

    def over(self) -> None:
        """All that has to be put aside is there."""
        self.error = None
        self._trouble.over()


class Aside:
    """Batches of one replica that are put aside; ended once, and not begun again.

    replica:       the replica's folder
    after:         the batch before the first one that is put aside
    stores:        of the job
    shard:         the partitions that the replica follows; None for all
    most_bytes:    of the changes; after that no further batch is put aside
    pause_seconds: between two looks for a commit
    threads:       how many partitions of a state to put aside at the same time
    errors:        gets what goes wrong
    """

    def __init__(
        self,
        storage: Storage,
        replica: Path,
        after: CommittedBatch,
        stores: Sequence[StoreSchema],
        *,
        shard: Shard | None,
        most_bytes: int,
        pause_seconds: float,
        threads: int = 1,
        errors: AsideErrors,
    ) -> None:
        self._storage = storage
        self._folder = replica / f"{_PREFIX}{uuid.uuid4().hex[:8]}"
        self._files = LocalStorage(self._folder, mode=_MODE)
        self._after = after
        self._tables = plan_tables(stores)
        self._shard = shard
        self._left_bytes = most_bytes
        self._pause = pause_seconds
        self._threads = threads
        self._first = self._next = Batch(after.batch + 1)
        self._newest: CommittedBatch | None = None
        self._job_id = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._errors = errors

    def begin(self, *, whole: bool, copy: bool = False) -> StateReader | None:
        """Put aside the batches after the first one, as they commit.

        whole:   put aside the state of that batch as well, if its files can have a second name
        copy:    and if they can't
        Returns: a reader of that state, if it is here
        """
        reader = None
        try:
            self._folder.mkdir(mode=FOLDER_MODE)
        except OSError as broken:
            self._failed(broken)
            return None
        try:
            self._put_job()
            if whole and (copy or self._files.stamp("metadata") == self._storage.stamp("metadata")):
                reader = self._put_state()
        except (MillpondError, OSError) as error:  # without it a build reads the checkpoint itself
            self._failed(error)
        self._thread = threading.Thread(target=self._run, name="millpond-aside", daemon=True)
        self._thread.start()
        return reader

    def reader(self, batch: int, like: StateReader) -> StateReader | None:
        """A reader of that batch's changes; None if they aren't here, or aren't those of the job any more.

        like:  a reader of the job's checkpoint
        """
        newest = self._newest
        if newest is None or not self._first <= batch <= newest.batch:
            return None
        # The batches here follow one another, and the newest was the job's when it was put here.
        if judge(self._storage, newest, self._job_id)[0] != "same":
            self._newest = None
            return None
        return like.on(self._files)

    def end(self) -> None:
        """Put no more batches aside, and remove those that are here."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)  # it may wait for an object store
        self._newest = None
        remove(self._folder)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        pause = self._pause
        while not self._stop.is_set():
            try:
                if not self._job_id:
                    self._put_job()
                while not self._stop.is_set() and self._put_next():
                    pass
                if not self._stop.is_set():
                    self._errors.over()
                pause = self._pause
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would be missed only after the build
                if self._stop.is_set():
                    break  # its folder is being removed
                self._failed(error)
                if self._has_missed():
                    log.warning("aside.missed", checkpoint=self._storage.uri, batch=self._next)
                    break  # the follower finds out, and builds again
                pause = min(2 * pause, max(self._pause, _LAST_PAUSE_SECONDS))
            self._stop.wait(pause)
        if self._stop.is_set():
            remove(self._folder)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, OSError):
            error = ReplicaError(
                "FOLLOWER_FAILED",
                f"Batch {self._next} of {self._storage.uri} couldn't be put aside: {error!r}.",
                hint="Nothing is lost: if Spark deletes the batch before it is applied, the replica is built again.",
            )
        self._errors.met(error)

    def _has_missed(self) -> bool:
        """Whether Spark has deleted the next batch."""
        try:
            batches = committed_batches(self._storage)
        except MillpondError:
            return False
        return bool(batches) and batches[0] > self._next

    def _put_job(self) -> None:
        """Put aside what says whose batches these are."""
        self._put("metadata", _BOUNDS.note_bytes)
        self._job_id = job_id(self._files)

    def _put_state(self) -> StateReader:
        source = StateReader(self._storage)

        def put(of: tuple[StoreSchema, int]) -> None:
            self._put_all(partition_files(source, self._after, *of))

        with ThreadPoolExecutor(self._threads, thread_name_prefix="millpond-aside") as pool:
            list(pool.map(put, self._partitions(self._after)))
        if self._after.batch:
            self._put(f"commits/{self._after.batch - 1}", _BOUNDS.log_bytes, is_needed=False)
            self._put(f"offsets/{self._after.batch - 1}", _BOUNDS.log_bytes, is_needed=False)
        self._put_log(self._after)
        return StateReader(self._files)

    def _put_next(self) -> bool:
        """Put the next batch aside; returns whether there was one."""
        if self._left_bytes < 0 or self._storage.stamp(f"commits/{self._next}") is None:
            return False
        batch = read_batch(self._storage, self._next)
        for store, partition in self._partitions(batch):
            self._left_bytes -= self._put_changes(batch, store, partition)
        self._put_log(batch)
        self._newest, self._next = batch, Batch(batch.batch + 1)
        return True

    def _partitions(self, batch: CommittedBatch) -> Iterator[tuple[StoreSchema, int]]:
        """Each partition of the replica, once for the column families that share its files."""
        for partition, sharing in files_of(batch, self._tables, self._shard):
            yield sharing[0].schema, partition

    def _put_changes(self, batch: CommittedBatch, store: StoreSchema, partition: int) -> int:
        path = change_path(batch, store, partition)
        if batch.settings.provider == "hdfs" or self._storage.stamp(path) is not None:
            return self._put(path, _BOUNDS.state_bytes)
        # Without change logs, the changes are the differences from the snapshot before.
        reader = StateReader(self._storage)
        if batch.batch == self._first:
            self._put_all(partition_files(reader, self._after, store, partition))
        return self._put_all(partition_files(reader, batch, store, partition))

    def _put_log(self, batch: CommittedBatch) -> None:
        """Put aside what the log says of a batch, its commit last, if it is still that which was read."""
        self._put(f"offsets/{batch.batch}", _BOUNDS.log_bytes)
        check_still_committed(self._storage, batch)
        self._put(f"commits/{batch.batch}", _BOUNDS.log_bytes)

    def _put_all(self, files: Iterable[RestartFile]) -> int:
        return sum(self._put(file.path, file.most_bytes) for file in files)

    def _put(self, path: str, most_bytes: int, *, is_needed: bool = True) -> int:
        """Give a file a second name here, or copy it with its time; returns how many bytes are new.

        Raises:  FILE_GONE, unless it isn't needed.
        """
        source, here = self._storage.stamp(path), self._files.stamp(path)
        if source is None and not is_needed:
            return 0
        if source is not None and source == here:
            return 0
        if not self._files.take(self._storage, path, path, share=True):
            self._files.write_pieces(path, self._storage.iter_pieces(path, _PIECE_BYTES, most_bytes))
        if source is None:
            return 0
        if source != self._files.stamp(path):  # a copy
            os.utime(self._folder / path, ns=(source.modified_ns, source.modified_ns))
        return source.size_bytes


def remove(folder: Path) -> None:
    """Remove a folder of batches."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_all(replica: Path) -> None:
    """Remove what followers that were killed had put aside."""
    for folder in replica.glob(f"{_PREFIX}*"):
        remove(folder)

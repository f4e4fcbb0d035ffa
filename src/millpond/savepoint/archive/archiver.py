"""Follow a job, and archive each batch as it commits.

One step:

1. Take the archive: the newest `writers/<n>.json` is ours.  Whoever had it before notices before
   its next manifest, and ends.
2. Look at the batch that the archive has last: is the job still the same (`identity`)?
3. If it is: copy the batch after it, with the files of the one before at hand.
4. If the job was replaced, rewound or restored from elsewhere, or a file was deleted before it was
   copied: copy the newest batch with all its files, as the first of a new generation, which names
   the batches that are lost.
5. Now and then, delete the batches that are older than the window.

A step that fails changes nothing that a reader sees.  It is tried again after a pause; the error
is in the status meanwhile.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import find_job
from millpond.checkpoint.identity import judge
from millpond.checkpoint.log import committed_batches, job_id, read_batch
from millpond.errors import PASSING, MillpondError, ReplicaError, RequestError, SavepointError, StorageError
from millpond.logs import EventLog, Trouble
from millpond.savepoint.archive.batch import Copying, Reached, read_reached
from millpond.savepoint.archive.expire import Window
from millpond.savepoint.archive.layout import (
    FORMAT,
    GENERATION,
    NAME,
    Archive,
    ArchivedBatch,
    Generation,
    folder_of,
)
from millpond.savepoint.create import find_batches
from millpond.settings import ReplicaSettings, parse_length
from millpond.storage import open_storage
from millpond.storage.fence import is_below
from millpond.storage.names import numbers
from millpond.storage.polling import polling_of
from millpond.storage.watch import FolderWatch

log = EventLog(__name__)
# The errors of a job that hasn't begun, which are normal.
_NOT_YET = frozenset({"NO_CHECKPOINT", "NO_COMMITTED_BATCH"})
# These don't pass by themselves, and to go on would be wrong.
_FATAL = frozenset({"ARCHIVE_TAKEN", "OTHER_JOB", "SAVEPOINT_TOO_NEW"})
# How often to delete what is older than the window.  Not at once either: an archiver that had the
# archive before may still be in its last step.
_EXPIRE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.02
# How often `once` tries again after an error that may pass, such as a file that Spark has deleted.
_ONCE_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiverStatus:
    """How far an archiver has come, and what it has cost.

    archive, job:    where batches are copied to, and whose
    state:           following, failed (it tries again), ended
    generation, batch:  of the newest archived batch; None if there is none
    newest:          the newest committed batch that was seen; None before the first look
    behind_batches:  committed and not archived yet
    behind_seconds:  age of the oldest commit that isn't archived; 0 if there is none
    lag_seconds:     from commit to archived, of the newest batch that this archiver copied; None if
                     it has copied none, or the time of the commit isn't known
    batches, files, size_bytes: copied since it began, manifests too
    requests:        to object stores since it began, by kind; of both places
    lost:            batches that committed and aren't in the archive, first and last of each gap
    expired:         batches deleted since it began, since they were older than the window
    errors:          how often a step failed
    last_error:      the error of the last step; None if it went well
    """

    archive: str
    job: str
    state: str
    generation: int | None
    batch: int | None
    newest: int | None
    behind_batches: int
    behind_seconds: float
    lag_seconds: float | None
    batches: int
    files: int
    size_bytes: int
    requests: Mapping[str, int]
    lost: tuple[tuple[int, int], ...]
    expired: int
    errors: int
    last_error: MillpondError | None


class Archiver:
    """Archives the batches of one job, in a thread of its own; also a context manager, which stops it."""

    def __init__(
        self,
        place: str | Path,
        to: str | Path,
        *,
        job: str | None = None,
        keep_for: str | None = None,
        allow: Iterable[str | Path] = (),
    ) -> None:
        """As `archive`, without starting."""
        folder = find_job(place, job, allow=allow)
        root = open_storage(to)
        source = folder.open_checkpoint()
        self._keep_seconds = None if keep_for is None else parse_length("keep_for", keep_for)
        if self._keep_seconds is not None and self._keep_seconds <= 0:
            raise RequestError("INVALID_REQUEST", "keep_for keeps no batch.", hint="Write it like 12h or 7d, or leave it out.")
        if is_below(root.uri, source.uri) or is_below(source.uri, root.uri):
            raise RequestError(
                "INVALID_REQUEST",
                f"The archive {root.uri} and the checkpoint {source.uri} lie in each other.",
                hint="Choose a folder outside of the checkpoint, best on another disk or in a bucket.",
            )
        self.archive = Archive(root)
        self._copying = Copying(job=folder, source=source, archive=self.archive)
        self._polling, pauses = polling_of(source, ReplicaSettings()), polling_of(root, ReplicaSettings())
        self._longest_pause = max(self._polling.longest_pause_seconds, pauses.longest_pause_seconds)
        self._window = Window(self.archive, self._keep_seconds)
        self._writer = 0
        self._last: Reached | None = None
        self._broken: str | None = None
        self._lost: list[tuple[int, int]] = []
        self._newest: int | None = None
        self._waiting_since_ns: int | None = None
        self._missing: tuple[int, float] | None = None
        self._lag: float | None = None
        self._counts: Counter[str] = Counter()
        self._expire_at = 0.0
        self._trouble = Trouble(log, "archiver", checkpoint=source.uri, archive=root.uri)
        self._stop = threading.Event()
        self._commits = FolderWatch(source.local_path("commits"))
        self._stepped = threading.Condition()
        self._thread: threading.Thread | None = None
        self.last_error: MillpondError | None = None

    def start(self) -> Archiver:
        """Begin, in a daemon thread; returns itself."""
        self._thread = threading.Thread(target=self.run, name="millpond-archiver", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End after the batch that is being copied."""
        self._stop.set()
        self._commits.wake()
        if self._thread is not None:
            self._thread.join()
        self._commits.close()

    def __enter__(self) -> Archiver:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def wait_for_batch(self, batch: int, timeout_seconds: float = 60.0) -> None:
        """Return when a batch, or a later one, is archived.

        Raises:  NOT_UP_TO_BOUND after the timeout; the error that ended the archiver.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._stepped:
            while self._last is None or self._last.batch < batch:
                ended = self._thread is not None and not self._thread.is_alive()
                if ended and self.last_error is not None:
                    raise self.last_error
                left = deadline - time.monotonic()
                if left <= 0 or ended:
                    raise ReplicaError(
                        "NOT_UP_TO_BOUND",
                        f"Batch {batch} isn't archived after {timeout_seconds:g} s."
                        + (f" The last error: {self.last_error}" if self.last_error is not None else ""),
                        hint="Wait for longer, and look at the archiver's status.",
                        batch=batch,
                    )
                self._stepped.wait(min(left, 0.5))

    def status(self) -> ArchiverStatus:
        """How far it has come."""
        last, newest, since = self._last, self._newest, self._waiting_since_ns
        ended = self._stop.is_set() or (self._thread is not None and not self._thread.is_alive())
        state = "ended" if ended else "failed" if self.last_error is not None else "following"
        requests = Counter(self._copying.source.requests) + Counter(self.archive.storage.requests)
        behind = 0 if newest is None or since is None else newest - last.batch if last is not None else 1
        return ArchiverStatus(
            archive=self.archive.storage.uri,
            job=self._copying.job.job,
            state=state,
            generation=None if last is None else last.archived.generation,
            batch=None if last is None else last.batch,
            newest=newest,
            behind_batches=max(behind, 0),
            behind_seconds=max(0.0, (time.time_ns() - since) / 1e9) if since is not None and behind > 0 else 0.0,
            lag_seconds=self._lag,
            batches=self._counts["batches"],
            files=self._counts["files"],
            size_bytes=self._counts["bytes"],
            requests=dict(requests),
            lost=tuple(self._lost),
            expired=self._counts["expired"],
            errors=self._counts["errors"],
            last_error=self.last_error,
        )

    # ------------------------------------------------------------ the loop

    def run(self, *, once: bool = False) -> None:
        """Archive until `stop`; this is what the thread does.

        once:    return when the newest committed batch is archived, and raise an error that lasts
        Raises:  ARCHIVE_TAKEN, OTHER_JOB, SAVEPOINT_TOO_NEW, unless a thread of its own does it.
        """
        failures, quiet_since = 0, time.monotonic()
        waited = was_woken = is_notified = False
        while not self._stop.is_set():
            try:
                moved = self.step()
                failures, self.last_error = 0, None
                self._trouble.over()
                if moved:
                    quiet_since, pause = time.monotonic(), 0.0
                    if waited:
                        is_notified, waited = was_woken, False
                elif once:
                    return
                else:
                    pause = self._polling.pause(time.monotonic() - quiet_since, is_notified=is_notified)
            except Exception as raised:
                error = raised if isinstance(raised, MillpondError) else _unexpected(raised)
                self._failed(error, raised)
                gives_up = once and (error.condition not in PASSING or failures >= _ONCE_TRIES)
                if gives_up or error.condition in _FATAL:
                    if threading.current_thread() is self._thread:
                        break
                    raise error from raised
                failures += 1
                pause = min(self._longest_pause, _FIRST_PAUSE_SECONDS * 2 ** min(failures, 20))
            with self._stepped:
                self._stepped.notify_all()
            if pause:
                was_woken, waited = self._commits.wait(pause), True
        with self._stepped:
            self._stepped.notify_all()

    def _failed(self, error: MillpondError, raised: Exception) -> None:
        self.last_error = error
        self._counts["errors"] += 1
        self._trouble.met(raised, expected=error.condition in _NOT_YET)

    def step(self) -> bool:
        """Take one step; returns whether a batch was archived.

        Raises:  what the storages raise; what reading the checkpoint raises; ARCHIVE_TAKEN,
                 OTHER_JOB.
        """
        if not self._writer:
            self._take()  # 1
        moved = self._follow()
        if not moved:
            self._waiting_since_ns = None
        if time.monotonic() >= self._expire_at:  # 5
            self._check_writer()
            self._counts["expired"] += self._window.expire(time.time_ns() // 1_000_000)
            self._expire_at = time.monotonic() + _EXPIRE_SECONDS
        return moved

    def _take(self) -> None:
        root, source = self.archive.storage, self._copying.source
        own = {"job": self._copying.job.job, "job_id": job_id(source), "checkpoint": source.uri}
        facts = {"format": FORMAT, **own, "writer": uuid.uuid4().hex}
        if not root.create(NAME, json.dumps(facts, indent=1).encode()):
            facts = self.archive.facts()
        # A restored job lies elsewhere; a replaced one has another id.
        known = (facts.get("job_id"), facts.get("checkpoint"), *self._newest_job())
        if not {own["job_id"], own["checkpoint"]} & set(known):
            raise RequestError(
                "OTHER_JOB",
                f"{root.uri} is the archive of another job, {facts.get('job')!r:.100}.",
                hint="Choose another folder: an archive has the batches of one job.",
                uri=root.uri,
            )
        said = {"writer": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid(), "since_ms": int(time.time() * 1000)}
        number = max(numbers(name.removesuffix(".json") for name in root.names("writers")), default=0)
        while True:
            number += 1
            if root.create(_writer(number), json.dumps(said).encode()):
                break
        self._load()
        self._writer = number
        self._expire_at = time.monotonic() + _EXPIRE_SECONDS

    def _newest_job(self) -> tuple[str, ...]:
        """Id and checkpoint of the job whose batch is the newest."""
        newest = self.archive.newest()
        try:
            manifest = None if newest is None else self.archive.manifest(newest)
        except StorageError:
            raise
        except MillpondError:  # it is damaged: `_load` begins a new generation
            return ()
        return () if manifest is None else (manifest.job_id, manifest.checkpoint)

    def _load(self) -> None:
        """Read how far the archive has come."""
        every = self.archive.batches()
        begun = {batch.generation for batch in every}
        self._lost = [g.lost for g in self.archive.generations() if g.lost is not None and g.number in begun]
        self._window.load(every)
        self._last = self._broken = None
        try:
            self._last = read_reached(self.archive, every[-1]) if every else None
        except StorageError:
            raise
        except MillpondError as error:
            self._broken = f"the newest batch of the archive can't be read ({error.condition})"

    def _check_writer(self) -> None:
        if self.archive.storage.stamp(_writer(self._writer + 1)) is not None:
            raise SavepointError(
                "ARCHIVE_TAKEN",
                f"Another archiver has taken {self.archive.storage.uri}.",
                hint="Let one archiver run for each archive; this one has ended.",
                uri=self.archive.storage.uri,
            )

    def _follow(self) -> bool:
        source, last = self._copying.source, self._last
        if last is None:
            return self._begin(self._broken or "the archive began")
        verdict, stamp = judge(source, last, last.job_id)  # 2
        if verdict == "replaced":
            if self._is_behind_us(last):
                return False
            return self._begin("the job was replaced, rewound or restored")
        if verdict == "rescaled":
            return self._begin("the job was rescaled")
        if verdict == "behind":
            return self._begin("Spark deleted batches before they were archived", last)
        if stamp is not None and stamp != last.commit_stamp:
            self._last = last = last.stamped(stamp)
        following = [batch for batch in committed_batches(source) if batch > last.batch]
        if not following:
            self._newest = last.batch
            return False
        self._saw(following[0], following[-1])
        try:
            self._archive(following[0], last.archived.generation, last)  # 3
        except MillpondError as error:
            if error.condition != "FILE_GONE" or self._may_be_late(following[0]):
                raise
            return self._begin(f"Spark deleted files of batch {following[0]} before they were archived", last)
        return True

    def _is_behind_us(self, last: Reached) -> bool:
        """Whether commits were removed, and none was added yet: the newest one left is older than ours.

        So it is while somebody deletes the checkpoint, and after a restore of an earlier batch.
        """
        source = self._copying.source
        newest = max(committed_batches(source), default=None)
        if newest is None or newest >= last.batch or job_id(source) != last.job_id:
            return False
        return read_batch(source, newest).started_ms <= last.started_ms

    def _may_be_late(self, batch: int) -> bool:
        """Whether a missing file may still appear, as on some object stores."""
        if self._missing is None or self._missing[0] != batch:
            self._missing = batch, time.monotonic()
        return time.monotonic() - self._missing[1] < self._polling.lag_seconds

    def _begin(self, why: str, after: Reached | None = None) -> bool:  # 4
        """Archive the newest batch as the first of a new generation.

        after:   the batch before the gap, if there is one
        """
        source = self._copying.source
        job_id(source)  # else there is no checkpoint, which is another error
        newest = find_batches(source, None)[-1]
        self._saw(newest, newest)
        generation = max(self.archive.numbers(), default=0) + 1
        lost = (after.batch + 1, newest - 1) if after is not None and after.batch + 1 < newest else None
        facts = Generation(number=generation, began_ms=time.time_ns() // 1_000_000, why=why, lost=lost)
        try:
            self._archive(newest, generation, None, facts)
        except BaseException:
            with suppress(MillpondError):
                self._check_writer()  # else another archiver may be writing there
                self.archive.storage.delete_all(folder_of(generation))
            raise
        self._broken = None
        if lost is not None:
            self._lost.append(lost)
            log.warning("archiver.lost", archive=self.archive.storage.uri, first=lost[0], last=lost[1], message=why)
        return True

    def _saw(self, first: int, newest: int) -> None:
        """Record how far the job is."""
        stamp = self._copying.source.stamp(f"commits/{first}")
        self._waiting_since_ns = None if stamp is None else stamp.modified_ns
        self._newest = newest

    def _archive(self, number: int, generation: int, before: Reached | None, begins: Generation | None = None) -> None:
        def before_record(_batch: ArchivedBatch) -> None:
            self._check_writer()
            if begins is not None:
                self.archive.storage.write(f"{folder_of(generation)}/{GENERATION}", begins.to_bytes())

        made = self._copying.run(number, generation, before, before_record)
        if made is None:  # an archiver that had the archive before was in its last step
            self._check_writer()
            self._load()
            return
        self._last, files, size_bytes = made
        self._missing = None
        self._window.add(self._last.archived)
        self._counts += Counter(batches=1, files=files, bytes=size_bytes)
        since = self._waiting_since_ns
        self._lag = None if since is None else max(0.0, (time.time_ns() - since) / 1e9)


def archive(
    place: str | Path,
    to: str | Path,
    *,
    job: str | None = None,
    keep_for: str | None = None,
    allow: Iterable[str | Path] = (),
) -> Archiver:
    """Archive each batch of a job as it commits, until `stop` or the end of the `with` block.

    place:     a pond, or the folder of a checkpoint
    to:        the archive: an empty folder or bucket, or one that has this job's batches
    job:       needed in a pond with several jobs
    keep_for:  how long batches stay restorable: 12h, 7d; all of them without it
    allow:     places outside of the pond where the job's checkpoint may lie, as for `open`
    Raises:    NO_CHECKPOINT, PLACE_NOT_ALLOWED, INVALID_REQUEST.
    """
    return Archiver(place, to, job=job, keep_for=keep_for, allow=allow).start()


def _writer(number: int) -> str:
    return f"writers/{number}.json"


def _unexpected(raised: Exception) -> MillpondError:
    return MillpondError(
        "INTERNAL_ERROR",
        f"The archiver had an unexpected error: {raised!r}.",
        hint="Report this with the checkpoint's Spark version; it tries again by itself.",
    )

"""Make savepoints of a job at intervals, and delete old ones by a rule.

1. If the newest scheduled savepoint is older than the interval, and the job has committed a batch
   since: make one.
2. Delete the scheduled ones that the rule doesn't keep.  The newest always stays, and so do all
   savepoints with other names.
3. Wait until the next one is due.

Which savepoints are scheduled, their names say: `scheduled-20260301T120000.000Z`.  So a schedule
that is started again goes on as if it had not ended.  `schedule.json` in the job's folder tells
watchers of the interval, and up to when all batches are in a savepoint.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from millpond.catalogue import find_job, savepoints_folder
from millpond.checkpoint.log import committed_batches, job_id
from millpond.errors import CheckpointError, MillpondError, RequestError
from millpond.logs import EventLog, Trouble
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.manage.folder import list_savepoints, remove
from millpond.savepoint.manage.prune import Keep, keep_of, prune_by
from millpond.savepoint.manifest import Savepoint
from millpond.schema.prepared import ready
from millpond.settings import FileBounds, parse_length
from millpond.storage import Storage

log = EventLog(__name__)
PREFIX = "scheduled-"
NOTE = "schedule.json"
_TIME = "%Y%m%dT%H%M%S"
_NAME = re.compile(rf"{PREFIX}(\d{{8}}T\d{{6}})\.(\d{{3}})Z")
_SHORTEST_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 60.0
# A savepoint that has been in the making for so long was left by a program that was killed.
_LEFT_MS = 86_400_000
# Errors of a job that hasn't begun, which are normal.
_NOT_YET = frozenset({"NO_COMMITTED_BATCH"})


class ScheduleNote(msgspec.Struct, frozen=True, kw_only=True):
    """The file `schedule.json` of a job.

    every_ms:  the interval
    whole_ms:  up to when all batches are in a scheduled savepoint; before the first one, when the
               schedule began
    """

    every_ms: int
    whole_ms: int


def read_note(storage: Storage) -> ScheduleNote | None:
    """That of the job in a folder; None if it has no schedule, or it can't be read."""
    if storage.stamp(NOTE) is None:
        return None
    try:
        return msgspec.json.decode(storage.read(NOTE, FileBounds().note_bytes), type=ready(ScheduleNote))
    except (CheckpointError, msgspec.MsgspecError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStatus:
    """What a schedule has done since it began.

    newest:      the newest scheduled savepoint; None if there is none
    made, deleted:  how many savepoints
    errors:      how often a savepoint couldn't be made or deleted
    last_error:  the last error; None if the last try went well
    """

    newest: str | None
    made: int
    deleted: int
    errors: int
    last_error: MillpondError | None


class Schedule:
    """Makes savepoints of one job at intervals, in a thread of its own; also a context manager, which stops it."""

    def __init__(
        self,
        place: str | Path,
        every: str,
        *,
        keep: Keep,
        job: str | None = None,
        count: bool = False,
        allow: Iterable[str | Path] = (),
    ) -> None:
        """As `schedule_savepoints`, without starting; the newest savepoint stays, whatever `keep` says."""
        seconds = parse_length("every", every)
        if seconds is None or seconds < _SHORTEST_SECONDS:
            raise RequestError("INVALID_REQUEST", f"every is {every!r:.80}.", hint="Write an interval like 15m, 1h or 1d.")
        self._place = place
        self._allow = tuple(allow)
        self._folder = find_job(place, job, allow=self._allow)
        self._every_ms = int(seconds * 1000)
        self._keep = replace(keep, last=max(1, keep.last))
        self._count = count
        self._newest: str | None = None
        self._noted = read_note(self._folder.storage)
        self._made = self._deleted = self._errors = 0
        self._trouble = Trouble(log, "schedule", job=self._folder.job)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_error: MillpondError | None = None

    def start(self) -> Schedule:
        """Begin, in a daemon thread; returns itself."""
        self._thread = threading.Thread(target=self.run, name="millpond-schedule", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End after the savepoint that is being made."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Schedule:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def status(self) -> ScheduleStatus:
        """What it has done."""
        return ScheduleStatus(
            newest=self._newest, made=self._made, deleted=self._deleted, errors=self._errors, last_error=self.last_error
        )

    def run(self) -> None:
        """Go on until `stop`; this is what the thread does."""
        failures = 0
        while not self._stop.is_set():
            try:
                pause = self.step(time.time_ns() // 1_000_000) / 1000
                failures, self.last_error = 0, None
                self._trouble.over()
            except Exception as raised:  # noqa: BLE001 - a schedule that ends silently would be found out too late
                error = raised if isinstance(raised, MillpondError) else _unexpected(raised)
                failures, self.last_error = failures + 1, error
                self._errors += 1
                self._trouble.met(raised, expected=error.condition in _NOT_YET)
                pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures, 20))
            self._stop.wait(pause)

    def step(self, now_ms: int) -> int:
        """Make a savepoint if one is due, and delete old ones; returns after how many milliseconds to look again.

        Raises:  as `SavepointPlan.run` and `prune_by`.
        """
        every = self._scheduled(now_ms)
        newest = every[-1] if every else None
        self._newest = None if newest is None else newest.manifest.name
        left = 0 if newest is None else newest.manifest.created_ms + self._every_ms - now_ms
        if self._noted is None or self._noted.every_ms != self._every_ms:
            self._note(now_ms if newest is None else newest.manifest.created_ms)
        if left > 0:
            return min(left, self._every_ms)  # the clock may have been set back
        if newest is None or self._has_moved(newest):
            name = _name(now_ms)
            plan = plan_savepoint(self._place, name, job=self._folder.job, note="scheduled", count=self._count, allow=self._allow)
            plan.run()  # 1
            self._newest, self._made = name, self._made + 1
        self._note(now_ms)
        old = prune_by(self._place, self._keep, job=self._folder.job, prefix=PREFIX)  # 2
        old.run()
        self._deleted += len(old.deleted)
        return self._every_ms

    def _note(self, whole_ms: int) -> None:
        self._noted = ScheduleNote(every_ms=self._every_ms, whole_ms=whole_ms)
        self._folder.storage.write(NOTE, msgspec.json.encode(self._noted))

    def _scheduled(self, now_ms: int) -> list[Savepoint]:
        """The job's scheduled savepoints, oldest first; what killed programs left of others is deleted."""
        there = list_savepoints(self._place)
        for name in there.incomplete:
            made_ms = _made_ms(name)
            if made_ms is not None and made_ms + _LEFT_MS < now_ms:
                remove(savepoints_folder(self._place).folder(name))
        return [s for s in there.found if _made_ms(s.manifest.name) is not None and s.manifest.job == self._folder.job]

    def _has_moved(self, newest: Savepoint) -> bool:
        """Whether the job has a batch that its newest scheduled savepoint doesn't have."""
        storage = self._folder.open_checkpoint()
        batch = max(committed_batches(storage), default=None)
        return (batch, job_id(storage)) != (newest.manifest.batch, newest.manifest.job_id)


def schedule_savepoints(
    place: str | Path,
    every: str,
    *,
    keep_last: int = 0,
    keep_for: str | None = None,
    keep_daily: int = 0,
    job: str | None = None,
    count: bool = False,
    allow: Iterable[str | Path] = (),
) -> Schedule:
    """Make a savepoint of a job at intervals, until `stop` or the end of the `with` block.

    place:   a pond, or the folder of a checkpoint
    every:   the interval: 15m, 1h, 1d
    keep_last, keep_for, keep_daily: which of the scheduled savepoints stay: so many of the newest,
             those that are younger (12h, 30d), the newest of each of so many days; one by default
    job:     needed in a pond with several jobs
    count:   count the rows, by decoding all of the state
    allow:   places outside of the pond where the job's checkpoint may lie, as for `open`
    Raises:  NO_CHECKPOINT, PLACE_NOT_ALLOWED, INVALID_REQUEST.
    """
    keep = keep_of(last=keep_last, keep_for=keep_for, daily=keep_daily)
    return Schedule(place, every, keep=keep, job=job, count=count, allow=allow).start()


def _name(now_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(now_ms // 1000, dt.UTC)
    return f"{PREFIX}{moment.strftime(_TIME)}.{now_ms % 1000:03d}Z"


def _made_ms(name: str) -> int | None:
    """When a scheduled savepoint was begun, by its name; None for one with another name."""
    if (m := _NAME.fullmatch(name)) is None:
        return None
    try:
        moment = dt.datetime.strptime(m[1], _TIME).replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return int(moment.timestamp()) * 1000 + int(m[2])


def _unexpected(raised: Exception) -> MillpondError:
    return MillpondError(
        "INTERNAL_ERROR",
        f"The schedule had an unexpected error: {raised!r}.",
        hint="Report this with the checkpoint's Spark version; it tries again by itself.",
    )

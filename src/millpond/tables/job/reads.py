"""A job as its tables read it: views of its replica, and how old an answer from one is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

from millpond.catalogue import Beat, JobFolder
from millpond.checkpoint.position import Position
from millpond.errors import ReplicaError
from millpond.native.lookup import Reader
from millpond.replica.record import ReplicaRecord
from millpond.replica.replica import Replica, View
from millpond.settings import ReplicaSettings
from millpond.storage import Storage
from millpond.tables.answer import Cut, CutFrame, Lag
from millpond.tables.job.bounds import BoundCheck, Bounds, error_of, open_within
from millpond.tables.job.held_views import HeldView, HeldViews
from millpond.tables.job.log_lines import line_is_read
from millpond.tables.kept.shorter import ShorterFile
from millpond.tables.scan.ttl import clock_ms

# For so long a job's heartbeat file isn't read again.
_HEARTBEAT_CACHE_SECONDS = 0.5
# Readers see a batch that was committed before the job's last heartbeat at most this much later.
_SETTLE_SECONDS = 0.2


class Reads(ABC):
    """Views of one job, from which tables read: of its newest batch, or always of the same batch.

    job:    the job that the views show
    fixed:  whether all reads are of one batch, so that a page of another batch is refused
    """

    job: JobReads
    fixed = True

    def reader(self, view: View) -> Reader | None:  # noqa: ARG002 - for those that have one
        """Compiled code for the batch that all reads are of; None if there is none."""
        return None

    @abstractmethod
    def open(self, bounds: Bounds | None = None) -> tuple[View, Cut]:
        """A view, which the caller ends, and where an answer from it comes from."""

    def try_batch(self, now: View, generation: str, batch: int) -> View | None:
        """A view of an earlier page's batch, which the caller ends or keeps; None if it is gone.

        now:  a view opened before, which shows that the job is still the same; handed on if it is
              of that batch
        """
        return now.hand_on() if (now.generation, now.record.batch) == (generation, batch) else None

    def clock_ms(self, record: ReplicaRecord) -> int:
        """The time by which the TTLs of this batch's rows are judged: see `ttl`."""
        return clock_ms(record.started_ms)


class JobReads(Reads):
    """A job as its tables read it: views of its newest batch, and the job's state."""

    fixed = False

    def __init__(self, folder: JobFolder, replica: Replica, settings: ReplicaSettings) -> None:
        self.job = self
        self.folder = folder
        self.replica = replica
        self.settings = settings
        self.held_views = HeldViews(most=settings.page_views, seconds=settings.page_view_seconds)
        self.shorter = ShorterFile(folder.storage)
        self._heartbeat = (Beat("unknown", ""), 0.0)
        self._position: tuple[ReplicaRecord | None, Position | None] = (None, None)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.folder.job

    def open(self, bounds: Bounds | None = None) -> tuple[View, Cut]:
        """A view of the newest batch, which the caller ends, and where an answer from it comes from.

        Raises:  NOT_UP_TO_BOUND, UNKNOWN_OFFSET, INVALID_BOUND; as `Replica.snapshot`.
        """
        if bounds is not None:
            return open_within(
                bounds,
                self._checkpoint,
                self.open,
                self.replica.wait_for_step,
                said_stopped=self.folder.said_stopped,
                settle_seconds=self.settle_seconds,
            )
        view = self.replica.snapshot()
        try:  # as `with` and `hand_on`, in fewer steps: each lookup goes through here
            return view, self.cut(view)
        except BaseException:
            view.close()
            raise

    @property
    def settle_seconds(self) -> float:
        """A job that has looked stopped for so long counts as stopped: see `open_within`."""
        remote = self.settings.remote_heartbeat_seconds + self.settings.remote_idle_poll_seconds
        return remote if self._checkpoint.is_remote else _SETTLE_SECONDS

    def try_batch(self, now: View, generation: str, batch: int) -> View | None:
        """See `Reads`.

        Only this process's views are tried; a table with history also has the batch there.
        """
        found = super().try_batch(now, generation, batch)
        if found is None and now.generation == generation:  # another build may have other rows, if the job was rewound
            lent = self.held_views.try_page(generation, batch)
            found = None if lent is None else self.looked_at(lent)
        return found

    @cached_property
    def _checkpoint(self) -> Storage:
        return self.folder.open_checkpoint()

    def keep(self, view: View) -> None:
        """Give back the view of a page that isn't the last: its batch stays readable for a while."""
        self.held_views.keep_page(view)

    def cut(self, view: View) -> Cut:
        """Where an answer from this view comes from, and how far it is behind now."""
        return self._frame(view).at(time.time())

    def _frame(self, view: View) -> CutFrame:
        record, newer = view.record, view.newer
        known, position = self._position
        if known is not record:
            position = record.position()
            self._position = (record, position)
        assert position is not None
        return CutFrame(
            self.folder.job,
            record,
            position,
            newer.batches,
            newer.oldest_commit_ns,
            self.job_state(record),
            view.generation,
        )

    def reader(self, view: View) -> Reader | None:
        """Compiled code that reads the newest batch, given a view of it, until somebody must look again."""
        found = self.replica.reader(view)
        if found is None:
            return None
        reader, transaction, until = found
        frame = self._frame(view)
        if not self.folder.storage.is_remote:
            until = min(until, self._heartbeat[1] + _HEARTBEAT_CACHE_SECONDS)
        reader.allow(transaction, until, frame)
        return reader

    def meeting(self, view: View, bounds: Bounds | None) -> tuple[View, Cut]:
        """A view that always shows the same batch, and its cut.

        Raises as `check`, after ending the view.
        """
        with view:
            cut = self.cut(view)
            self.check(bounds, cut)
            return view.hand_on(), cut

    def check(self, bounds: Bounds | None, cut: Cut) -> None:
        """Check a cut that can't change any more against bounds.

        Raises:  NOT_UP_TO_BOUND, UNKNOWN_OFFSET, INVALID_BOUND.
        """
        if bounds is not None:
            unmet = BoundCheck(bounds, self._checkpoint).unmet(cut)
            if unmet is not None:
                raise error_of(unmet, 0.0)

    def reader_of(self, event: Bounds, line: int | None = None) -> Callable[[ReplicaRecord], bool]:
        """A function that says whether the input up to a position contains what these bounds name.

        line:    of the file that they name, if the job reads it as a log, line by line
        Raises:  INVALID_BOUND, by the function.
        """
        check = BoundCheck(event, self._checkpoint)
        fresh = Lag(behind_batches=0, behind_seconds=0.0, age_seconds=0.0, age_from="commit", event_lag_seconds=None)

        def is_read(record: ReplicaRecord) -> bool:
            if event.contains_file is not None:
                by_line = line_is_read(str(event.contains_file), line, record.offsets)
                if by_line is not None:
                    return by_line
            cut = Cut(job=self.folder.job, position=record.position(), lag=fresh, job_state="unknown")
            return check.unmet(cut) is None

        return is_read

    def job_state(self, newest: ReplicaRecord | None = None) -> str:
        """running, stopped or unknown: at most half a second old, a few seconds on an object store.

        newest:  the newest position that the replica has; None without one
        """
        beat, seen = self._heartbeat
        # On an object store a thread of the pond reads it, so that readers need not.
        if not seen or (not self.folder.storage.is_remote and time.monotonic() - seen > _HEARTBEAT_CACHE_SECONDS):
            beat = self.read_heartbeat()
        return beat.state_given(None if newest is None else newest.committed_ns)

    def read_heartbeat(self) -> Beat:
        """What the job last reported, as of now."""
        beat = self.folder.beat()
        self._heartbeat = (beat, time.monotonic())
        return beat

    def close(self) -> None:
        """Stop following, and end all held views."""
        self.held_views.close()
        self.replica.close()

    def looked_at(self, lent: View) -> View:
        """The same view, with what is committed beyond it now.

        Raises:  JOB_REPLACED, after ending the view.
        """
        with lent:
            lent.newer = self.replica.newer_than(lent)
            return lent.hand_on()


class CutReads(Reads):
    """A job as the tables of one cut read it: all use the same view, one read at a time."""

    def __init__(self, job: JobReads, held_view: HeldView) -> None:
        self.job = job
        self._held_view = held_view

    def open(self, bounds: Bounds | None = None) -> tuple[View, Cut]:
        """The view of the cut.

        Raises:  CUT_EXPIRED, JOB_REPLACED; NOT_UP_TO_BOUND if it doesn't meet the bounds.
        """
        with self.job.replica.snapshot() as now:
            same_generation = now.generation == self._held_view.view.generation
        lent = self._held_view.try_lease() if same_generation else None
        if lent is None:
            why = "its time is over" if same_generation else "the replica was built again"
            raise ReplicaError(
                "CUT_EXPIRED",
                f"The cut of {self.job.folder.job} at batch {self._held_view.view.record.batch} can no longer be read: {why}.",
                hint="Open a new one with `pond.cut`; a cut stays open for as long as one read may take.",
                batch=self._held_view.view.record.batch,
            )
        return self.job.meeting(self.job.looked_at(lent), bounds)

"""Put a copy in the place of a stopped job's checkpoint, for `rescale` and `rollback`.

1. Take the job's lease, and end what a killed command has left.
2. Let the command make the copy.
3. Look again: what the checkpoint has planned and committed must be as it was, or a program that
   knows nothing of leases runs the job.
4. Renew the lease, which shows that it is still ours; then let the copy take over.

If anything fails before that, the copy is removed and the job is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import JobFolder, find_job, reopen
from millpond.checkpoint.log import job_id
from millpond.errors import MillpondError, RequestError, SavepointError
from millpond.ownership.lease import NAME, check_not_held, leased
from millpond.ownership.take_over import TakeOver, begin, finish
from millpond.savepoint.create import SavepointPlan, find_batches
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.threads import Progress
from millpond.storage import Storage
from millpond.storage.names import numbers

UNKNOWN = "Millpond didn't start this job and can't know whether it runs: make sure that it is stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """What became of a job's checkpoint.

    job:         the job's folder, with the checkpoint that it has now
    kept:        URI of the old checkpoint
    kept_sink:   URI of the old log of its file sink; None if that stayed as it was
    """

    job: JobFolder
    kept: str
    kept_sink: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """What a checkpoint had planned and committed at one moment."""

    planned: tuple[int, ...]
    committed: tuple[int, ...]

    @classmethod
    def of(cls, storage: Storage) -> Found:
        """The state of these logs now."""
        planned, committed = (tuple(numbers(storage.names(name))) for name in ("offsets", "commits"))
        return cls(planned, committed)

    @property
    def unfinished(self) -> int | None:
        """The batch that is planned and not committed, if there is one."""
        return self.planned[-1] if self.planned and (not self.committed or self.planned[-1] > self.committed[-1]) else None

    def check(self, storage: Storage) -> None:
        """Raise CHECKPOINT_IN_USE if the job has gone on since then."""
        now = Found.of(storage)
        if (now.planned[-1:], now.committed[-1:]) != (self.planned[-1:], self.committed[-1:]):
            raise SavepointError(
                "CHECKPOINT_IN_USE",
                f"The job at {storage.uri} has gone on meanwhile, to batch {now.planned[-1] if now.planned else 'none'}.",
                hint="Stop the job first; nothing has been changed.",
                uri=storage.uri,
            )


def find_stopped_job(place: str | Path, job: str | None, *, take_over: bool) -> tuple[JobFolder, int]:
    """A job that doesn't run, as far as Millpond can know, and its newest committed batch.

    take_over:  don't ask who has its lease
    Raises:     as `find_job`; CHECKPOINT_IN_USE; NO_COMMITTED_BATCH.
    """
    folder = find_job(place, job)
    if not take_over:
        check_not_held(folder.storage)
        # Without any lease it was started by an older version, or not by Millpond.
        if folder.storage.stamp(NAME) is None and folder.job_state() == "running":
            raise SavepointError(
                "CHECKPOINT_IN_USE",
                f"The job {folder.job} runs, by its heartbeat in {folder.storage.uri}.",
                hint="Stop it; if it was killed, wait ten seconds.",
                job=folder.job,
            )
    storage = folder.open_checkpoint()
    batches = find_batches(storage, None)
    job_id(storage)
    return folder, batches[-1]


def check_target(folder: JobFolder, to: str | Path | None) -> None:
    """Raise INVALID_REQUEST if a target is named for a job whose copy takes over."""
    if folder.is_inside and to is not None:
        raise RequestError(
            "INVALID_REQUEST",
            f"The copy takes the place of the checkpoint of {folder.job}, so it has no other place.",
            hint="Leave out --to; to make a copy elsewhere: millpond savepoint restore.",
        )


def take_place(
    folder: JobFolder, what: str, make: Callable[[TakeOver], None], *, take_over: bool, sink: str | None = None
) -> Replaced:
    """Make a copy of a job's checkpoint, and let it take the checkpoint's place.

    what:       the command, in one word
    make:       makes the copy
    take_over:  take the job's lease from whoever has it
    sink:       folder `_spark_metadata` of a file sink that changes as well
    Raises:     CHECKPOINT_IN_USE; what `make` and the storages raise.
    """
    with leased(folder.storage, f"millpond {what}", take_over=take_over) as lease:  # 1
        finish(folder)
        folder = reopen(folder)
        checkpoint = folder.open_checkpoint()
        found = Found.of(checkpoint)
        over = begin(folder, what, sink)
        try:
            make(over)  # 2
            found.check(checkpoint)  # 3
            lease.check()  # 4
        except BaseException:
            over.discard()
            raise
        try:
            taken = over.take()
        except MillpondError:
            finish(folder, over.id)
            raise
    return Replaced(job=taken, kept=over.kept_at, kept_sink=None if over.sink is None else over.sink.kept)


def savepoint_in(root: Storage, folder: JobFolder, batch: int, progress: Progress | None, *, count: bool) -> Savepoint:
    """A savepoint of a job in a folder for the time of a command."""
    plan = SavepointPlan(
        name="source", note="", job=folder, batch=batch, newest=batch, root=root.folder("savepoint"), parent=None, count=count
    )
    return plan.run(progress)

"""Let the next batch of a stopped version end where the current version ends, so that both can be compared there.

1. Take the job's lease.
2. Read where its newest batch ends, and the current version's.  The current one may run on.
3. Write the plan of the next batch, and the log entry of a file source (`savepoint.end_at`).  Spark
   finds a batch that is planned and not committed, and runs exactly that one when the job starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import JobFolder
from millpond.checkpoint.log import newest_committed, planned_batches, read_batch
from millpond.checkpoint.restart_files import log_offset
from millpond.checkpoint.source_files import newest_entry
from millpond.errors import ReplicaError, RequestError
from millpond.ownership.lease import check_not_held, leased
from millpond.savepoint.end_at import End, check_end, plan_next_batch
from millpond.storage import open_storage
from millpond.tables.versions.input import Missing, missing
from millpond.tables.versions.listing import find_name, find_version


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignPlan:
    """A batch that isn't planned yet.

    job:     of the version whose next batch it is
    first:   where that version's newest batch ends
    other:   where the current version's newest batch ends
    reads:   what the batch will read
    """

    job: JobFolder
    first: End
    other: End
    reads: Missing

    def describe(self) -> str:
        """What will be done, in a few lines."""
        if not self.reads.count and not self.reads.unknown:
            return f"nothing     {self.first.name} ends where {self.other.name} ends already"
        return (
            f"plan        batch {self.first.batch + 1} of {self.first.name}, up to the end of batch {self.other.batch} of "
            f"{self.other.name}\nreads       {self.reads.words()}, when the job is started"
        )

    def run(self) -> int | None:
        """Plan it; returns its number, None if there is nothing to read.

        Raises:  CHECKPOINT_IN_USE if the job runs by now; NOT_ALIGNED if it has gone on since; what
                 the storage raises.
        """
        with leased(self.job.storage, f"the command that plans a batch of {self.first.name}"):  # 1
            if _end_of(self.job) != self.first:
                raise _begun(self.first.name, "It has gone on meanwhile.")
            return plan_next_batch(self.first, self.other, self.first.checkpoint)  # 3


def plan_align(place: str | Path, name: str, version: int, *, allow: Iterable[str | Path] = ()) -> AlignPlan:
    """Plan the batch of a stopped version that ends where the current version's newest batch ends.

    Spark keeps the batches of the current version for a while (100 by default): start this version
    soon.

    allow:   places outside of a pond where its checkpoints may lie, as for `open`
    Raises:  UNKNOWN_VERSION; INVALID_REQUEST for the current version; CHECKPOINT_IN_USE if the job
             runs; NOT_ALIGNED if it has read more than the current one, or has begun its next
             batch; UNSUPPORTED for sources whose offsets mean something in their own job only.
    """
    found = find_name(open_storage(place), name)
    if version == found.current:
        raise RequestError(
            "INVALID_REQUEST", f"{name} means version {version}.", hint="Name another version: it is taken to the end of this one."
        )
    job, current = (find_version(place, name, n, allow) for n in (version, found.current))
    check_not_held(job.storage)
    first, other = _end_of(job), _end_of(current)  # 2
    check_end(first, other)
    _check_not_begun(first)
    reads = missing((other.checkpoint, other.offsets), (first.checkpoint, first.offsets))
    return AlignPlan(job=job, first=first, other=other, reads=reads)


def _end_of(job: JobFolder) -> End:
    storage = job.open_checkpoint()
    batch = read_batch(storage, newest_committed(storage))
    return End(name=job.job, batch=int(batch.batch), offsets=batch.offsets, checkpoint=storage)


def _check_not_begun(end: End) -> None:
    """Raise NOT_ALIGNED if a job has planned its next batch, or has begun to."""
    planned = planned_batches(end.checkpoint)
    if planned and planned[-1] > end.batch:
        raise _begun(end.name, f"Batch {planned[-1]} is planned already.")
    for source, offset in end.offsets.items():
        upto, newest = log_offset(offset), newest_entry(end.checkpoint, source)
        if upto is not None and newest is not None and newest > upto:
            raise _begun(end.name, f"It has chosen the files of its next batch already, of source {source}.")


def _begun(job: str, why: str) -> ReplicaError:
    return ReplicaError(
        "NOT_ALIGNED", f"The next batch of {job} can't be planned. {why}", hint="Start the job, stop it, and try again.", job=job
    )

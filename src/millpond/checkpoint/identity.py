"""Whether the job at a path is still the one that a replica follows.

People delete a checkpoint and start over, rewind it, or restore a copy to the same path.  The new
files have the same names with other content; a replica that continued would mix two jobs.

1. If commits/N, of the replica's own batch N, has the recorded stamp, the job is the same.
2. If it has another stamp, read the log files of N again and compare their fingerprint.  Another
   fingerprint of the same batch is noted in the checkpoint if the job was rescaled.
3. If it is gone: with the same job id and a newer commit, it was cleaned up, and the replica has
   only fallen behind.  Otherwise the job was deleted, rewound or replaced.
"""

from __future__ import annotations

from typing import Literal, Protocol

from millpond.checkpoint.log import committed_batches, job_id, read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rescaled import was_rescaled
from millpond.errors import MillpondError, ReplicaError, StorageError
from millpond.storage import FileStamp, Storage

Verdict = Literal["same", "behind", "rescaled", "replaced"]


class Reached(Protocol):
    """How far a job was followed: a replica's record, or the mark of its journal."""

    @property
    def batch(self) -> int:
        """The newest batch."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its log files."""

    @property
    def commit_stamp(self) -> FileStamp:
        """The stamp of commits/N."""


def judge(storage: Storage, record: Reached, known_job_id: str) -> tuple[Verdict, FileStamp | None]:
    """What became of the job since this batch; and the stamp of its commit.

    same:      it is the same
    behind:    it is the same, and this batch was cleaned up
    rescaled:  it is the same, with the state of this batch under another number of partitions
    replaced:  it is another

    Raises:  STORAGE_UNAVAILABLE, ACCESS_DENIED: a storage that doesn't answer says nothing about
             the job.
    """
    stamp = storage.stamp(f"commits/{record.batch}")
    if stamp == record.commit_stamp:
        return "same", stamp  # 1
    if stamp is not None:
        try:
            again = read_batch(storage, Batch(record.batch)).fingerprint
        except StorageError:
            raise
        except MillpondError:
            return "replaced", stamp
        if again == record.fingerprint:  # 2
            return "same", stamp
        return ("rescaled" if was_rescaled(storage, record.fingerprint, again) else "replaced"), stamp
    try:
        same_id = job_id(storage) == known_job_id
    except StorageError:
        raise
    except MillpondError:
        return "replaced", None
    batches = committed_batches(storage)
    return ("behind" if same_id and batches and batches[-1] > record.batch else "replaced"), None  # 3


def replaced_error(storage: Storage, batch: int) -> ReplicaError:
    """The readers' error until a new replica serves."""
    return ReplicaError(
        "JOB_REPLACED",
        f"The checkpoint at {storage.uri} is no longer that of this replica: its batch {batch} is gone or has changed.",
        hint="Ask again in a moment: a new replica is built as soon as the job at this path has committed a batch.",
        checkpoint=storage.uri,
        batch=batch,
    )

"""Whether the job at a path is still the one that a replica follows.

People delete a checkpoint and start over, rewind it, or restore a copy to the same path.  The new
files have the same names with other content; a replica that continued would mix two jobs.

1. If commits/N, of the replica's own batch N, has the recorded stamp, the job is the same.
2. If it has another stamp, read the log files of N again and compare their fingerprint.  Another
   fingerprint of the same batch is noted in the checkpoint if the job was rescaled: the hidden file
   `.rescaled.json` has those before, one for each time, and the one after.
   Half a file says nothing: a program that copies the checkpoint may be writing it.  Below a newer
   batch, half a file that is older than a minute is damage, and the job counts as another.
3. If it is gone: with the same job id and a newer commit, it was cleaned up, and the replica has
   only fallen behind.  Otherwise the job was deleted, rewound or replaced.
"""

from __future__ import annotations

import json
import time
from typing import Literal, Protocol

from millpond.checkpoint.log import committed_batches, job_id, read_batch
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError, ReplicaError, StorageError
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import FileStamp, Storage

Verdict = Literal["same", "behind", "rescaled", "replaced"]
_HALF_WRITTEN = frozenset({"INCOMPLETE_FILE", "CORRUPT_FILE"})
_YOUNG_SECONDS = 60.0
_NOTE, _MOST_TIMES = ".rescaled.json", 100


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
             the job.  INCOMPLETE_FILE, CORRUPT_FILE: nor does half a file.
    """
    stamp = storage.stamp(f"commits/{record.batch}")
    if stamp == record.commit_stamp:
        return "same", stamp  # 1
    if stamp is not None:
        try:
            again = read_batch(storage, Batch(record.batch)).fingerprint
        except StorageError:
            raise
        except MillpondError as unreadable:
            is_newest = max(committed_batches(storage), default=-1) <= record.batch
            if unreadable.condition in _HALF_WRITTEN and (is_newest or _is_young(stamp)):
                raise
            return "replaced", stamp
        if again == record.fingerprint:  # 2
            return "same", stamp
        return ("rescaled" if _was_rescaled(storage, record.fingerprint, again) else "replaced"), stamp
    try:
        same_id = job_id(storage) == known_job_id
    except StorageError:
        raise
    except MillpondError as unreadable:
        if unreadable.condition in _HALF_WRITTEN:
            raise
        return "replaced", None
    batches = committed_batches(storage)
    return ("behind" if same_id and batches and batches[-1] > record.batch else "replaced"), None  # 3


def _is_young(stamp: FileStamp) -> bool:
    return abs(time.time() - stamp.modified_ns / 1e9) < _YOUNG_SECONDS


def replaced_error(storage: Storage, batch: int) -> ReplicaError:
    """The readers' error until a new replica serves."""
    return ReplicaError(
        "JOB_REPLACED",
        f"The checkpoint at {storage.uri} is no longer that of this replica: its batch {batch} is gone or has changed.",
        hint="Ask again in a moment: a new replica is built as soon as the job at this path has committed a batch.",
        checkpoint=storage.uri,
        batch=batch,
    )


def write_rescaled(source: Storage, target: Storage, before: str, after: str) -> None:
    """Note in the rescaled checkpoint the fingerprints of a batch before and after its state was divided anew.

    source:  the checkpoint before
    """
    earlier, last = _read_note(source)
    known = [*earlier, before] if last == before else [before]
    target.write(_NOTE, json.dumps({"before": known[-_MOST_TIMES:], "after": after}).encode())


def _was_rescaled(storage: Storage, before: str, after: str) -> bool:
    """Whether a batch has the second fingerprint because its state was divided anew, once or several times.

    Raises:  what the storage raises; a note that can't be read says nothing.
    """
    known, last = _read_note(storage)
    return last == after and before in known


def _read_note(storage: Storage) -> tuple[list[str], str]:
    try:
        data = parse_json(storage.read(_NOTE, FileBounds().note_bytes))
        before, after = data["before"], data["after"]
    except StorageError:
        raise
    except (MillpondError, *DAMAGE):
        return [], ""
    known = before if isinstance(before, list) else [before]
    return [each for each in known if isinstance(each, str)], after if isinstance(after, str) else ""

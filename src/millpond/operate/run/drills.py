"""The results of a job's drills, in its folder: `drills.json`."""

from __future__ import annotations

import msgspec

from millpond.errors import CheckpointError
from millpond.schema.prepared import ready
from millpond.settings import FileBounds
from millpond.storage import Storage

NAME = "drills.json"
_MOST_DRILLS = 50
_BOUNDS = FileBounds()


class Drill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a drill has found for one job.

    at_ms:            when it began, milliseconds since 1970
    job:              the job's name
    savepoint:        the newest one, which was restored
    savepoint_batch:  its batch
    savepoint_age_seconds: since it was made
    within_seconds:   the objective for `recovery_seconds`
    restore_seconds:  to restore the savepoints of all jobs
    recovery_seconds: from the begin of the drill to the job's first commit; None if there was none
    batch:            that commit; None if there was none
    problem:          why the job isn't back; empty if it is
    """

    at_ms: int
    job: str
    savepoint: str
    savepoint_batch: int
    savepoint_age_seconds: float
    within_seconds: float
    restore_seconds: float
    recovery_seconds: float | None = None
    batch: int | None = None
    problem: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the job was back within the objective, and its checkpoint is whole."""
        return not self.problem and self.recovery_seconds is not None and self.recovery_seconds <= self.within_seconds


class _Drills(msgspec.Struct, frozen=True, kw_only=True):
    format: int = 1
    drills: tuple[Drill, ...] = ()


def read_drills(storage: Storage) -> tuple[Drill, ...]:
    """The newest drills of the job in a folder, oldest first; none if the file can't be read."""
    if storage.stamp(NAME) is None:
        return ()
    try:
        return msgspec.json.decode(storage.read(NAME, _BOUNDS.note_bytes), type=ready(_Drills)).drills
    except (CheckpointError, msgspec.MsgspecError):
        return ()


def add_drill(storage: Storage, drill: Drill) -> None:
    """Keep a result; the oldest ones go.  Raises NOT_WRITABLE, and what the storage raises."""
    drills = (*read_drills(storage), drill)[-_MOST_DRILLS:]
    while len(data := msgspec.json.encode(_Drills(drills=drills))) > _BOUNDS.note_bytes:
        drills = drills[1:]
    storage.write(NAME, data)

"""Repairs of checkpoints, with the replica as one of the copies that may hold what the checkpoint lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millpond.catalogue import find_job
from millpond.errors import MillpondError
from millpond.replica.backends.lmdb import open_backend
from millpond.replica.folder import ReplicaPlace
from millpond.replica.replica import MEMORY
from millpond.savepoint.repair.plan import OtherCopy, RepairPlan, plan_repair_of
from millpond.settings import ReplicaSettings, home


def plan_repair(
    place: str | Path,
    job: str | None = None,
    *,
    to: str | Path | None = None,
    archive: str | Path | None = None,
    replica_dir: str | Path | None = None,
    stateless: bool = False,
    new_id: bool = False,
) -> RepairPlan:
    """Find out what is wrong with a checkpoint, and plan a copy from which Spark goes on.

    place:        a pond, or the folder of a checkpoint
    job:          needed in a pond with several jobs
    to:           a folder that is empty or doesn't exist yet; by default the checkpoint's name with
                  `-repaired`
    archive:      an archive of the job, which may hold a later batch
    replica_dir:  where replicas are kept, as for `open`
    stateless:    the query keeps no state: else a checkpoint without any has lost it
    new_id:       give the copy an id of its own, for a sink that skips batches of this query's id that
                  it has seen
    Raises:  NO_CHECKPOINT, INVALID_REQUEST, TARGET_NOT_EMPTY; UNSUPPORTED for a job in real-time
             mode; what the storages raise.  What is wrong with the checkpoint is in
             `plan.diagnosis`.
    """
    checkpoint = find_job(place, job).checkpoint
    held = tuple(_held(home() if replica_dir is None else replica_dir, checkpoint, place))
    return plan_repair_of(place, job=job, to=to, archive=archive, held=held, stateless=stateless, new_id=new_id)


def _held(folder: str | Path, checkpoint: str, place: str | Path) -> Iterator[OtherCopy]:
    """The batch that a checkpoint's replica holds, if there is one that can be read."""
    if str(folder) == MEMORY:
        return
    replica = ReplicaPlace(Path(folder), checkpoint)  # a shard hasn't all rows
    try:
        path = replica.current()
        if path is None:
            return
        backend = open_backend(path, ReplicaSettings())
        stores = backend.stores()
        if stores is None or stores.checkpoint != checkpoint:
            return
        with backend.snapshot() as snapshot:
            record = snapshot.record()
    except (MillpondError, FileNotFoundError):  # a replica is disposable: without it, there is one copy less
        return
    if record.status == "live":
        use = f"read its tables, or write them to files, before anything else: millpond scan {place} … --parquet FILE"
        yield OtherCopy(kind="replica", name=str(replica.path), batch=record.batch, use=use)

"""The files of which a partition's state is read: a snapshot, and the changes after it.

A damaged snapshot can be left out, if an older one and all changes after that are there: they give
the same rows.  Spark does so by itself since 4.1.
"""

from __future__ import annotations

import re

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.restart_files import partition_files
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.savepoint.repair.whole_files import WholeFiles
from millpond.schema.store import StoreSchema
from millpond.storage import Storage
from millpond.storage.names import NUMBER

_CHANGE_LOG = re.compile(rf"({NUMBER})(?:_.*)?\.changelog")
_SNAPSHOTS = (".snapshot", ".zip")
_OF_SNAPSHOTS = (*_SNAPSHOTS, ".sst")


def chain_problems(
    view: Storage, batch: CommittedBatch, files: WholeFiles, store: StoreSchema, partition: int
) -> dict[str, CheckpointError]:
    """The files that Spark loads of a partition and that aren't whole: path -> why.

    Raises:  what the storage raises.
    """
    found: dict[str, CheckpointError] = {}
    try:
        needed = list(partition_files(StateReader(view), batch, store, partition))
    except CheckpointError as error:
        return {below(view, error, store.folder(partition)): error}
    for file in needed:
        if (problem := files.why_not(file.path, batch.settings)) is not None:
            # That of a zip may be one of its SSTs, which is among the files itself.
            found.setdefault(below(view, problem, file.path), problem)
    return found


def leave_out_snapshots(
    view: Storage, batch: CommittedBatch, files: WholeFiles, store: StoreSchema, partition: int
) -> dict[str, CheckpointError]:
    """Delete damaged snapshots from a view until all that Spark loads of a partition is whole.

    Returns:  path of each snapshot -> why it isn't whole
    Raises:   the error of a file without which the state can't be read.
    """
    left_out: dict[str, CheckpointError] = {}
    while problems := chain_problems(view, batch, files, store, partition):
        for path, error in problems.items():
            if not path.endswith(_OF_SNAPSHOTS):
                raise error
        path, error = next(iter(problems.items()))
        if not path.endswith(_SNAPSHOTS):
            base, _ = StateReader(view).files(batch, store, partition)
            path = base or path
        if path in left_out:
            raise error
        left_out[path] = error
        view.delete(path)
    return left_out


def has_every_change(view: Storage, batch: CommittedBatch, store: StoreSchema, partition: int) -> bool:
    """Whether a partition has the change log of each version, so that Spark needs no snapshot.

    Millpond does: only snapshots number the column families.
    """
    versions = {int(found[1]) for name in view.names(store.folder(partition)) if (found := _CHANGE_LOG.fullmatch(name))}
    return versions.issuperset(range(1, batch.batch + 2))


def is_of_snapshot(path: str) -> bool:
    """Whether a file is a snapshot, or an SST of one."""
    return path.endswith(_OF_SNAPSHOTS)


def below(storage: Storage, error: CheckpointError, otherwise: str) -> str:
    """The file that an error names, below the checkpoint."""
    named = str(error.context.get("path", otherwise))
    for root in (storage.uri, str(storage.local_path() or "")):
        named = named.removeprefix(f"{root}/")
    return otherwise if named.startswith("/") or "://" in named else named

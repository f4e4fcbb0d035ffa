"""Make a savepoint of another one, with other rows or another position.

1. Claim the new savepoint's name.
2. Restore the first savepoint into its folder, with edited rows.  What was written is read again
   and compared.
3. Count the rows of each partition.
4. Let all of it survive a crash, and only then write the manifest.

The first savepoint stays as it is.  If anything fails, the new one's folder is emptied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version

from millpond.checkpoint.log import CommittedBatch, read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import RestartFile, restart_files
from millpond.errors import MillpondError
from millpond.savepoint.describe import describe_files
from millpond.savepoint.manage.folder import claim, remove
from millpond.savepoint.manifest import CHECKPOINT, NAME, Manifest, Savepoint, SavepointFile, damaged
from millpond.savepoint.restore import restore_files
from millpond.savepoint.rewrite.form import AS_IT_WAS, StateForm
from millpond.savepoint.rewrite.row_edit import RowEdit
from millpond.savepoint.rows import PartitionId, count_rows
from millpond.savepoint.threads import Progress
from millpond.schema.definition.operator_name import Entry
from millpond.storage import Storage
from millpond.storage.below import files_below
from millpond.storage.copying import hash_file

Counted = Mapping[PartitionId, int]


def make_savepoint(
    first: Savepoint,
    root: Storage,
    name: str,
    *,
    note: str,
    tables: Iterable[Entry],
    edits: Collection[RowEdit],
    also: Callable[[Storage], None] = lambda _: None,
    form: StateForm = AS_IT_WAS,
    check: Callable[[Savepoint, Storage, Counted], None] = lambda *_: None,
    progress: Progress | None = None,
) -> Savepoint:
    """Make it.

    first:   the savepoint to begin with
    root:    the folder of all savepoints
    tables:  the definitions of the job's tables
    edits:   of the rows of stores
    also:    changes what else belongs to the new checkpoint
    form:    how the state is written
    check:   judges the number of rows of each partition
    Raises:  SAVEPOINT_EXISTS, SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, NOT_WRITABLE, what the edits
             and the storages raise.
    """
    folder = claim(root, name)  # 1
    try:
        target = folder.folder(CHECKPOINT)
        restore_files(first, target, first.manifest.job_id, progress, form, edits=edits, also=lambda: also(target))  # 2
        batch = read_batch(target, Batch(first.manifest.batch))
        counted = _count_rows(target, batch)  # 3
        check(first, target, counted)
        manifest = _manifest(first, target, batch, counted, name, note, tables)
        needed = {file.path for file in manifest.files}
        for path in files_below(target):  # as a source's log after an offset that was moved back
            if path not in needed:
                target.delete(path)
        folder.sync()  # 4
        folder.write(NAME, manifest.to_bytes())
    except BaseException:
        remove(folder)
        raise
    return Savepoint(manifest, folder)


def check_partitions(first: Savepoint, target: Storage, counted: Counted) -> None:
    """Raise SAVEPOINT_DAMAGED if a partition doesn't have as many rows as before."""
    for state in first.manifest.partitions:
        where = (state.operator, state.store, state.partition)
        if state.rows is not None and counted.get(where, 0) != state.rows:
            raise damaged(target.uri, f"has {counted.get(where, 0)} rows of {where}, and had {state.rows}")


def _manifest(
    first: Savepoint, target: Storage, batch: CommittedBatch, counted: Counted, name: str, note: str, tables: Iterable[Entry]
) -> Manifest:
    files = restart_files(target, batch)
    described = describe_files([(file, _content(target, file)) for file in files], counted)
    return replace(
        first.manifest,
        name=name,
        note=note,
        parent=first.manifest.name,
        shares_with=None,
        offsets=batch.offsets,
        watermark_ms=batch.watermark_ms,
        created_ms=int(time.time() * 1000),
        millpond=version("millpond"),
        tables={entry.table: entry.to_json() for entry in sorted(tables, key=lambda entry: entry.table)},
        partitions=described.partitions,
        files=described.files,
    )


def _count_rows(target: Storage, batch: CommittedBatch) -> Counted:
    counted: dict[PartitionId, int] = {}
    for where, rows in count_rows(target, batch):
        if isinstance(rows, MillpondError):
            raise rows
        counted[where] = counted.get(where, 0) + rows
    return counted


def _content(storage: Storage, file: RestartFile) -> SavepointFile:
    found = hash_file(storage, file.path, most_bytes=file.most_bytes)
    return SavepointFile(path=file.path, size_bytes=found.size_bytes, sha256=found.sha256)

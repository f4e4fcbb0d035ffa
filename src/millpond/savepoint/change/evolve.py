"""Evolve a savepoint: a new one, whose state a changed query can go on with.

1. Claim the new savepoint's name.
2. Restore the savepoint into its folder: each row gets its new columns, the schema files are those
   that Spark writes for the new query.  What was written is read again and compared.
3. Count the rows: each partition has as many as before.
4. Let all of it survive a crash, and only then write the manifest.

The first savepoint stays as it is.  If anything fails, the new one's folder is emptied.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version

from millpond.checkpoint.log import read_batch
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError
from millpond.savepoint.describe import describe_files
from millpond.savepoint.manage.folder import check_free, claim, remove
from millpond.savepoint.manifest import CHECKPOINT, NAME, Manifest, Savepoint, SavepointFile, check_savepoint_name, damaged
from millpond.savepoint.restart_files import RestartFile, restart_files
from millpond.savepoint.restore import restore_files
from millpond.savepoint.rewrite.row_edit import NewColumns
from millpond.savepoint.rows import PartitionId, count_rows
from millpond.savepoint.threads import Progress
from millpond.schema.definition.operator_name import Entry
from millpond.schema.value_change import ValueChange
from millpond.storage import Storage
from millpond.storage.copying import hash_file


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvePlan:
    """A savepoint that isn't evolved yet.

    savepoint:   the one that it begins with
    name, note:  of the new savepoint
    root:        the folder of all savepoints
    changes:     for each store whose rows change
    schemas:     path below the checkpoint -> the schema file of the new query
    tables:      the definitions of the job's tables with the new query
    lines:       what goes on, begins and is dropped, in words
    """

    savepoint: Savepoint
    name: str
    note: str
    root: Storage
    changes: tuple[ValueChange, ...]
    schemas: Mapping[str, bytes]
    tables: tuple[Entry, ...]
    lines: tuple[str, ...]

    def describe(self) -> str:
        """What will be done, in a few lines."""
        manifest = self.savepoint.manifest
        rows = [p.rows for p in manifest.partitions]
        known = sum(r for r in rows if r is not None)
        return "\n".join(
            [
                f"savepoint   {manifest.name} of the job {manifest.job}, batch {manifest.batch}, which stays as it is",
                f"to          {self.root.uri}/{self.name}",
                f"rows        {'not counted' if None in rows else f'{known:,}'}",
                *self.lines,
                *([] if self.changes else ["state       has all that the new query needs, and stays the same"]),
            ]
        )

    def run(self, progress: Progress | None = None) -> Savepoint:
        """Make it.

        Raises:  SAVEPOINT_EXISTS, SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, NOT_WRITABLE, what the
                 storages raise.
        """
        folder = claim(self.root, self.name)  # 1
        try:
            target = folder.folder(CHECKPOINT)
            restore_files(
                self.savepoint,
                target,
                self.savepoint.manifest.job_id,
                progress,
                edits=[NewColumns(change) for change in self.changes],
                also=lambda: self._write_schemas(target),
            )  # 2
            manifest = self._manifest(target)
            folder.sync()  # 4
            folder.write(NAME, manifest.to_bytes())
        except BaseException:
            remove(folder)
            raise
        return Savepoint(manifest, folder)

    def _write_schemas(self, target: Storage) -> None:
        for path, text in self.schemas.items():
            target.write(path, text)

    def _manifest(self, target: Storage) -> Manifest:
        first = self.savepoint.manifest
        files = restart_files(target, read_batch(target, Batch(first.batch)))
        copied = [(file, _content(target, file)) for file in files]
        described = describe_files(copied, self._count_rows(target))  # 3
        return replace(
            first,
            name=self.name,
            note=self.note,
            parent=first.name,
            shares_with=None,
            created_ms=int(time.time() * 1000),
            millpond=version("millpond"),
            tables={entry.table: entry.to_json() for entry in sorted(self.tables, key=lambda entry: entry.table)},
            partitions=described.partitions,
            files=described.files,
        )

    def _count_rows(self, target: Storage) -> dict[PartitionId, int]:
        counted: dict[PartitionId, int] = {}
        for where, rows in count_rows(target, read_batch(target, Batch(self.savepoint.manifest.batch))):
            if isinstance(rows, MillpondError):
                raise rows
            counted[where] = counted.get(where, 0) + rows
        for state in self.savepoint.manifest.partitions:
            where = (state.operator, state.store, state.partition)
            if state.rows is not None and counted.get(where, 0) != state.rows:
                raise damaged(target.uri, f"has {counted.get(where, 0)} rows of {where}, and had {state.rows}")
        return counted


def _content(storage: Storage, file: RestartFile) -> SavepointFile:
    found = hash_file(storage, file.path, most_bytes=file.most_bytes)
    return SavepointFile(path=file.path, size_bytes=found.size_bytes, sha256=found.sha256)


def plan_new_columns(
    savepoint: Savepoint,
    root: Storage,
    name: str,
    *,
    changes: tuple[ValueChange, ...],
    schemas: Mapping[str, bytes],
    tables: tuple[Entry, ...],
    lines: tuple[str, ...],
    note: str = "",
) -> EvolvePlan:
    """Plan a new savepoint with other columns.

    root:    the folder of all savepoints
    name:    of the new one
    Raises:  INVALID_NAME, SAVEPOINT_EXISTS, SAVEPOINT_INCOMPLETE.
    """
    check_savepoint_name(name)
    check_free(root, name)
    return EvolvePlan(
        savepoint=savepoint, name=name, note=note, root=root, changes=changes, schemas=schemas, tables=tables, lines=lines
    )

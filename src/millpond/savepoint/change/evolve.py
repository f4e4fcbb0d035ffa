"""Evolve a savepoint: a new one, whose state a changed query can go on with.

Each row gets its new columns; the schema files are those that Spark writes for the new query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millpond.savepoint.change.new_savepoint import check_partitions, make_savepoint
from millpond.savepoint.manage.folder import check_free
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.rewrite.row_edit import NewColumns
from millpond.savepoint.threads import Progress
from millpond.schema.definition.operator_name import Entry
from millpond.schema.value_change import ValueChange
from millpond.storage import Storage


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
        return make_savepoint(
            self.savepoint,
            self.root,
            self.name,
            note=self.note,
            tables=self.tables,
            edits=[NewColumns(change) for change in self.changes],
            also=self._write_schemas,
            check=check_partitions,
            progress=progress,
        )

    def _write_schemas(self, target: Storage) -> None:
        for path, text in self.schemas.items():
            target.write(path, text)


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
    check_free(root, name)
    return EvolvePlan(
        savepoint=savepoint, name=name, note=note, root=root, changes=changes, schemas=schemas, tables=tables, lines=lines
    )

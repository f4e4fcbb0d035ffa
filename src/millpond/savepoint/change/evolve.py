"""Evolve a savepoint: a new one, whose state a changed query can go on with.

Each row gets its new columns; the schema files are those that Spark writes for the new query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millpond.savepoint.change.new_savepoint import check_partitions, make_savepoint
from millpond.savepoint.manage.folder import check_free
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.restore import anchored_file
from millpond.savepoint.rewrite.row_edit import NewColumns, RowEdit
from millpond.savepoint.threads import Progress
from millpond.schema.definition.operator_name import Entry
from millpond.storage import Storage
from millpond.storage.names import hadoop_uri


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvePlan:
    """A savepoint that isn't evolved yet.

    savepoint:   the one that it begins with
    name, note:  of the new savepoint
    root:        the folder of all savepoints
    edits:       for each store whose rows change
    schemas:     path below the checkpoint -> the schema file of the new query, or an operator's
                 metadata
    removed:     schema files that nothing names any more
    tables:      the definitions of the job's tables with the new query
    lines:       what goes on, begins and is dropped, in words
    """

    savepoint: Savepoint
    name: str
    note: str
    root: Storage
    edits: tuple[RowEdit, ...]
    schemas: Mapping[str, bytes]
    removed: tuple[str, ...]
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
                *([] if self.edits or self.schemas else ["state       has all that the new query needs, and stays the same"]),
            ]
        )

    def run(self, progress: Progress | None = None) -> Savepoint:
        """Make it.

        Raises:  INVALID_REQUEST or WRONG_TYPE for what `value_of` raises or gives; SAVEPOINT_EXISTS,
                 SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, NOT_WRITABLE, what the storages raise.
        """
        return make_savepoint(
            self.savepoint,
            self.root,
            self.name,
            note=self.note,
            tables=self.tables,
            edits=self.edits,
            also=self._write_schemas,
            # Of variables, rows that only Spark needs come and go.
            check=check_partitions if all(isinstance(edit, NewColumns) for edit in self.edits) else lambda *_: None,
            progress=progress,
        )

    def _write_schemas(self, target: Storage) -> None:
        for path, text in self.schemas.items():
            target.write(path, anchored_file(text, path, hadoop_uri(target.uri)) if "/_metadata/v2/" in path else text)
        for path in self.removed:
            target.delete(path)


def plan_new_state(
    savepoint: Savepoint,
    root: Storage,
    name: str,
    *,
    edits: tuple[RowEdit, ...],
    schemas: Mapping[str, bytes],
    removed: tuple[str, ...] = (),
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
        savepoint=savepoint,
        name=name,
        note=note,
        root=root,
        edits=edits,
        schemas=schemas,
        removed=removed,
        tables=tables,
        lines=lines,
    )

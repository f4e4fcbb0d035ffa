"""Edit a savepoint: a new one, whose rows a user's function has changed, or whose position has moved.

A function gets each row of the tables that are to be edited, and returns the row that takes its
place, or None to remove it.  Rows that have the same key afterwards are merged by a second
function.  The rows that only Spark needs follow from those of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from millpond.checkpoint.log import read_batch, with_offsets, with_watermark
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.savepoint.change.edit_join import INDEXED, JoinCounts, JoinEdit, family_beside_side
from millpond.savepoint.change.edit_rows import StoreEdit
from millpond.savepoint.change.new_savepoint import make_savepoint
from millpond.savepoint.change.user_edit import Edit, EditCounts, Merge
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.restore import read_tables
from millpond.savepoint.rewrite.form import unsupported
from millpond.savepoint.rewrite.rewrite import count_edited
from millpond.savepoint.rewrite.row_edit import RowEdit
from millpond.savepoint.rewrite.spills import Sorter
from millpond.savepoint.threads import Progress
from millpond.schema.far_time import write_millis
from millpond.settings import FileBounds
from millpond.storage import Storage

_BOUNDS = FileBounds()
_JOIN = "symmetricHashJoin"
# Operators that keep nothing else of a key, so that the key may change.
_MAY_MOVE = frozenset({"stateStoreSave", "dedupe", "dedupeWithinWatermark", "applyInPandasWithState", "flatMapGroupsWithState"})


@dataclass(frozen=True, slots=True)
class EditedTable:
    """A table whose rows are to be edited: its name, and where Spark keeps it."""

    name: str
    operator: int
    store: str
    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPlan:
    """A savepoint that isn't edited yet.

    savepoint:     the one that it begins with
    name, note:    of the new savepoint
    root:          the folder of all savepoints
    tables:        whose rows are edited
    edit, merge:   the user's functions
    offsets:       source -> the end offset that it gets; other sources keep theirs
    watermark_ms:  the watermark of the next batch; None: as it was
    """

    savepoint: Savepoint
    name: str
    note: str
    root: Storage
    tables: tuple[EditedTable, ...]
    edit: Edit | None
    merge: Merge | None
    offsets: Mapping[str, Any]
    watermark_ms: int | None

    def describe(self) -> str:
        """What will be done, in a few lines; no row is read."""
        manifest = self.savepoint.manifest
        moved = [
            f"offset      of source {name}: {manifest.offsets[name]!r:.200} becomes {offset!r:.200}"
            for name, offset in self.offsets.items()
        ]
        if self.watermark_ms is not None:
            before = "none" if manifest.watermark_ms is None else write_millis(manifest.watermark_ms)
            moved.append(f"watermark   {before} becomes {write_millis(self.watermark_ms)}")
        return "\n".join(
            [
                f"savepoint   {manifest.name} of the job {manifest.job}, batch {manifest.batch}, which stays as it is",
                f"to          {self.root.uri}/{self.name}",
                f"tables      {', '.join(table.name for table in self.tables) or 'their rows stay as they are'}",
                *moved,
            ]
        )

    def preview(self) -> dict[str, EditCounts]:
        """What happens to the rows of each table.  Every row is read and edited, none is written.

        Raises:  as `run`.
        """
        storage = self.savepoint.checkpoint
        batch = read_batch(storage, Batch(self.savepoint.manifest.batch))
        counts: dict[str, EditCounts] = {}
        with ExitStack() as files:
            edits = {(edit.operator, edit.store): edit for edit in self._edits(files)}
            for operator in read_operator_files(storage, batch.batch):
                for store in read_whole_stores(storage, operator):
                    edit = edits.get((operator.operator, store.name))
                    if isinstance(edit, StoreEdit | JoinEdit):
                        count_edited(storage, batch, store, edit)
                        counts |= edit.counts
        return counts

    def run(self, progress: Progress | None = None) -> Savepoint:
        """Make it.

        Raises:  INVALID_REQUEST if a function raises, gives something else than a row, or gives two
                 rows the same key without `merge`; WRONG_TYPE for a value that its column can't
                 have; UNSUPPORTED for rows that can't be edited; SAVEPOINT_EXISTS,
                 SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, NOT_WRITABLE, what the storages raise.
        """
        with ExitStack() as files:
            return make_savepoint(
                self.savepoint,
                self.root,
                self.name,
                note=self.note,
                tables=read_tables(self.savepoint.manifest),
                edits=self._edits(files),
                also=self._move,
                progress=progress,
            )

    def _edits(self, files: ExitStack) -> list[RowEdit]:
        """An edit for each store.

        files:  closes those in which rows are sorted
        """
        names = self.savepoint.manifest.operators
        stores: dict[tuple[int, str], dict[str, str]] = {}
        for table in self.tables:
            stores.setdefault((table.operator, table.store), {})[table.family] = table.name
        if self.edit is None:
            return []
        edits, scanned_ms = list[RowEdit](), self._scanned_ms()
        for (operator, store), tables in stores.items():
            if names.get(operator) != _JOIN:
                edits.append(StoreEdit(operator, store, tables, self.edit, self.merge, may_move=names.get(operator) in _MAY_MOVE))
                continue
            sorters = {family: files.enter_context(Sorter()) for family in tables}
            join = JoinEdit(operator, store, tables, self.edit, sorters, scanned_ms=scanned_ms)
            edits.append(join)
            if store.endswith(INDEXED):
                edits.append(JoinCounts(operator, family_beside_side(store), join.sides[store]))
        return edits

    def _scanned_ms(self) -> int:
        """The watermark of the new plan: joins of format 4 look for rows to remove between that and the commit's."""
        planned_ms = read_batch(self.savepoint.checkpoint, Batch(self.savepoint.manifest.batch)).planned_watermark_ms
        return planned_ms if self.watermark_ms is None else min(planned_ms, self.watermark_ms)

    def _move(self, target: Storage) -> None:
        """Write the position into the new checkpoint."""
        batch = self.savepoint.manifest.batch
        if self.offsets or self.watermark_ms is not None:
            path = f"offsets/{batch}"
            scanned = None if self.watermark_ms is None else self._scanned_ms()
            target.write(path, with_offsets(target.read(path, _BOUNDS.log_bytes), path, self.offsets, scanned))
        if self.watermark_ms is not None:
            path = f"commits/{batch}"
            target.write(path, with_watermark(target.read(path, _BOUNDS.log_bytes), path, self.watermark_ms))


def check_editable(table: EditedTable, operator_name: str, *, is_known: bool) -> None:
    """Raise UNSUPPORTED if the rows of a table can't be edited.

    is_known:  whether Millpond knows the operator
    """
    if not is_known:
        raise unsupported(f"{table.name} is state of {operator_name}, which Millpond doesn't know.", "Name the tables to edit.")

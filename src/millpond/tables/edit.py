"""Plan the edit of a savepoint, whose tables have the names that readers know."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from millpond.catalogue import savepoints_folder
from millpond.checkpoint.operators import SHORT_NAMES, read_operator_files
from millpond.errors import RequestError
from millpond.savepoint.change.edit import EditedTable, EditPlan, check_editable
from millpond.savepoint.change.user_edit import Edit, Merge
from millpond.savepoint.manage.folder import check_free, open_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.schema.moment import time_micros
from millpond.tables.default_tables import unknown_table
from millpond.tables.diff.sides import source_of_savepoint


def plan_edit_savepoint(
    place: str | Path,
    savepoint: str,
    name: str,
    *,
    edit: Edit | None = None,
    merge: Merge | None = None,
    tables: Collection[str] | None = None,
    offsets: Mapping[str, Any] | None = None,
    watermark: dt.datetime | str | None = None,
    note: str = "",
) -> EditPlan:
    """Plan a new savepoint, whose rows or position differ from those of another one.

    place:      the pond that has the savepoint, or the checkpoint that it was made of
    savepoint:  the one to begin with, which stays as it is
    name:       of the new savepoint
    edit:       gets each row of the tables, a `StateRow`, and returns it, changed or not, or None
                to remove it.  The columns are those that Spark stores, which for an aggregate are
                its buffers.  It is called once for a preview and once more for the run
    merge:      gets two rows with the same key after the edit, and returns the one in place of both
    tables:     only these; None for all tables of the savepoint
    offsets:    source -> the end offset that it gets, in the form of an answer's position; None
                lets the source begin anew.  Only the source itself can judge it, when Spark starts
    watermark:  of the next batch: an aware datetime or an ISO text.  Rows that an earlier watermark
                has removed don't come back
    Raises:     UNKNOWN_SAVEPOINT, SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW;
                SAVEPOINT_EXISTS, INVALID_NAME, UNKNOWN_TABLE, INVALID_REQUEST, WRONG_TYPE;
                UNSUPPORTED for state of an operator that Millpond doesn't know.
    """
    found = open_savepoint(place, savepoint)
    root = savepoints_folder(place)
    check_free(root, name)
    offsets = dict(offsets or {})
    if unknown := sorted(offsets.keys() - found.manifest.offsets.keys()):
        hint = f"Its sources: {', '.join(found.manifest.offsets)}."
        raise RequestError("INVALID_REQUEST", f"{found.manifest.name} has no source {unknown[0]!r:.80}.", hint=hint)
    watermark_ms = None if watermark is None else time_micros(watermark) // 1000
    if watermark_ms is not None and watermark_ms < 0:
        raise RequestError("INVALID_REQUEST", "A watermark can't be before 1970.", hint="Spark begins with 1970; use a later time.")
    if edit is None and (merge is not None or tables is not None):
        raise RequestError("INVALID_REQUEST", "There is no function that edits rows.", hint="Give `edit` too.")
    if edit is None and not offsets and watermark_ms is None:
        raise RequestError("INVALID_REQUEST", "Nothing is to be changed.", hint="Give `edit`, `offsets` or `watermark`.")
    return EditPlan(
        savepoint=found,
        name=name,
        note=note,
        root=root,
        tables=() if edit is None else _tables(found, tables),
        edit=edit,
        merge=merge,
        offsets=offsets,
        watermark_ms=watermark_ms,
    )


def _tables(savepoint: Savepoint, names: Collection[str] | None) -> tuple[EditedTable, ...]:
    side = source_of_savepoint(savepoint).open(time.time_ns() // 1_000_000)
    if names is not None:
        side.check_known(names)
        for name in names:
            if name not in side.tables:
                raise unknown_table(name, savepoint.storage.uri, side.tables)
    elif side.unread:
        raise side.unread[0].error
    operators = {operator.operator: operator for operator in read_operator_files(savepoint.checkpoint, side.batch.batch)}
    found: dict[tuple[int, str, str], EditedTable] = {}
    for name, definition in sorted(side.tables.items()):
        if names is not None and name not in names:
            continue
        operator, store, family = definition.store_id
        table = EditedTable(name, operator, store, family or store)
        if (other := found.get((operator, store, table.family))) is not None:
            both = f"{other.name} and {name} are two views of the same rows."
            raise RequestError("INVALID_REQUEST", both, hint="Name one of them as the table to edit.")
        operator_name = operators[operator].name
        check_editable(table, operator_name, is_known=operator_name in SHORT_NAMES)
        found[operator, store, table.family] = table
    return tuple(found.values())

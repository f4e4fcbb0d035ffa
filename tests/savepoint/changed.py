"""Plans that tests run, and let be killed: of savepoints with other rows, and of an archive's window."""

from __future__ import annotations

from pathlib import Path

import millpond
from millpond.catalogue import savepoints_folder
from millpond.savepoint.archive.expire import Window
from millpond.savepoint.archive.layout import find_archive
from millpond.savepoint.change.edit import EditPlan
from millpond.savepoint.change.evolve import EvolvePlan, plan_new_state
from millpond.savepoint.change.redistribute import RedistributePlan, plan_redistribute
from millpond.savepoint.manage.folder import open_savepoint
from millpond.savepoint.rewrite.row_edit import NewColumns
from millpond.schema.types import Field, atomic
from millpond.schema.value_change import ValueChange
from spark_files.checkpoint import KEY, VALUE, schema_file

ADDED = (Field("w", atomic("long")),)


def plan_evolved(place: str | Path, savepoint: str, name: str) -> EvolvePlan:
    """A `WrittenCheckpoint`'s rows get a second column, which begins with 7."""
    after = VALUE + ADDED
    change = ValueChange(operator=0, store="default", before=VALUE, after=after, places=(0, None), start=(None, 7))
    return plan_new_state(
        open_savepoint(place, savepoint),
        savepoints_folder(place),
        name,
        edits=(NewColumns(change),),
        schemas={"state/0/0/_metadata/schema": schema_file(KEY, after)},
        tables=(),
        lines=(),
    )


def plan_edited(place: str | Path, savepoint: str, name: str) -> EditPlan:
    """The first column of each value, a number, grows by 1000."""

    def edit(row: millpond.StateRow) -> millpond.StateRow:
        first = next(iter(row.value))
        row.value[first] += 1000
        return row

    return millpond.plan_edit_savepoint(place, savepoint, name, edit=edit)


def plan_redistributed(place: str | Path, savepoint: str, name: str) -> RedistributePlan:
    """Rows that wait in two shards get three, in four partitions."""
    return plan_redistribute(place, savepoint, name, shards=3, partitions=4)


def open_window(archive: str | Path, keep_seconds: float) -> Window:
    """The window of an archive that has no writer now."""
    found = find_archive(archive)
    assert found is not None
    window = Window(found, keep_seconds)
    window.load(found.batches())
    return window

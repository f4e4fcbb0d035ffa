"""Delete a savepoint, or what a killed command left of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import savepoints_folder
from millpond.errors import RequestError, SavepointError
from millpond.savepoint.archive.layout import find_archive
from millpond.savepoint.manage.folder import list_savepoints, open_savepoint, remove
from millpond.savepoint.manifest import Savepoint, check_savepoint_name
from millpond.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePlan:
    """A deletion that isn't done yet.

    name, folder:  of the savepoint
    savepoint:     None if it is incomplete or can't be read
    sharing:       savepoints that were made after it and share its files; each has all it needs
    """

    name: str
    folder: Storage
    savepoint: Savepoint | None
    sharing: tuple[str, ...]

    def describe(self) -> str:
        """What will be done, in a few lines."""
        if self.savepoint is None:
            return f"delete      what there is of {self.name}, in {self.folder.uri}; nothing can be restored from it"
        manifest = self.savepoint.manifest
        lines = [
            f"delete      {self.name}, batch {manifest.batch} of {manifest.job}: {len(manifest.files)} files, "
            f"{manifest.size_bytes:,} bytes, in {self.folder.uri}",
        ]
        if self.sharing:
            lines.append(f"stays       {', '.join(self.sharing)}: a file that they share stays as long as one of them has it")
        return "\n".join(lines)

    def run(self) -> None:
        """Delete it.  Raises what the storage raises; then it can be run again."""
        remove(self.folder)


def plan_delete_savepoint(place: str | Path, name: str) -> DeletePlan:
    """Plan to delete a savepoint.

    Raises:  UNKNOWN_SAVEPOINT, INVALID_NAME; INVALID_REQUEST for an archive.
    """
    check_savepoint_name(name)
    savepoint = None
    if find_archive(place) is not None:
        raise RequestError(
            "INVALID_REQUEST",
            f"{place} is an archive, whose batches aren't deleted one by one.",
            hint="Let the archiver delete old ones: millpond archive … --keep-for 7d.",
        )
    try:
        savepoint = open_savepoint(place, name)
    except SavepointError as error:
        if error.condition == "UNKNOWN_SAVEPOINT":
            raise
    return deletion(savepoints_folder(place).folder(name), name, savepoint, list_savepoints(place).found)


def deletion(folder: Storage, name: str, savepoint: Savepoint | None, every: list[Savepoint]) -> DeletePlan:
    """The plan for one savepoint.

    every:   all savepoints of the place
    """
    sharing = tuple(found.manifest.name for found in every if found.manifest.shares_with == name)
    return DeletePlan(name=name, folder=folder, savepoint=savepoint, sharing=sharing)

"""Remove an old version: its job with all state, and this machine's replica of it.

1. Record in the name's file that it goes, provided that the name doesn't mean it.  From here on no
   cut-over leads to it, also none that was planned before.
2. Take the job's lease, so that it doesn't run and isn't started.
3. Remove job.json first: readers see the job or they don't.  Then the rest, the checkpoint last.
4. A command that was killed can be run again; until then, the version can't be started.

Savepoints and archives of the job stay: each has all that it needs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import job_of
from millpond.errors import RequestError
from millpond.ownership.lease import NAME as LEASE
from millpond.ownership.lease import check_not_held, leased
from millpond.replica.folder import ReplicaPlace
from millpond.savepoint.manage.folder import list_savepoints
from millpond.settings import home
from millpond.storage import Storage, open_storage
from millpond.tables.versions.listing import find_name
from millpond.versions import NameFile, job_name, retire

_JOB = "job.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetirePlan:
    """A removal that isn't done yet.

    pond:        where the version is
    name, version:  which one
    folder:      of its job
    checkpoint:  of its job, if it lies in the folder
    savepoints:  of the job, which stay
    """

    pond: Storage
    name: str
    version: int
    folder: Storage
    checkpoint: str
    savepoints: tuple[str, ...]

    def describe(self) -> str:
        """What will be done, in a few lines."""
        lines = [
            f"remove      version {self.version} of {self.name}, the job {job_name(self.name, self.version)}",
            f"state       {self.folder.uri} with all that is in it; nobody can cut back to this version",
        ]
        if self.savepoints:
            lines.append(f"stays       {', '.join(self.savepoints)}: a savepoint has all that it needs")
        return "\n".join(lines)

    def run(self) -> bool:
        """Remove it; returns whether this machine's replica is gone too, which another process may follow still.

        Raises:  VERSION_IN_USE if the name means it by now; CUTOVER_TAKEN, CHECKPOINT_IN_USE; what
                 the storage raises: then it can be run again.
        """
        with leased(self.folder, f"the command that retires {job_name(self.name, self.version)}"):  # 2
            found = find_name(self.pond, self.name)
            _check_not_current(found, self.version)
            retire(self.pond, found, self.version)  # 1
            self.folder.delete(_JOB)  # 3
            for name in sorted(self.folder.names(), key=lambda name: name.startswith("checkpoint")):
                if name != LEASE:
                    self.folder.delete_all(name)
                    self.folder.delete(name)
        self.folder.delete_all()
        return _remove_replicas(self.checkpoint)


def plan_retire(place: str | Path, name: str, version: int) -> RetirePlan:
    """Plan to remove a version and its state.

    Raises:  UNKNOWN_VERSION; VERSION_IN_USE if the name means it; CHECKPOINT_IN_USE if its job
             runs; INVALID_REQUEST if its checkpoint lies outside of the pond.
    """
    pond = open_storage(place)
    found = find_name(pond, name)
    _check_not_current(found, version)
    job = job_name(name, version)
    folder = job_of(place, job)
    if not folder.storage.names() and not (version in found.retired and _is_there(folder.storage)):
        raise RequestError(
            "UNKNOWN_VERSION",
            f"{name} has no version {version} in {place}.",
            hint="List them: millpond versions list.",
            table=name,
            version=version,
        )
    check_not_held(folder.storage)
    saved = tuple(each.manifest.name for each in list_savepoints(place).found if each.manifest.job == job)
    return RetirePlan(pond=pond, name=name, version=version, folder=folder.storage, checkpoint=folder.checkpoint, savepoints=saved)


def _is_there(folder: Storage) -> bool:
    """Whether a killed command has left the folder itself, without a file in it."""
    path = folder.local_path()
    return path is not None and path.is_dir()


def _check_not_current(found: NameFile, version: int) -> None:
    """Raise VERSION_IN_USE if a name means this version."""
    if found.current == version:
        raise RequestError(
            "VERSION_IN_USE",
            f"{found.name} means version {version}.",
            hint=f"Cut over to another one first: millpond versions cutover … {found.name} --to VERSION.",
            table=found.name,
            version=version,
        )


def _remove_replicas(checkpoint: str) -> bool:
    """Whether none is left; those that are followed stay."""
    places = ReplicaPlace.all_of(Path(home()), open_storage(checkpoint).uri)
    for place in places:
        if place.try_lock():
            try:
                shutil.rmtree(place.path, ignore_errors=True)
            finally:
                place.unlock()
    return not any(place.path.exists() for place in places)

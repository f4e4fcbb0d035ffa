"""Fork a job: a second job in the pond, which begins with the state of a savepoint.

1. Claim the new job's name: of two forks with one name, one goes on.
2. Restore the savepoint as the new job's checkpoint, under an id of its own.
3. Write the definitions of its tables, under names of their own: two jobs of a pond can't have
   tables of one name.
4. Write job.json last: before it, no reader sees the job.

If anything fails, the new job's folder is emptied.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import JobFolder, create_job, is_pond, job_of, read_catalogue
from millpond.checkpoint.log import committed_batches, job_id
from millpond.errors import CheckpointError, DefinitionError, RequestError
from millpond.ownership.lease import check_not_held, leased
from millpond.savepoint.manage.folder import open_savepoint
from millpond.savepoint.manifest import Manifest, Savepoint
from millpond.savepoint.restore import restore_files, restore_tables
from millpond.savepoint.rewrite.form import AS_IT_WAS, StateForm, check_can_rewrite
from millpond.savepoint.threads import Progress
from millpond.schema.definition.table import check_table_name

_CLAIM = "fork.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPlan:
    """A fork that isn't made yet.

    savepoint:  the state that it begins with
    pond:       the pond that gets the new job
    job:        the new job's name
    newest:     the newest batch of the job that is forked; None if that job isn't there any more
    form:       how the new job's state is written
    """

    savepoint: Savepoint
    pond: str | Path
    job: str
    newest: int | None
    form: StateForm = AS_IT_WAS

    def table(self, name: str) -> str:
        """The name of a table in the fork: the new job's for one that has the job's, else below it."""
        return self.job if name == self.savepoint.manifest.job else f"{self.job}.{name}"

    def describe(self) -> str:
        """What will be done, and what both jobs will write, in a few lines."""
        manifest = self.savepoint.manifest
        lines = [
            f"fork        {manifest.job} as {self.job}, from {manifest.name}, batch {manifest.batch}",
            f"copies      {len(manifest.files)} files, {manifest.size_bytes:,} bytes",
        ]
        if self.form.is_new:
            lines.append(f"state       {self.form.describe()}")
        if manifest.tables:
            lines.append(f"tables      {', '.join(f'{name} as {self.table(name)}' for name in sorted(manifest.tables))}")
        if self.newest is not None and self.newest > manifest.batch:
            first, last = manifest.batch + 1, self.newest
            batches = f"batch {last}" if first == last else f"batches {first} to {last}"
            lines.append(f"again       the fork reads the input of {batches} of {manifest.job} once more")
        lines.append("sink        give the fork a sink of its own: a sink of both jobs gets each row twice")
        return "\n".join(lines)

    def run(self, progress: Progress | None = None) -> JobFolder:
        """Make it; returns the new job's folder.

        Raises:  TABLE_EXISTS if there is a job of this name; CHECKPOINT_IN_USE if somebody starts
                 it now; SAVEPOINT_DAMAGED, NOT_WRITABLE, and what the storages raise.
        """
        folder = job_of(self.pond, self.job)
        _check_free(folder)
        claimed = folder.storage.create(_CLAIM, json.dumps({"writer": uuid.uuid4().hex}).encode())  # 1
        if not claimed:
            raise _exists(folder, "is being made by another command, or one was killed in making it")
        is_begun = False
        try:
            with leased(folder.storage, "millpond fork"):  # nobody starts the job meanwhile
                is_begun = True
                return self._fill(folder, progress)
        except BaseException:
            if not is_begun:
                folder.storage.delete(_CLAIM)
            raise

    def _fill(self, folder: JobFolder, progress: Progress | None) -> JobFolder:
        try:
            restore_files(self.savepoint, folder.open_checkpoint(), str(uuid.uuid4()), progress, self.form)  # 2
            restore_tables(folder, self.savepoint.manifest, self.table)  # 3
            made = create_job(self.pond, self.job)  # 4
        except BaseException:
            folder.storage.delete_all()
            raise
        folder.storage.delete(_CLAIM)
        return made


def plan_fork(
    pond: str | Path,
    name: str,
    job: str,
    *,
    partitions: int | None = None,
    provider: str | None = None,
    checkpoint_format: int | None = None,
    codec: str | None = None,
    row_checksum: bool | None = None,
) -> ForkPlan:
    """Plan a second job with the state of a savepoint.

    pond:    has the savepoint, and gets the new job
    name:    of the savepoint
    job:     the new job's name, for `start(…, table=…)`
    partitions, provider, checkpoint_format, codec, row_checksum:  write the new job's state anew, as
             `plan_restore` does
    Raises:  UNKNOWN_SAVEPOINT, SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW;
             INVALID_NAME; INVALID_REQUEST if this isn't a pond; TABLE_EXISTS if there is a job of
             this name; UNSUPPORTED if the state can't have this form.
    """
    savepoint = open_savepoint(pond, name)
    folder = job_of(pond, job)
    if not is_pond(pond):
        raise RequestError(
            "INVALID_REQUEST",
            f"{pond} isn't a pond.",
            hint="Restore the savepoint to a folder instead: millpond savepoint restore.",
        )
    _check_free(folder)
    form = StateForm(
        partitions=partitions, provider=provider, checkpoint_format=checkpoint_format, codec=codec, row_checksum=row_checksum
    )
    if form.is_new:
        check_can_rewrite(savepoint.checkpoint, savepoint.manifest.batch, form)
    plan = ForkPlan(savepoint=savepoint, pond=pond, job=job, newest=_newest(pond, savepoint.manifest), form=form)
    for name in savepoint.manifest.tables:
        check_table_name(plan.table(name))
    return plan


def _newest(pond: str | Path, manifest: Manifest) -> int | None:
    """The newest batch of the job that a savepoint was made of; None if it isn't there any more."""
    for folder in read_catalogue(pond).jobs:
        storage = folder.open_checkpoint()
        try:
            if folder.job == manifest.job and job_id(storage) == manifest.job_id:
                return max(committed_batches(storage), default=None)
        except CheckpointError:  # its checkpoint is gone or damaged
            return None
    return None


def _check_free(folder: JobFolder) -> None:
    made_now = "is being made by another command, or one was killed in making it"
    if folder.storage.stamp("job.json") is not None:
        raise _exists(folder, "exists already")
    if folder.storage.stamp(_CLAIM) is not None:
        raise _exists(folder, made_now)
    check_not_held(folder.storage)
    if folder.storage.names():
        raise _exists(folder, made_now)


def _exists(folder: JobFolder, what: str) -> DefinitionError:
    return DefinitionError(
        "TABLE_EXISTS",
        f"The job {folder.job!r} {what}: {folder.storage.uri}.",
        hint="Choose another name; if nobody makes it now, delete that folder.",
        job=folder.job,
    )

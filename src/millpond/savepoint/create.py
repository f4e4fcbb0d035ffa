"""Create a savepoint of a job, which may run meanwhile and isn't touched.

1. Take the newest committed batch, or the named one, and find the files that a restart needs.
2. Copy them.  A file that is final under its name may be shared: a second name on the same disk, or
   the copy that the job's last savepoint has.
3. Spark may have deleted a file meanwhile: begin again with a newer batch, and keep shared files.
4. Look again: commits/N must still be the file that was read, or the job was replaced.
5. Count the rows of the copy, which decodes all of it; each must lie in its partition.
6. Let all of it survive a crash, and only then write the manifest.

If anything fails, the savepoint's folder is emptied; if the program is killed, the folder has no
manifest, and nothing takes it for a savepoint.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from millpond.catalogue import JobFolder, find_job, savepoints_folder
from millpond.checkpoint.log import (
    CommittedBatch,
    check_still_committed,
    committed_batches,
    job_id,
    newest_committed,
    read_batch,
    read_planned_ms,
)
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.checkpoint.restart_files import RestartFile, restart_files
from millpond.checkpoint.write_times import BATCHES, changes_out_of_place, read_times
from millpond.errors import CheckpointError, MillpondError, SavepointError
from millpond.savepoint.describe import describe_batch
from millpond.savepoint.in_place.file_sink import SINK, check_upto, log_of
from millpond.savepoint.log_problems import log_problems
from millpond.savepoint.manage.folder import check_free, claim, list_savepoints, remove
from millpond.savepoint.manifest import CHECKPOINT, NAME, Manifest, Savepoint, SavepointFile, check_savepoint_name
from millpond.savepoint.row_problems import row_problems
from millpond.savepoint.rows import PartitionId, count_rows
from millpond.savepoint.threads import Progress, do_each, threads_between
from millpond.settings import FileBounds
from millpond.storage import Storage, uri_of
from millpond.storage.below import files_below
from millpond.storage.copying import Copied, copy_file

# If Spark's clean-up is quicker than the copy so often, its settings keep too few batches.
_ATTEMPTS = 20
_BOUNDS = FileBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointPlan:
    """A savepoint that isn't made yet.

    name, note:  of the savepoint
    job:         the job's folder
    batch:       None for the newest one when it runs
    newest:      the newest batch when it was planned
    root:        the folder of all savepoints
    parent:      the job's last savepoint, whose files it can share; None if there is none
    count:       whether the rows are counted
    sink:        URI of a file sink whose log is copied; None if none is
    is_stateless:  whether the query keeps no state
    """

    name: str
    note: str
    job: JobFolder
    batch: int | None
    newest: int
    root: Storage
    parent: Savepoint | None = field(repr=False)
    count: bool = True
    sink: str | None = None
    is_stateless: bool = False

    def describe(self) -> str:
        """What will be done, in a few lines."""
        batch = f"batch {self.newest}, or a newer one" if self.batch is None else f"batch {self.batch}"
        lines = [
            f"savepoint   {self.name}",
            f"job         {self.job.job} ({self.job.job_state()}), which isn't touched",
            f"checkpoint  {self.job.checkpoint}",
            f"batch       {batch}",
            f"to          {self.root.uri}/{self.name}",
        ]
        if self.sink is not None:
            lines.append(f"sink        the log of {self.sink}, up to that batch")
        if self.parent is not None:
            lines.append(f"shares      files with {self.parent.manifest.name} where they are the same")
        return "\n".join(lines)

    def run(self, progress: Progress | None = None) -> Savepoint:
        """Make it.

        Raises:  SAVEPOINT_EXISTS, SAVEPOINT_INCOMPLETE; BATCH_GONE if the named batch isn't there,
                 or clean-up was quicker each time; what reading the checkpoint raises; NOT_WRITABLE.
        """
        folder = claim(self.root, self.name)
        try:
            manifest = _Creation(self, folder, progress).run()
        except BaseException:
            remove(folder)
            raise
        return Savepoint(manifest, folder)


def plan_savepoint(
    place: str | Path,
    name: str,
    *,
    job: str | None = None,
    batch: int | None = None,
    note: str = "",
    count: bool = True,
    sink: str | Path | None = None,
    stateless: bool = False,
    allow: Iterable[str | Path] = (),
) -> SavepointPlan:
    """Plan a savepoint of a job's newest committed batch.

    place:   a pond, or the folder of a checkpoint
    name:    unique in the place
    job:     needed in a pond with several jobs
    batch:   another batch that Spark still keeps
    note:    a text for people
    count:   count the rows, by decoding all of the state; verifying does it as well
    sink:    the folder that the job's file sink writes to, whose log is copied as well: then
             `plan_rollback` can truncate it
    stateless:  the query keeps no state: else a checkpoint without any has lost it, and is refused
    allow:   places outside of the pond where the job's checkpoint may lie, as for `open`
    Raises:  NO_CHECKPOINT, PLACE_NOT_ALLOWED, INVALID_NAME, INVALID_REQUEST, NO_COMMITTED_BATCH,
             BATCH_GONE; SAVEPOINT_EXISTS, SAVEPOINT_INCOMPLETE; SINK_MISMATCH.
    """
    check_savepoint_name(name)
    if sink is not None:
        log_of(uri_of(sink))
    folder = find_job(place, job, allow=allow)
    storage = folder.open_checkpoint()
    batches = find_batches(storage, batch)
    root = savepoints_folder(place)
    check_free(root, name)
    identity = job_id(storage)
    parents = [s for s in list_savepoints(place).found if s.manifest.job_id == identity]
    return SavepointPlan(
        name=name,
        note=note,
        job=folder,
        batch=batch,
        newest=batches[-1],
        root=root,
        parent=parents[-1] if parents else None,
        count=count,
        sink=None if sink is None else uri_of(sink),
        is_stateless=stateless,
    )


def find_batches(storage: Storage, wanted: int | None) -> list[Batch]:
    """The committed batches of a checkpoint, among them the wanted one.

    Raises:  NO_COMMITTED_BATCH, BATCH_GONE.
    """
    newest_committed(storage)
    batches = committed_batches(storage)
    if wanted is not None and wanted not in batches:
        raise _batch_gone(storage, wanted, batches)
    return batches


class _Creation:
    """One run of a plan."""

    def __init__(self, plan: SavepointPlan, folder: Storage, progress: Progress | None) -> None:
        self._plan = plan
        self._folder = folder
        self._progress = progress
        self._source = plan.job.open_checkpoint()
        self._target = folder.folder(CHECKPOINT)
        self._shared: dict[str, Copied] = {}
        parent = plan.parent
        self._parent = None if parent is None else parent.checkpoint
        self._of_parent = {} if parent is None else {f.path: f.content for f in parent.manifest.files}

    def run(self) -> Manifest:
        batch, files = self._copy()
        if self._plan.sink is not None:
            files = {**files, **self._copy_sink(self._plan.sink, batch.batch)}
        counted = {}
        if self._plan.count:
            counted = self._count_rows(batch, len(files))  # 5
        self._folder.sync()  # 6
        plan, parent = self._plan, self._plan.parent
        shared = parent is not None and any(f.is_final and f.path in self._of_parent for f in files)
        manifest = describe_batch(
            plan.job,
            self._target,
            batch,
            [(file, SavepointFile(path=file.path, size_bytes=c.size_bytes, sha256=c.sha256)) for file, c in files.items()],
            plan.job.entries(),
            name=plan.name,
            note=plan.note,
            parent=None if parent is None else parent.manifest.name,
            shares_with=parent.manifest.name if shared and parent is not None else None,
            rows=counted,
        )
        manifest = replace(manifest, sink=plan.sink)
        self._folder.write(NAME, manifest.to_bytes())
        return manifest

    def _copy(self) -> tuple[CommittedBatch, dict[RestartFile, Copied]]:
        gone = ""  # what is gone twice wasn't cleaned up meanwhile
        for _ in range(_ATTEMPTS):
            try:
                batch = self._choose()
                refuse_real_time(self._source, batch)
                known = self._plan.job.known_state(is_stateless=self._plan.is_stateless)
                files = restart_files(self._source, batch, known=known)  # 1
                copied = self._copy_all(files)  # 2
                for error in log_problems(self._source, batch):
                    raise error
                self._check_times(files)
                check_still_committed(self._source, batch)  # 4
            except CheckpointError as error:
                if error.condition != "FILE_GONE" or self._plan.batch is not None or error.message == gone:
                    raise
                gone = error.message
                continue  # 3
            names = {file.path for file in files}
            for path in [path for path in files_below(self._target) if path not in names]:
                self._target.delete(path)
            return batch, copied
        raise SavepointError(
            "BATCH_GONE",
            f"Spark deleted files of {_ATTEMPTS} batches before they were copied.",
            hint="Let Spark keep more batches: set spark.sql.streaming.minBatchesToRetain to 100, its default.",
        )

    def _check_times(self, files: list[RestartFile]) -> None:
        """Raise CORRUPT_FILE if a file of changes isn't the one that its batch wrote.  Of a remote checkpoint nothing is asked."""
        if self._source.is_remote:
            return
        started = dict[int, int]()
        for number in committed_batches(self._source)[-BATCHES:]:
            with contextlib.suppress(CheckpointError):  # of older batches, which nothing needs
                started[number] = read_planned_ms(self._source, number)
        names = {file.path for file in files}
        for found in changes_out_of_place(self._source, read_times(self._source, started)):
            if found.path in names:
                raise CheckpointError(
                    "CORRUPT_FILE",
                    f"{self._source.uri}/{found.path} is {found.age} than {found.than}: batch {found.batch} didn't write it.",
                    hint="Restore the file from a copy; millpond repair shows what else is wrong.",
                    path=f"{self._source.uri}/{found.path}",
                )

    def _copy_sink(self, sink: str, batch: int) -> dict[RestartFile, Copied]:
        """The log of a file sink up to the batch, whose entry Spark wrote before it committed the batch."""
        log = log_of(sink)
        found: dict[RestartFile, Copied] = {}
        for name in check_upto(sink, log, batch):
            file = RestartFile(path=SINK + name, most_bytes=_BOUNDS.source_log_bytes)
            found[file] = copy_file(log, name, self._target, file.path, most_bytes=file.most_bytes)
        return found

    def _choose(self) -> CommittedBatch:
        batches = committed_batches(self._source)
        wanted = self._plan.batch
        if not batches or (wanted is not None and wanted not in batches):
            raise _batch_gone(self._source, wanted or 0, batches)
        return read_batch(self._source, batches[-1] if wanted is None else Batch(wanted))

    def _copy_all(self, files: list[RestartFile]) -> dict[RestartFile, Copied]:
        threads = threads_between(self._source, self._target)
        return dict(zip(files, do_each(self._copy_one, files, threads=threads, progress=self._progress), strict=True))

    def _copy_one(self, file: RestartFile) -> Copied:
        if file.path in self._shared:
            return self._shared[file.path]
        copied = self._of_parent.get(file.path) if file.is_final else None
        if copied is not None and self._parent is not None:
            try:
                copy_file(self._parent, file.path, self._target, file.path, most_bytes=file.most_bytes, share=True, known=copied)
            except CheckpointError:  # the parent was deleted or damaged meanwhile
                copied = None
        if copied is None:
            copied = copy_file(self._source, file.path, self._target, file.path, most_bytes=file.most_bytes, share=file.is_final)
        if file.is_final:
            self._shared[file.path] = copied
        return copied

    def _count_rows(self, batch: CommittedBatch, files: int) -> dict[PartitionId, int]:
        counted: Counter[PartitionId] = Counter()
        for where, rows in count_rows(self._target, batch):
            if isinstance(rows, MillpondError):
                raise rows
            counted[where] += rows
            if self._progress is not None:  # which may end this
                self._progress(files, files)
        for found in row_problems(self._target, batch):
            raise found.error or CheckpointError(
                "CORRUPT_FILE",
                f"{self._source.uri}/{found.folder}: {found}",
                hint="Restore its files from a copy; millpond repair shows what else is wrong.",
                path=f"{self._source.uri}/{found.folder}",
            )
        return counted


def _batch_gone(storage: Storage, batch: int, batches: list[Batch]) -> SavepointError:
    there = f"there are {batches[0]} to {batches[-1]}" if batches else "there is none"
    return SavepointError(
        "BATCH_GONE",
        f"{storage.uri} has no committed batch {batch}; {there}.",
        hint="Choose one of these, or leave the batch out for the newest.",
        batch=batch,
    )

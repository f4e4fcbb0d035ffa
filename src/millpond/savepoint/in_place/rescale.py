"""Rescale a stopped job: its state under another number of partitions, in its own place.

1. Make a savepoint of the last committed batch, in a folder for the time of the command.
2. Restore it under the new number: this writes the state anew, and compares what it has written
   with what it has read.
3. Copy the plan of the batch after it, if there is one that isn't committed: a sink may have its
   rows already, so Spark must do that very batch again.
4. Count the rows of the copy: of each store as many as before.
5. Note in the copy that the job was rescaled, so that replicas go on.
6. Let the copy take the checkpoint's place.  Of a job that Millpond doesn't start, the copy gets a
   place of its own, and nothing is replaced.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millpond.catalogue import JobFolder, create_beside
from millpond.checkpoint.identity import write_rescaled
from millpond.checkpoint.log import read_batch, read_conf
from millpond.checkpoint.position import Batch
from millpond.errors import MillpondError, RequestError
from millpond.ownership.take_over import TakeOver
from millpond.savepoint.in_place.exchange import UNKNOWN, Found, check_target, find_stopped_job, savepoint_in, take_place
from millpond.savepoint.manifest import Savepoint, damaged
from millpond.savepoint.restore import METADATA, check_empty, encode_metadata, restore_files
from millpond.savepoint.rewrite.form import StateForm, check_can_rewrite
from millpond.savepoint.rows import count_rows
from millpond.savepoint.threads import Progress
from millpond.schema.strict_json import parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage, open_storage
from millpond.storage.below import files_below
from millpond.storage.copying import copy_file
from millpond.storage.patched import PatchedStorage

_BOUNDS = FileBounds()
# Hidden, so that it counts neither as a part of the checkpoint nor as something in the way.
_WORK = ".rescale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled:
    """A job that was rescaled.

    job:         its folder, with the checkpoint that it has now
    checkpoint:  URI of the new checkpoint
    kept:        URI of the old one; None if nothing was replaced
    batch:       after which the job goes on
    rows:        of its state, as many as before
    partitions:  of its state now
    """

    job: JobFolder
    checkpoint: str
    kept: str | None
    batch: int
    rows: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RescalePlan:
    """A rescale that isn't done yet.

    job:         the job's folder
    batch:       its last committed batch
    before:      the number of partitions of its state
    partitions:  the new number
    target:      where the copy goes; None if it takes the checkpoint's place
    take_over:   whether to take the job's lease from whoever has it
    """

    job: JobFolder
    batch: int
    before: int
    partitions: int
    target: Storage | None
    take_over: bool = False

    def describe(self) -> str:
        """What will be done, in a few lines."""
        lines = [
            f"rescale     {self.job.job}, from {self.before} to {self.partitions} partitions, after batch {self.batch}",
            f"checkpoint  {self.job.checkpoint}",
        ]
        if self.target is None:
            lines.append("replaces    the checkpoint by the new one, when all rows are found equal; the old one stays beside it")
        else:
            lines += [f"to          {self.target.uri}", "replaces    nothing: start the job from there", f"careful     {UNKNOWN}"]
        return "\n".join(lines)

    def run(self, progress: Progress | None = None) -> Rescaled:
        """Do it.

        Raises:  CHECKPOINT_IN_USE if the job runs; UNSUPPORTED; SAVEPOINT_DAMAGED if the copy isn't
                 equal; NOT_WRITABLE, and what reading the checkpoint raises.  Then the job is as it
                 was.
        """
        counted: list[tuple[int, int]] = []
        if self.target is not None:
            return self._run_beside(self.target, progress)

        def make(over: TakeOver) -> None:
            batch, rows = self._copy(over.folder, over.work, over.copy, over.place, progress)
            counted.append((batch, rows))

        done = take_place(self.job, "rescale", make, take_over=self.take_over)
        ((batch, rows),) = counted
        return Rescaled(
            job=done.job,
            checkpoint=done.job.checkpoint,
            kept=done.kept,
            batch=batch,
            rows=rows,
            partitions=self.partitions,
        )

    def _run_beside(self, target: Storage, progress: Progress | None) -> Rescaled:
        check_empty(target)
        source = self.job.open_checkpoint()
        found = Found.of(source)

        def last() -> None:
            found.check(source)
            folder = create_beside(target.uri, self.job.job)
            for entry in self.job.entries():
                folder.write_definition(entry)
            target.delete_all(_WORK)

        target.delete_all(_WORK)  # what a killed command left
        try:
            batch, rows = self._copy(self.job, target.folder(_WORK), target, target.uri, progress, found, last)
        except BaseException:
            target.delete_all()
            raise
        folder = create_beside(target.uri, self.job.job)
        return Rescaled(job=folder, checkpoint=target.uri, kept=None, batch=batch, rows=rows, partitions=self.partitions)

    def _copy(
        self,
        folder: JobFolder,
        work: Storage,
        copy: Storage,
        place: str,
        progress: Progress | None,
        found: Found | None = None,
        last: Callable[[], None] = lambda: None,
    ) -> tuple[int, int]:
        """Steps 1 to 5; returns the batch and how many rows there are.

        last:  what else is to be done before Spark can start from the copy
        """
        source = folder.open_checkpoint()
        found = found or Found.of(source)
        if not found.committed:
            raise RequestError("INVALID_REQUEST", f"{source.uri} has no committed batch.", hint="Start the job first.")
        number = found.committed[-1]
        made = savepoint_in(work, folder, number, progress, count=True)  # 1
        rows = 0

        def also() -> None:
            nonlocal rows
            if found.unfinished is not None:
                copy_plan(source, number, found.unfinished, copy)  # 3
            whole = PatchedStorage(copy)  # as it will be with Spark's file `metadata`
            whole.write(METADATA, encode_metadata(made.manifest.job_id))
            rows = _check_rows(made, whole)  # 4
            before, after = (read_batch(storage, Batch(number)).fingerprint for storage in (source, whole))
            write_rescaled(source, copy, before, after)  # 5
            work.delete_all("savepoint")
            last()

        form = StateForm(partitions=self.partitions)
        restore_files(made, copy, made.manifest.job_id, progress, form, place=place, also=also)  # 2
        return number, rows


def plan_rescale(
    place: str | Path, partitions: int, *, job: str | None = None, to: str | Path | None = None, take_over: bool = False
) -> RescalePlan:
    """Plan to give the state of a stopped job another number of partitions.

    place:       a pond, or the folder of a checkpoint
    partitions:  the new number
    job:         needed in a pond with several jobs
    to:          for a job that Millpond doesn't start, the new checkpoint's folder, which must be
                 empty; by default beside the old one
    take_over:   take the job's lease from whoever has it; only if that can't write any more
    Raises:      NO_CHECKPOINT, NO_COMMITTED_BATCH; CHECKPOINT_IN_USE if the job runs;
                 TARGET_NOT_EMPTY; INVALID_REQUEST; UNSUPPORTED if the state can't be divided so.
    """
    folder, newest = find_stopped_job(place, job, take_over=take_over)
    check_target(folder, to)
    source = folder.open_checkpoint()
    check_can_rewrite(source, newest, StateForm(partitions=partitions))
    before = read_batch(source, Batch(newest)).settings.partitions
    if before == partitions:
        raise RequestError(
            "INVALID_REQUEST", f"The state of {folder.job} has {partitions} partitions already.", hint="Name another number."
        )
    target = None
    if not folder.is_inside:
        target = open_storage(to or f"{folder.checkpoint}-of-{partitions}")
        check_empty(target)
    return RescalePlan(job=folder, batch=newest, before=before, partitions=partitions, target=target, take_over=take_over)


def copy_plan(source: Storage, committed: int, planned: int, copy: Storage) -> None:
    """Copy the plan of a batch that isn't committed, with the settings that the copy has after the rewrite."""
    old, new = (read_conf(storage, Batch(committed)) for storage in (source, copy))
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    there = set(files_below(copy, "sources"))
    for path in files_below(source, "sources"):
        if path not in there:
            copy_file(source, path, copy, path, most_bytes=_BOUNDS.source_log_bytes)
    lines = source.read(f"offsets/{planned}", _BOUNDS.log_bytes).decode().split("\n")
    data = parse_json(lines[1])
    lines[1] = json.dumps({**data, "conf": {**data.get("conf", {}), **changed}}, separators=(",", ":"))
    copy.write(f"offsets/{planned}", "\n".join(lines).encode())


def _check_rows(made: Savepoint, copy: Storage) -> int:
    """Count the rows of the copy.  Raises SAVEPOINT_DAMAGED if a store has more or fewer than before."""
    before, after = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for state in made.manifest.partitions:
        before[state.operator, state.store] += state.rows or 0
    for (operator, store, _), rows in count_rows(copy, read_batch(copy, Batch(made.manifest.batch))):
        if isinstance(rows, MillpondError):
            raise rows
        after[operator, store] += rows
    if +before != +after:
        raise damaged(copy.uri, f"has {after.total()} rows, and the state had {before.total()}")
    return after.total()

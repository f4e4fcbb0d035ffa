"""Roll a stopped job back: state, offsets, commits and the log of its file sink, all to one batch.

1. Take a savepoint; or make one of a batch that Spark still keeps, in a folder for the time of the
   command.
2. Restore it as a copy.  So nothing of a later batch stays: in a checkpoint that is rewound in its
   place, Spark takes old snapshots of later versions for new ones, without any error.
3. Prepare the log of the file sink up to that batch: from the savepoint, or from the sink's own log
   while that still tells the batches apart.  Spark skips a batch whose number is in the log.
4. Let the copy take the checkpoint's place, and the log that of the sink's.  The old ones stay
   beside them.  Data files that are no longer listed stay, too.

Of a job that Millpond doesn't start, both get places of their own, and nothing is replaced.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from millpond.catalogue import JobFolder, create_beside
from millpond.checkpoint.log import job_id
from millpond.errors import RequestError
from millpond.ownership.take_over import TakeOver
from millpond.savepoint.create import find_batches
from millpond.savepoint.in_place.exchange import UNKNOWN, Found, check_target, find_stopped_job, savepoint_in, take_place
from millpond.savepoint.in_place.file_sink import (
    LOG,
    SINK,
    check_upto,
    log_of,
    mismatch,
    newest_entries,
    read_listed,
    write_anchored,
)
from millpond.savepoint.manage.folder import open_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.restore import check_empty, restore_files, restore_tables
from millpond.savepoint.threads import Progress
from millpond.settings import FileBounds
from millpond.storage import Storage, open_storage, uri_of
from millpond.storage.copying import copy_file, hash_file
from millpond.storage.names import scheme_of

_BOUNDS = FileBounds()
_SHOWN = 5
# Hidden, as in `rescale`.
_WORK = ".rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """What becomes of a file sink.

    sink:        its URI
    entries:     of its log that stay
    savepoint:   where these come from; None for the log itself
    unlisted:    data files, below the sink, that the log won't name any more
    """

    sink: str
    entries: tuple[str, ...]
    savepoint: Savepoint | None = field(repr=False)
    unlisted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A job that was rolled back.

    job:         its folder, with the checkpoint that it has now
    checkpoint:  URI of the new checkpoint
    batch:       after which the job goes on
    kept:        URI of the old checkpoint; None if nothing was replaced
    sink_log:    URI of the file sink's new log; None if it has no file sink
    kept_sink:   URI of the file sink's old log; None if nothing was replaced
    unlisted:    data files, below the sink, that the log doesn't name any more: they stay
    """

    job: JobFolder
    checkpoint: str
    batch: int
    kept: str | None
    sink_log: str | None
    kept_sink: str | None
    unlisted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """A rollback that isn't done yet.

    job:         the job's folder
    newest:      its last committed batch
    batch:       to which it goes back
    savepoint:   None if that batch is still in the checkpoint
    sink:        what becomes of its file sink; None if it has none
    target:      where the copy goes; None if it takes the checkpoint's place
    take_over:   whether to take the job's lease from whoever has it
    """

    job: JobFolder
    newest: int
    batch: int
    savepoint: Savepoint | None
    sink: SinkPlan | None
    target: Storage | None
    take_over: bool = False

    def describe(self) -> str:
        """What will be done, in a few lines."""
        source = "of the checkpoint" if self.savepoint is None else f"of the savepoint {self.savepoint.manifest.name}"
        lines = [
            f"rollback    {self.job.job}, from batch {self.newest} to batch {self.batch} {source}",
            f"checkpoint  {self.job.checkpoint}",
        ]
        if self.sink is not None:
            unlisted = self.sink.unlisted
            lines.append(
                f"sink        {self.sink.sink}: its log goes back as well; {len(unlisted)} files stay, and aren't listed any more"
            )
            lines += [f"            {path}" for path in unlisted[:_SHOWN]]
            if len(unlisted) > _SHOWN:
                lines.append(f"            and {len(unlisted) - _SHOWN} more")
        else:
            lines.append(
                "sink        no file sink; what the job's sink got since that batch, it gets again, and one that remembers "
                "the numbers of batches takes these for repeated ones"
            )
        if self.target is None:
            lines.append("replaces    the checkpoint; the old one stays beside it")
        else:
            lines += [f"to          {self.target.uri}", "replaces    nothing: start the job from there", f"careful     {UNKNOWN}"]
        return "\n".join(lines)

    def run(self, progress: Progress | None = None) -> RolledBack:
        """Do it.

        Raises:  CHECKPOINT_IN_USE if the job runs; BATCH_GONE, SAVEPOINT_DAMAGED, SINK_MISMATCH;
                 NOT_WRITABLE, and what reading the checkpoint raises.  Then the job is as it was.
        """
        if self.target is not None:
            return self._run_beside(self.target, progress)

        def make(over: TakeOver) -> None:
            self._copy(over.folder, over.work, over.copy, over.place, progress)
            if self.savepoint is not None:
                restore_tables(over.prepared, self.savepoint.manifest)
            if self.sink is not None and over.sink is not None:
                self._write_log(self.sink, over.sink_log)
                _copy_log(open_storage(over.sink.log), open_storage(over.sink.kept))

        log = None if self.sink is None else f"{self.sink.sink}/{LOG}"
        done = take_place(self.job, "rollback", make, take_over=self.take_over, sink=log)
        return self._result(done.job, kept=done.kept, log=log, kept_sink=done.kept_sink)

    def _run_beside(self, target: Storage, progress: Progress | None) -> RolledBack:
        check_empty(target)
        source = self.job.open_checkpoint()
        found, log = Found.of(source), None

        def last() -> None:
            found.check(source)
            folder = create_beside(target.uri, self.job.job)
            if self.savepoint is not None:
                restore_tables(folder, self.savepoint.manifest)
            else:
                for entry in self.job.entries():
                    folder.write_definition(entry)
            target.delete_all(_WORK)

        try:
            if self.sink is not None:
                log = open_storage(f"{self.sink.sink}/{LOG}.batch-{self.batch}-{uuid.uuid4().hex[:8]}")
                self._write_log(self.sink, log)
            self._copy(self.job, target.folder(_WORK), target, target.uri, progress, last)
        except BaseException:
            target.delete_all()
            if log is not None:
                log.delete_all()
            raise
        folder = create_beside(target.uri, self.job.job)
        return self._result(folder, kept=None, log=None if log is None else log.uri, kept_sink=None)

    def _copy(
        self,
        folder: JobFolder,
        work: Storage,
        copy: Storage,
        place: str,
        progress: Progress | None,
        last: Callable[[], None] = lambda: None,
    ) -> None:
        """Steps 1 and 2; `last` is what else is to be done before Spark can start from the copy."""
        savepoint = self.savepoint or savepoint_in(work, folder, self.batch, progress, count=False)  # 1
        restore_files(savepoint, copy, savepoint.manifest.job_id, progress, place=place, also=last)  # 2
        work.delete_all("savepoint")

    def _write_log(self, plan: SinkPlan, target: Storage) -> None:  # 3
        saved = plan.savepoint
        if saved is None:
            write_anchored(log_of(plan.sink), plan.entries, plan.sink, target, plan.sink)
            return
        for file in saved.manifest.files:
            if (
                file.path.startswith(SINK)
                and hash_file(saved.checkpoint, file.path, most_bytes=_BOUNDS.source_log_bytes) != file.content
            ):
                raise mismatch(plan.sink, f"has a damaged log in the savepoint {saved.manifest.name}", "Take another savepoint.")
        write_anchored(saved.checkpoint.folder(SINK.rstrip("/")), plan.entries, saved.manifest.sink or plan.sink, target, plan.sink)

    def _result(self, job: JobFolder, *, kept: str | None, log: str | None, kept_sink: str | None) -> RolledBack:
        return RolledBack(
            job=job,
            checkpoint=job.checkpoint,
            batch=self.batch,
            kept=kept,
            sink_log=log,
            kept_sink=kept_sink,
            unlisted=() if self.sink is None else self.sink.unlisted,
        )


def plan_rollback(
    place: str | Path,
    *,
    job: str | None = None,
    savepoint: str | None = None,
    batch: int | None = None,
    sink: str | Path | None = None,
    no_file_sink: bool = False,
    to: str | Path | None = None,
    take_over: bool = False,
) -> RollbackPlan:
    """Plan to take a stopped job back to an earlier batch.

    place:         a pond, or the folder of a checkpoint
    job:           needed in a pond with several jobs
    savepoint:     a savepoint of the job; or
    batch:         a committed batch that Spark still keeps
    sink:          the folder that the job's file sink writes to; by default that of the savepoint,
                   or the one that `start` has recorded
    no_file_sink:  the job writes to no file sink: a checkpoint doesn't tell
    to:            for a job that Millpond doesn't start, the new checkpoint's folder, which must be
                   empty; by default beside the old one
    take_over:     take the job's lease from whoever has it; only if that can't write any more
    Raises:        NO_CHECKPOINT, NO_COMMITTED_BATCH, BATCH_GONE; UNKNOWN_SAVEPOINT and the other
                   errors of a savepoint; CHECKPOINT_IN_USE if the job runs; SINK_MISMATCH,
                   TARGET_NOT_EMPTY; INVALID_REQUEST, also if nobody knows whether it has a file sink.
    """
    if (savepoint is None) == (batch is None):
        raise _invalid("A rollback goes to a savepoint or to a batch.", "Name one of them: --to SAVEPOINT or --batch N.")
    folder, newest = find_stopped_job(place, job, take_over=take_over)
    check_target(folder, to)
    source = folder.open_checkpoint()
    saved = None if savepoint is None else open_savepoint(place, savepoint)
    if saved is not None and saved.manifest.job_id != job_id(source):
        raise _invalid(
            f"{savepoint} is a savepoint of {saved.manifest.job}, of another job than {folder.job} is now.",
            "Restore it to a folder of its own instead: millpond savepoint restore.",
        )
    goal = saved.manifest.batch if saved is not None else batch
    assert goal is not None, "one of them is named"
    if saved is None:
        find_batches(source, goal)
    if goal > newest:
        raise _invalid(f"The job is at batch {newest}, and {savepoint} is of batch {goal}.", "Name an earlier one.")
    where = _find_sink(folder, saved, sink, no_file_sink=no_file_sink)
    target = None
    if not folder.is_inside:
        target = open_storage(to or f"{folder.checkpoint}-at-{goal}")
        check_empty(target)
    return RollbackPlan(
        job=folder,
        newest=newest,
        batch=goal,
        savepoint=saved,
        sink=None if where is None else _plan_sink(where, saved, goal),
        target=target,
        take_over=take_over,
    )


def _find_sink(folder: JobFolder, saved: Savepoint | None, sink: str | Path | None, *, no_file_sink: bool) -> str | None:
    """URI of the job's file sink; None if it has none."""
    if sink is not None and no_file_sink:
        raise _invalid("It has a sink, and has none.", "Leave out --sink or --no-file-sink.")
    if no_file_sink:
        return None
    if sink is not None:
        return uri_of(sink)
    if saved is not None and saved.manifest.sink is not None:
        return saved.manifest.sink
    known, recorded = folder.read_sink()
    if not known:
        raise _invalid(
            f"Nobody knows whether {folder.job} writes to a file sink, whose log must go back as well: else Spark skips batches.",
            "Name the folder that it writes to with --sink; if it has no file sink, say --no-file-sink.",
        )
    return recorded


def _plan_sink(sink: str, saved: Savepoint | None, batch: int) -> SinkPlan:
    log = log_of(sink)
    has_log = saved is not None and saved.manifest.sink is not None
    if saved is not None and has_log:
        names = [file.path.removeprefix(SINK) for file in saved.manifest.files if file.path.startswith(SINK)]
        stored = saved.checkpoint.folder(SINK.rstrip("/"))
        stay = read_listed(stored, check_upto(sink, stored, batch), saved.manifest.sink or sink)
    else:
        names = check_upto(sink, log, batch)
        stay = read_listed(log, names, sink)
    gone = _missing(open_storage(sink), stay)
    if gone:
        raise mismatch(
            sink,
            f"lacks {len(gone)} data files of batches up to {batch}: {gone[0]!r:.200}",
            "Restore these files; if the sink was moved, name its folder with --sink.",
        )
    now = read_listed(log, newest_entries(log), sink)
    staying = set(stay)
    return SinkPlan(
        sink=sink,
        entries=tuple(names),
        savepoint=saved if has_log else None,
        unlisted=tuple(path for path in now if path not in staying),
    )


def _missing(sink: Storage, paths: list[str]) -> list[str]:
    """Those of the paths below a sink that aren't there."""
    there: dict[str, dict[str, int]] = {}
    gone = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if scheme_of(path) is None:
            if folder not in there:
                there[folder] = sink.sizes(folder)
            if name not in there[folder]:
                gone.append(path)
    return gone


def _copy_log(log: Storage, kept: Storage) -> None:
    for name in log.sizes():
        copy_file(log, name, kept, name, most_bytes=_BOUNDS.source_log_bytes)
    kept.sync()


def _invalid(message: str, hint: str) -> RequestError:
    return RequestError("INVALID_REQUEST", message, hint=hint)

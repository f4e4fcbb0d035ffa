"""Repair a checkpoint that Spark can't start from, as a copy beside it.  The checkpoint isn't changed.

1. Find out what is wrong (`diagnosis.py`), and the newest batch after which Spark can go on
   (`restart.py`).
2. Name what is lost: the batches after it, and per source the range that is read again.  Of a file
   source on a local disk: whether the files of that range are still there.
3. Name other copies that hold more: savepoints of the job, and its replica.
4. Run: copy the files of the restart into an empty folder, under the checkpoint's id, or a new one
   if that is lost.  Paths of schema files are changed to the new place.
5. Decode every row of the copy.  Then write the definitions of tables beside it, let all of it
   survive a crash, and write `metadata` last.

Rewinding in place would be shorter, and loses state: Spark then loads newer snapshots that stayed
(see `checkpoint/state.py`).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.catalogue import JobFolder, create_beside, find_job, folders_of
from millpond.checkpoint.log import BatchPlan, job_id, read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import RestartFile, log_offset, source_files
from millpond.checkpoint.source_files import iter_entry
from millpond.errors import CheckpointError, MillpondError, RequestError, SavepointError
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.repair.diagnosis import examine, read_id
from millpond.savepoint.repair.finding import Diagnosis
from millpond.savepoint.repair.logs import Logs
from millpond.savepoint.repair.restart import Restart, find_restart
from millpond.savepoint.restore import anchored_file, check_empty, check_nobody_has, check_target, encode_metadata, new_checkpoint
from millpond.savepoint.rows import count_rows
from millpond.savepoint.threads import Progress, do_each
from millpond.schema.values import encode_json
from millpond.storage import Storage, open_storage
from millpond.storage.copying import copy_file
from millpond.storage.fence import is_below
from millpond.storage.names import hadoop_uri, is_local_uri, path_of
from millpond.storage.patched import PatchedStorage

_THREADS = 4
_SHOWN = 5
_SAME_ID = (
    "one that remembers the query's id and the batches that it has seen, as Delta does, skips these batches; if it doesn't run "
    "them, Spark fails, since their state isn't written. Then say --new-id, and delete there what they wrote"
)
_NEW_ID = (
    "the new id is that of another query: a sink that remembers ids and batches takes these batches again; delete there what they "
    "wrote before"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgain:
    """The part of a source that the repaired job reads again.

    source:      its number, or its name
    begin, end:  its offsets after the batch that the copy begins with, and after the newest plan
                 that can be read
    files:       of a file source, the files of this part; None if they aren't known
    gone:        those that aren't there any more: what they held is lost
    """

    source: str
    begin: Any
    end: Any
    files: tuple[str, ...] | None
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCopy:
    """Another copy of the job's state that holds a later batch than the repaired copy.

    kind:   savepoint, archive or replica
    name:   the savepoint's name, or the place of the archive or replica
    batch:  the batch that it holds
    use:    what to do with it
    """

    kind: str
    name: str
    batch: int
    use: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """A repair that isn't done yet.

    job:        the job's folder
    diagnosis:  what is wrong
    restart:    where Spark can go on; None if nowhere
    refused:    batches after which it can't, and why
    undone:     (first, last) of the committed batches whose effect on the state is undone; None if
                there are none
    again:      per source, what the repaired job reads again; empty if it reads nothing again but
                the input of the batch that it runs again as it was planned
    others:     other copies that hold more
    target:     the new checkpoint
    new_id:     whether the copy gets an id of its own; a lost one is replaced in any case
    """

    job: JobFolder
    diagnosis: Diagnosis
    restart: Restart | None
    refused: dict[int, str]
    undone: tuple[int, int] | None
    again: tuple[ReadAgain, ...]
    others: tuple[OtherCopy, ...]
    target: Storage = field(repr=False)
    new_id: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether Spark doesn't go on right from the checkpoint as it is."""
        return not self.diagnosis.is_sound

    def describe(self) -> str:
        """What is wrong, what will be done, and what is lost, in a few lines."""
        return "\n".join(f"{word:<12}{text}" for word, text in self._lines())

    def run(self, progress: Progress | None = None) -> JobFolder:
        """Make the repaired copy; returns the job's folder beside it.

        Raises:  INVALID_REQUEST if there is nothing to repair; NOT_REPAIRABLE; TARGET_NOT_EMPTY,
                 NOT_WRITABLE, and what the storages raise.  Then the target is empty.
        """
        if not self.is_needed:
            raise RequestError(
                "INVALID_REQUEST",
                f"Spark goes on from {self.job.checkpoint} as it is.",
                hint="Start the job; to copy a checkpoint, make a savepoint and restore it.",
            )
        if self.restart is None:
            raise not_repairable(self)
        self._check_target()
        source, identity = self.job.open_checkpoint(), str(uuid.uuid4())
        if not self.new_id:
            with contextlib.suppress(CheckpointError):
                identity = read_id(source)
        with new_checkpoint(self.target, identity):  # 4
            _copy_all(self.restart, source, self.target, progress)
            _check_copy(self.restart, self.target)  # 5
            around = folders_of(self.target.uri)
            folder = around[0] if around else create_beside(self.target.uri, self.job.job)
            for entry in self.job.read_entries()[0]:
                folder.write_definition(entry)
        return folder

    def _check_target(self) -> None:
        """Raise TARGET_NOT_EMPTY, unless the target is empty, and only this job's; CHECKPOINT_IN_USE.

        A checkpoint that was moved out of its pond may go back: its tables are still there.
        """
        entries, broken = self.job.read_entries()
        if entries or broken:
            check_target(self.target, self.job.job)
        else:
            check_empty(self.target)
        check_nobody_has(self.target)

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "job", f"{self.job.job} ({self.job.job_state()})"
        yield "checkpoint", self.job.checkpoint
        for finding in self.diagnosis.findings:
            yield "found", f"{finding.path}: {finding.what} {finding.means}"
        if not self.is_needed:
            yield "start", "Spark starts from it as it is"
            return
        if self.restart is not None:
            yield from self._repair_lines(self.restart)
        else:
            yield "repair", "not possible: there is no batch after which Spark could go on"
            for number, why in sorted(self.refused.items(), reverse=True)[:_SHOWN]:
                yield "not from", f"{_name(number)}: {why}"
        for other in self.others:
            yield other.kind, f"{other.name} holds batch {other.batch}: {other.use}"

    def _repair_lines(self, restart: Restart) -> Iterator[tuple[str, str]]:
        yield (
            "goes on",
            f"after {_name(restart.batch)}"
            + (f"; batch {restart.again} is run again as it was planned" if restart.again is not None else ""),
        )
        for number, why in sorted(self.refused.items(), reverse=True)[:_SHOWN]:
            if number > restart.batch and number != restart.again:
                yield "not from", f"{_name(number)}: {why}"
        if self.undone is None:
            yield "lost", "nothing"
        else:
            first, last = self.undone
            numbers = f"batch {first}" if first == last else f"batches {first} to {last}"
            yield (
                "undone",
                f"{numbers}: the job reads their input again, maybe in other batches, and its sink gets their output again",
            )
            yield "sink", _NEW_ID if self.new_id else _SAME_ID
        for part in self.again:
            files = "" if part.files is None else f": {len(part.files)} files"
            yield "again", f"source {part.source} from {_json(part.begin)} to {_json(part.end)}{files}"
            if part.gone:
                shown = ", ".join(part.gone[:_SHOWN]) + (", …" if part.gone[_SHOWN:] else "")
                yield "lost", f"{len(part.gone)} of these files are gone: {shown}"
            elif part.files is None:
                yield "lost", f"what source {part.source} doesn't have any more of this"
        for path in restart.made:
            yield "writes", f"{path} again, from the plan of another batch"
        for path, why in restart.left_out.items():
            yield "leaves out", f"{path}, which isn't needed: {why}"
        yield "to", f"{self.target.uri}: {len(restart.files)} files; the checkpoint itself isn't changed"


def plan_repair_of(
    place: str | Path,
    *,
    job: str | None,
    to: str | Path | None,
    archive: str | Path | None = None,
    held: tuple[OtherCopy, ...] = (),
    stateless: bool = False,
    new_id: bool = False,
) -> RepairPlan:
    """As `millpond.plan_repair`, without looking for a replica.

    held:  other copies that the caller knows of
    """
    folder = find_job(place, job)
    storage = folder.open_checkpoint()
    target = open_storage(f"{storage.uri}-repaired" if to is None else to)
    if is_below(target.uri, storage.uri) or is_below(storage.uri, target.uri):
        raise RequestError("INVALID_REQUEST", f"{target.uri} is in the checkpoint itself.", hint="Name another folder.")
    known = folder.known_state(is_stateless=stateless)
    diagnosis, logs, files = examine(storage, known)
    doubted = [finding for finding in diagnosis.findings if finding.batch is not None and finding.effect == "wrong"]
    doubtful = min(doubted, key=lambda finding: finding.batch or 0, default=None)
    found = find_restart(storage, logs, files, doubtful, known) if not diagnosis.is_sound else {}
    restart = found if isinstance(found, Restart) else None
    newest = max((*logs.commits, *logs.bad_commits, -1))
    undone = None
    if restart is not None and newest > max(restart.batch, -1 if restart.again is None else restart.again):
        undone = (restart.batch + 1, newest)
    begin = -1 if restart is None else restart.batch
    others = (*_savepoints(place, storage), *_archived(archive), *held)
    plan = RepairPlan(
        job=folder,
        diagnosis=diagnosis,
        restart=restart,
        refused=restart.refused if restart is not None else found if isinstance(found, dict) else {},
        undone=undone,
        again=tuple(_read_again(storage, logs, restart)) if restart is not None and undone is not None else (),
        others=tuple(other for other in others if other.batch > begin) if not diagnosis.is_sound else (),
        target=target,
        new_id=new_id,
    )
    if to is not None:
        plan._check_target()
    return plan


def not_repairable(plan: RepairPlan) -> SavepointError:
    """Nothing of a checkpoint can be saved by itself."""
    newest = max(plan.others, key=lambda other: other.batch, default=None)
    return SavepointError(
        "NOT_REPAIRABLE",
        f"{plan.job.checkpoint} has no batch after which Spark could go on.",
        hint=f"Use the {newest.kind} {newest.name}: {newest.use}."
        if newest
        else "Restore it from a copy of your own, or begin anew.",
        uri=plan.job.checkpoint,
    )


def _name(number: int) -> str:
    return f"batch {number}" if number >= 0 else "the start, before any batch"


def _json(offset: Any) -> str:
    return "its start" if offset is None else encode_json(offset).decode()


def _savepoints(place: str | Path, storage: Storage) -> Iterator[OtherCopy]:
    try:
        identity: str | None = job_id(storage)
    except CheckpointError:
        identity = None
    for savepoint in list_savepoints(place).found:
        manifest = savepoint.manifest
        if storage.uri == manifest.checkpoint or identity == manifest.job_id:
            use = f"restore it: millpond savepoint restore {place} {manifest.name} --to …"
            yield OtherCopy(kind="savepoint", name=manifest.name, batch=manifest.batch, use=use)


def _archived(archive: str | Path | None) -> Iterator[OtherCopy]:
    """The newest batch of an archive."""
    found = list_savepoints(archive).found if archive is not None else []
    if found:
        manifest = found[-1].manifest
        use = f"restore it: millpond savepoint restore {archive} {manifest.name} --to …"
        yield OtherCopy(kind="archive", name=str(archive), batch=manifest.batch, use=use)


def _read_again(storage: Storage, logs: Logs, restart: Restart) -> Iterator[ReadAgain]:
    begin = logs.plans.get(restart.batch)
    end = logs.plans[max(logs.plans)]
    for source, offset in end.offsets.items():
        before = begin.offsets.get(source) if begin is not None else None
        if offset == before:
            continue
        files = _files_between(storage, source, before, end)
        gone = tuple(path for path in files or () if is_local_uri(path) and not Path(path_of(path)).exists())
        yield ReadAgain(source=source, begin=before, end=offset, files=files, gone=gone)


def _files_between(storage: Storage, source: str, before: Any, end: BatchPlan) -> tuple[str, ...] | None:
    """The files that a file source has read after an offset; None if its log doesn't say."""
    first, last = log_offset(before), log_offset(end.offsets.get(source))
    if last is None:
        return None
    found: dict[str, None] = {}
    try:
        for file in source_files(storage, source, end.offsets):
            found.update((path, None) for path, entry in iter_entry(storage, file.path) if entry > (-1 if first is None else first))
    except CheckpointError:
        return None
    return tuple(found)


def _copy_all(restart: Restart, source: Storage, target: Storage, progress: Progress | None) -> None:
    def copy(file: RestartFile) -> None:
        written = restart.view.written.get(file.path)
        if "/_metadata/v2/" in file.path:
            written = anchored_file(source.read(file.path, file.most_bytes), file.path, hadoop_uri(target.uri))
        if written is not None:
            target.write(file.path, written)
        else:
            copy_file(source, file.path, target, file.path, most_bytes=file.most_bytes, share="/SSTs/" in file.path)

    do_each(copy, restart.files, threads=_THREADS, progress=progress)


def _check_copy(restart: Restart, target: Storage) -> None:
    """Decode every row of a copy, which has no `metadata` yet, and maybe no metadata of operators."""
    if restart.committed is None:
        return
    view = PatchedStorage(target)
    for path, data in restart.view.written.items():
        view.write(path, data)
    view.write("metadata", encode_metadata("copy"))
    for _, rows in count_rows(view, read_batch(view, Batch(restart.batch))):
        if isinstance(rows, MillpondError) and rows.condition != "UNSUPPORTED":
            raise rows

"""Restore a savepoint into an empty folder, from which Spark starts the job.

1. Refuse a folder that has anything in it.  Claim it: of two commands, one restores to it.
2. Copy all files but `metadata`, and compare each copy with its hash.  SSTs are shared on one disk:
   Spark never writes into them.
3. Change the absolute paths of schema files, which name the place that was copied: Spark would read
   them there.
4. Write the definitions of tables beside it.
5. Let all of it survive a crash, and only then write `metadata`.  Spark 4.3 refuses to start from
   offsets without it, so it never starts from half of a copy.

If anything fails, the folder is emptied, and what was written beside it goes.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from millpond.catalogue import JOB, JobFolder, create_beside, folder_around, folders_of
from millpond.checkpoint.operators import anchored
from millpond.errors import RequestError, SavepointError
from millpond.ownership.lease import check_not_held
from millpond.savepoint.end_at import End, check_end, plan_next_batch
from millpond.savepoint.in_place.file_sink import SINK
from millpond.savepoint.manage.folder import open_savepoint
from millpond.savepoint.manifest import Manifest, Savepoint, SavepointFile, damaged
from millpond.savepoint.origin import NAME as ORIGIN
from millpond.savepoint.origin import write_origin
from millpond.savepoint.rewrite.form import AS_IT_WAS, StateForm, check_can_rewrite
from millpond.savepoint.rewrite.rewrite import is_state_file, rewrite_state
from millpond.savepoint.rewrite.row_edit import RowEdit
from millpond.savepoint.threads import Progress, do_each, threads_between
from millpond.schema.definition.operator_name import Entry, parse_entry
from millpond.schema.far_time import write_millis
from millpond.schema.strict_json import DAMAGE
from millpond.settings import FileBounds
from millpond.storage import Storage, open_storage
from millpond.storage.copying import Copied, copy_file, hash_file
from millpond.storage.fence import is_below
from millpond.storage.names import hadoop_uri

METADATA = "metadata"
# Hidden, as Spark's own temporary files.
_CLAIM = ".restoring"
_BOUNDS = FileBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """A restore that isn't done yet.

    savepoint:  what is restored
    target:     the new checkpoint
    new_id:     whether the restored job gets an id of its own
    form:       how the restored state is written
    end_at:     the savepoint at whose offsets the next batch ends; None if Spark chooses them
    """

    savepoint: Savepoint
    target: Storage
    new_id: bool
    form: StateForm = AS_IT_WAS
    end_at: Savepoint | None = None

    def describe(self) -> str:
        """What will be done, in a few lines."""
        manifest = self.savepoint.manifest
        identity = "a new one" if self.new_id else f"{manifest.job_id}, as before"
        rewritten = [f"state       {self.form.describe()}"] if self.form.is_new else []
        return "\n".join(
            [
                f"savepoint   {manifest.name} of the job {manifest.job}, batch {manifest.batch}{_when(manifest)}",
                f"to          {self.target.uri}",
                f"copies      {len(manifest.files)} files, {manifest.size_bytes:,} bytes",
                f"job id      {identity}",
                *rewritten,
                f"goes on     after batch {manifest.batch}; what the job's sink got since then, it gets again",
                *([] if self.end_at is None else [f"next batch  ends where {self.end_at.manifest.name} ends"]),
            ]
        )

    def run(self, progress: Progress | None = None) -> JobFolder:
        """Restore; returns the job's folder beside the new checkpoint.

        Raises:  TARGET_NOT_EMPTY, SAVEPOINT_DAMAGED, NOT_WRITABLE, and what the storages raise.
        """
        check_empty(self.target)  # 1
        manifest = self.savepoint.manifest
        identity = str(uuid.uuid4()) if self.new_id else manifest.job_id
        restore_files(self.savepoint, self.target, identity, progress, self.form, also=self._write_more)
        return create_beside(self.target.uri, manifest.job)

    def _write_more(self) -> None:
        """What is there when Spark can start."""
        if self.end_at is not None:
            plan_next_batch(End.of(self.savepoint), End.of(self.end_at), self.target)
        restore_tables(create_beside(self.target.uri, self.savepoint.manifest.job), self.savepoint.manifest)  # 4


def restore_files(
    savepoint: Savepoint,
    target: Storage,
    job_id: str,
    progress: Progress | None = None,
    form: StateForm = AS_IT_WAS,
    *,
    edits: Collection[RowEdit] = (),
    place: str | None = None,
    also: Callable[[], None] = lambda: None,
) -> None:
    """Make a checkpoint of a savepoint in an empty folder: steps 2, 3 and 5.

    job_id:  Spark's id of the restored job
    form:    how its state is written
    edits:   of the rows of stores
    place:   URI where the checkpoint will be when Spark starts from it; by default where it is
    also:    adds what else belongs to the checkpoint, before Spark can start from it
    Raises:  as `RestorePlan.run`; then the folder is empty.
    """
    with new_checkpoint(target, job_id):
        is_rewritten = form.is_new or bool(edits)
        _copy_all(savepoint, target, place or target.uri, progress, without_state=is_rewritten)
        if is_rewritten:
            rewrite_state(savepoint.checkpoint, savepoint.manifest.batch, target, form, edits)
        also()


@contextmanager
def new_checkpoint(target: Storage, job_id: str) -> Iterator[None]:
    """Steps 1 and 5 around the files of a new checkpoint, which the block writes.

    Raises:  TARGET_NOT_EMPTY, NOT_WRITABLE.  If the block raises, the folder is emptied, and what was
             written beside it goes.
    """
    before = {(folder.uri, path) for folder, path in _beside(target)}
    if not target.create(_CLAIM, uuid.uuid4().hex.encode()):
        raise _in_the_way(target)
    if target.names():  # another command was done with it just before
        target.delete(_CLAIM)
        raise _in_the_way(target)
    try:
        yield
        target.sync()  # 5
        target.write(METADATA, encode_metadata(job_id))
        target.delete(_CLAIM)  # last: without it, what a killed command left looks like anybody's
    except BaseException:
        target.delete_all()
        for folder, path in _beside(target):
            if (folder.uri, path) not in before:
                folder.delete(path)
        raise


def _beside(target: Storage) -> list[tuple[Storage, str]]:
    """The files that belong to a checkpoint and lie beside it; that which names it is the last one."""
    found = []
    for folder in folders_of(target.uri):
        storage = folder.storage
        found += [(storage, f"tables/{name}") for name in storage.names("tables")]
        found += [(storage, name) for name in (ORIGIN, JOB) if storage.stamp(name) is not None]
    return found


def encode_metadata(job_id: str) -> bytes:
    """Spark's file `metadata`."""
    return json.dumps({"id": job_id}, separators=(",", ":")).encode()


def restore_tables(folder: JobFolder, manifest: Manifest, names: Callable[[str], str] = str) -> None:
    """Write the definitions of a savepoint's tables, and from which savepoint the job comes.

    names:   the new name of each table
    Raises:  SAVEPOINT_DAMAGED, NOT_WRITABLE.
    """
    for entry in read_tables(manifest):
        folder.write_definition(replace(entry, table=names(entry.table)))
    write_origin(folder.storage, manifest)


def read_tables(manifest: Manifest) -> list[Entry]:
    """The definitions of a savepoint's tables.

    Raises:  SAVEPOINT_DAMAGED; DEFINITION_MISMATCH if a newer version wrote one.
    """
    entries: list[Entry] = []
    for table, definition in manifest.tables.items():
        try:
            entries.append(parse_entry(definition))
        except DAMAGE as broken:
            raise damaged(f"The manifest of {manifest.name}", f"has no readable definition of {table}") from broken
    return entries


def _copy_all(savepoint: Savepoint, target: Storage, place: str, progress: Progress | None, *, without_state: bool) -> None:
    files = [file for file in savepoint.manifest.files if file.path != METADATA and not file.path.startswith(SINK)]
    do_each(
        partial(_copy_one, savepoint.checkpoint, target, place, without_state),
        files,
        threads=threads_between(savepoint.checkpoint, target),
        progress=progress,
    )


def _copy_one(source: Storage, target: Storage, place: str, without_state: bool, file: SavepointFile) -> None:  # 2
    if without_state and is_state_file(file.path):
        if hash_file(source, file.path, most_bytes=_BOUNDS.state_bytes) != file.content:
            raise _changed(source, file)
        return
    if "/_metadata/v2/" in file.path:
        text = source.read(file.path, _BOUNDS.schema_bytes)
        if Copied(len(text), hashlib.sha256(text).hexdigest()) != file.content:
            raise _changed(source, file)
        target.write(file.path, anchored_file(text, file.path, hadoop_uri(place)))
        return
    copied = copy_file(source, file.path, target, file.path, most_bytes=_BOUNDS.state_bytes, share="/SSTs/" in file.path)
    if copied != file.content:
        raise _changed(source, file)


def _changed(source: Storage, file: SavepointFile) -> SavepointError:
    return damaged(f"{source.uri}/{file.path}", "doesn't have the hash that the manifest names")


def plan_restore(
    place: str | Path,
    name: str | None,
    to: str | Path,
    *,
    time: dt.datetime | str | None = None,
    new_id: bool = False,
    partitions: int | None = None,
    provider: str | None = None,
    checkpoint_format: int | None = None,
    codec: str | None = None,
    row_checksum: bool | None = None,
    end_at: str | None = None,
) -> RestorePlan:
    """Plan to restore a savepoint.

    place:   the pond that has it, the checkpoint that it was made of, or an archive
    name:    of the savepoint; of an archive `newest`, `batch-17` or `batch-17.generation-2`
    time:    of an archive the newest batch that was committed by this time, instead of a name
    to:      a folder that is empty or doesn't exist yet
    new_id:  give the restored job an id of its own, for a job that runs beside the old one
    partitions, provider, checkpoint_format, codec, row_checksum:  write the state anew: in another
             number of partitions; for `hdfs` or `rocksdb`; in checkpoint format 1 or 2; in lz4,
             zstd, snappy or lzf; with a checksum for each row or without
    end_at:  a savepoint of the same place, of another job over the same input: the next batch ends
             where it ends, whatever has come since
    Raises:  UNKNOWN_SAVEPOINT, SAVEPOINT_INCOMPLETE, SAVEPOINT_DAMAGED, SAVEPOINT_TOO_NEW,
             TARGET_NOT_EMPTY, INVALID_REQUEST; CHECKPOINT_IN_USE if a job that Millpond started
             begins there now; UNSUPPORTED if the state can't have this form; NOT_ALIGNED if the
             next batch can't end there.
    """
    savepoint, target = open_savepoint(place, name, time=time), open_storage(to)
    if is_below(target.uri, savepoint.storage.uri) or is_below(savepoint.storage.uri, target.uri):
        raise RequestError("INVALID_REQUEST", f"{target.uri} is in the savepoint itself.", hint="Restore it to another folder.")
    check_target(target, savepoint.manifest.job)
    check_nobody_has(target)
    form = StateForm(
        partitions=partitions, provider=provider, checkpoint_format=checkpoint_format, codec=codec, row_checksum=row_checksum
    )
    if form.is_new:
        check_can_rewrite(savepoint.checkpoint, savepoint.manifest.batch, form)
    end = None if end_at is None else open_savepoint(place, end_at)
    if end is not None:
        check_end(End.of(savepoint), End.of(end))
    return RestorePlan(savepoint=savepoint, target=target, new_id=new_id, form=form, end_at=end)


def check_nobody_has(target: Storage) -> None:
    """Raise CHECKPOINT_IN_USE if a folder is the checkpoint of a job whose lease somebody has."""
    if (around := folder_around(target.uri)) is not None:
        check_not_held(around)


def check_target(target: Storage, job: str) -> None:
    """Raise TARGET_NOT_EMPTY if a folder has anything in it, or tables of another job beside it."""
    check_empty(target)
    for folder in folders_of(target.uri):
        if folder.job != job:
            raise SavepointError(
                "TARGET_NOT_EMPTY",
                f"{folder.storage.uri} has tables of another job, {folder.job!r}, whose checkpoint was at {target.uri}.",
                hint="Restore to another folder, or remove that one, with its savepoints.",
                uri=folder.storage.uri,
            )


def _when(manifest: Manifest) -> str:
    return "" if manifest.committed_ms is None else f", committed {write_millis(manifest.committed_ms)}"


def check_empty(target: Storage) -> None:
    """Raise TARGET_NOT_EMPTY if a folder has anything in it."""
    if target.names():
        raise _in_the_way(target)


def _in_the_way(target: Storage) -> SavepointError:
    """What is said of a folder that has something in it."""
    there = target.names()
    if target.stamp(_CLAIM) is not None and target.stamp(METADATA) is None:
        return SavepointError(
            "TARGET_NOT_EMPTY",
            f"Another command makes a checkpoint in {target.uri}, or was killed in doing so.",
            hint="Wait for it, or remove that folder; then begin again.",
            uri=target.uri,
        )
    has = f"it has {there[0]!r:.80}" + (f" and {len(there) - 1} more" if there[1:] else "") if there else "it was claimed just now"
    return SavepointError(
        "TARGET_NOT_EMPTY",
        f"{target.uri} isn't empty: {has}.",
        hint="Name a folder that is empty or doesn't exist yet.",
        uri=target.uri,
    )


def anchored_file(text: bytes, path: str, checkpoint: str) -> bytes:  # 3
    """An operator's metadata with the paths of its schema files in another checkpoint.

    path:        for messages
    checkpoint:  its place as Spark writes it
    Raises:      SAVEPOINT_DAMAGED.
    """
    try:
        return anchored(text, checkpoint)
    except DAMAGE as broken:
        raise damaged(path, f"isn't an operator's metadata: {broken!r:.100}") from broken

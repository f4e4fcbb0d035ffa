"""A finished copy takes the place of a job's checkpoint, and the old one stays beside it.

    <job folder>/take-over.json        the journal: what is being done
    <job folder>/take-over-<id>/       the copy, and what is needed to make it

1. Write the journal.  Then the caller makes the copy, and whatever else is to change with it.
2. One step decides.  On a local disk the copy and the checkpoint exchange their names, so that the
   checkpoint's place never changes; a hidden file in the copy shows afterwards that they did.
   Elsewhere the copy lies under a new name in the job's folder, and one conditional write of
   job.json names it.
3. Give the old one its lasting name; let the log of a file sink become the prepared one; put
   definitions of the job's tables and notes that were prepared into its folder; remove the rest and the
   journal.

A command that was killed before the second step has changed nothing, and `finish` removes what it
left.  After that step `finish` completes the third one.  `start` calls it, and so does each command
that takes a place over; whoever calls it has the job's lease.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from dataclasses import dataclass, field, replace

from millpond.catalogue import JobFolder, forbid_change, point_to, read_job, reopen
from millpond.errors import CheckpointError, SetupError
from millpond.schema.strict_json import DAMAGE, parse_json
from millpond.settings import FileBounds
from millpond.storage import Storage, open_storage
from millpond.storage.below import files_below
from millpond.storage.copying import copy_file
from millpond.storage.exchange import rename, try_exchange
from millpond.storage.names import last_name

JOURNAL = "take-over.json"
_FORMAT = 1
_CHECKPOINT = "checkpoint"
_SINK = "sink"
_JOB_FILES = "job"
_BOUNDS = FileBounds()
# Whoever may write to the pond can write a journal, by which files are deleted: nothing but a
# checkpoint of the job, and logs of file sinks.
_NAMES = re.compile(r"[0-9a-f]+/(checkpoint(?:-[0-9]+)?)/checkpoint(?:-[0-9]+)?/\1(?:\.before-[0-9A-Za-z-]+)?")
_PREPARED = re.compile(r"tables/[^/]+\.json|origin\.json|retention\.json")
_LOGS = re.compile(r"([^\n]*/_spark_metadata)\n\1\.before-[0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkLog:
    """The log of a file sink that changes together with the checkpoint.

    log:   its folder `_spark_metadata`
    kept:  where its old files are kept
    """

    log: str
    kept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """A copy on its way to the place of a job's checkpoint.

    folder:   the job's
    id:       of this take-over, in the names of its files
    what:     the command, for people
    old:      the name of the checkpoint in the job's folder
    new:      the name that the copy's folder gets; the old one if they exchange their names
    kept:     the name of the old checkpoint afterwards
    sink:     what changes with it; None if nothing does
    job:      job.json when it began
    """

    folder: JobFolder
    id: str
    what: str
    old: str
    new: str
    kept: str
    sink: SinkLog | None
    job: bytes = field(default=b"", repr=False)

    @property
    def work(self) -> Storage:
        """A folder for all that is needed meanwhile."""
        return self.folder.storage.folder(f"take-over-{self.id}")

    @property
    def exchanges(self) -> bool:
        """Whether the copy gets the checkpoint's own name."""
        return self.new == self.old

    @property
    def copy(self) -> Storage:
        """Where the copy is made."""
        return self.work.folder(_CHECKPOINT) if self.exchanges else self.folder.storage.folder(self.new)

    @property
    def place(self) -> str:
        """URI where the copy will be."""
        return self.folder.storage.folder(self.new).uri

    @property
    def kept_at(self) -> str:
        """URI of the old checkpoint afterwards."""
        return self.folder.storage.folder(self.kept).uri

    @property
    def sink_log(self) -> Storage:
        """Where the sink's new log is prepared."""
        return self.work.folder(_SINK)

    @property
    def prepared(self) -> JobFolder:
        """The job's folder as it will be: files that are written here come into the real one with the copy."""
        return replace(self.folder, storage=self.work.folder(_JOB_FILES))

    @property
    def mark(self) -> str:
        """A hidden file in the copy."""
        return f".take-over-{self.id}"

    def write(self) -> None:
        """Write the journal."""
        data = {name: getattr(self, name) for name in ("id", "what", "old", "new", "kept")}
        sink = None if self.sink is None else {"log": self.sink.log, "kept": self.sink.kept}
        self.folder.storage.write(JOURNAL, json.dumps({"format": _FORMAT, **data, "sink": sink}, indent=1).encode())

    def take(self) -> JobFolder:
        """Let the copy take the checkpoint's place: steps 2 and 3.

        Raises:  CHECKPOINT_IN_USE if somebody else has changed job.json; NOT_WRITABLE, and what the
                 storages raise.  Then call `finish`.
        """
        self.copy.sync()
        self.work.sync()
        if self.exchanges:
            copy, checkpoint = self.copy.local_path(), self.folder.storage.local_path(self.old)
            assert copy is not None, "names are exchanged on a local disk"
            assert checkpoint is not None, "names are exchanged on a local disk"
            try:
                done = try_exchange(copy, checkpoint)
            except OSError as broken:
                raise _not_writable(self.folder, broken) from broken
            if not done:
                raise _not_writable(self.folder, OSError(0, "names can't be exchanged there"))
        else:
            point_to(self.folder, self.new, self.job)
        self.complete()
        return reopen(self.folder)

    def has_taken(self) -> bool:
        """Whether the second step is done."""
        if self.exchanges:
            return self.folder.storage.stamp(f"{self.old}/{self.mark}") is not None
        return last_name(reopen(self.folder).checkpoint) == self.new

    def complete(self) -> None:
        """The third step; it may have been done in part."""
        if self.sink is not None:
            if self.sink_log.names():
                _mirror(self.sink_log, open_storage(self.sink.log))
            replace(self, sink=None).write()  # so that nobody does it again from what is left below
        if self.exchanges:
            old, kept = self.copy.local_path(), self.folder.storage.local_path(self.kept)
            if old is not None and kept is not None and old.exists():
                try:
                    rename(old, kept)
                except OSError as broken:
                    raise _not_writable(self.folder, broken) from broken
        prepared = self.prepared.storage
        for path in filter(_PREPARED.fullmatch, files_below(prepared)):
            self.folder.storage.write(path, prepared.read(path, _BOUNDS.definition_bytes))
        self.work.delete_all()
        self._forget()
        self.folder.storage.delete(f"{self.new}/{self.mark}")

    def discard(self) -> None:
        """Remove all that there is of it: the second step isn't done, and can't be done any more.

        So a command that was stopped just before that step, and wakes, fails.
        """
        if self.exchanges:
            copy, aside = self.copy.local_path(), self.work.local_path("discarded")
            if copy is not None and aside is not None and copy.exists():
                try:
                    rename(copy, aside)
                except OSError as broken:
                    raise _not_writable(self.folder, broken) from broken
        else:
            if self._is_current():
                forbid_change(self.folder)
            self.copy.delete_all()
        if self.sink is not None:
            open_storage(self.sink.kept).delete_all()
        self.work.delete_all()
        self._forget()

    def _is_current(self) -> bool:
        """Whether the journal is its own, and not that of another command, or gone."""
        return self.folder.storage.stamp(JOURNAL) is not None and _read(self.folder).id == self.id

    def _forget(self) -> None:
        if self._is_current():
            self.folder.storage.delete(JOURNAL)


def begin(folder: JobFolder, what: str, sink: str | None = None) -> TakeOver:
    """Begin to make a copy: step 1.

    folder:  of a job whose lease the caller has
    what:    the command in one word, which is part of the old checkpoint's name
    sink:    folder `_spark_metadata` of a file sink that changes as well
    Raises:  NOT_WRITABLE, and what the storage raises.
    """
    number, old = uuid.uuid4().hex[:12], last_name(folder.checkpoint)
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    begun = TakeOver(
        folder=folder,
        id=number,
        what=what,
        old=old,
        new=old,
        kept=f"{old}.before-{what}-{moment}-{number[:4]}",
        sink=None if sink is None else SinkLog(log=sink, kept=f"{sink}.before-{what}-{moment}-{number[:4]}"),
        job=read_job(folder),
    )
    begun.write()  # first of all: who is killed now leaves nothing that no journal names
    if not _can_exchange(begun):
        # Never a name that was used before: a command that was stopped may still write there.
        free = f"{_CHECKPOINT}-{int(number, 16) % 900_000_000 + 100_000_000}"
        begun = replace(begun, new=free, kept=old)
        begun.write()
    # Now and not when it takes over: a copy that somebody has discarded must not come back.
    begun.copy.write(begun.mark, b"")
    return begun


def finish(folder: JobFolder, only: str | None = None) -> TakeOver | None:
    """End what a killed command has begun; returns it, or None if there was nothing.

    Afterwards the job's checkpoint is the old one or the new one, whole.

    only:    the id of a take-over; any other one is left alone
    Raises:  CORRUPT_FILE, NOT_WRITABLE, and what the storages raise.
    """
    if folder.storage.stamp(JOURNAL) is None:
        return None
    found = _read(folder)
    if only is not None and found.id != only:
        return None
    if found.has_taken():
        found.complete()
    else:
        found.discard()
    return found


def _can_exchange(begun: TakeOver) -> bool:
    """Whether two folders can exchange their names there, found out by two others."""
    one, other = begun.work.local_path("1"), begun.work.local_path("2")
    if one is None or other is None:
        return False
    try:
        for path in (one, other):
            path.mkdir(parents=True)
        return try_exchange(one, other)
    except OSError as broken:
        raise _not_writable(begun.folder, broken) from broken
    finally:
        begun.work.delete_all()


def _mirror(source: Storage, target: Storage) -> None:
    """Let a sink's log have these files and no others.

    At each moment a reader of the sink finds the log of some batch: entries are added first, then
    those of later batches go, the newest first.
    """
    wanted, there = source.sizes(), target.sizes()
    for name in wanted:
        copy_file(source, name, target, name, most_bytes=_BOUNDS.source_log_bytes)
    for name in sorted(there.keys() - wanted.keys(), key=_number, reverse=True):
        target.delete(name)
    if (folder := target.local_path()) is not None:
        # Hadoop's checksums of files that were there: where one is left, Spark can't write that name.
        for name in os.listdir(folder):
            if name.startswith(".") and name.endswith(".crc"):
                target.delete(name)
    target.sync()


def _number(name: str) -> tuple[int, str]:
    first = name.partition(".")[0]
    return (int(first) if first.isdecimal() else -1, name)


def _read(folder: JobFolder) -> TakeOver:
    try:
        data = parse_json(folder.storage.read(JOURNAL, _BOUNDS.note_bytes))
        names = [str(data[name]) for name in ("id", "old", "new", "kept")]
        if data["format"] != _FORMAT or not _NAMES.fullmatch("/".join(names)):
            raise ValueError("it isn't a journal of this format")
        sink = data["sink"]
        if sink is not None and not _LOGS.fullmatch(f"{sink['log']}\n{sink['kept']}"):
            raise ValueError("it names no log of a file sink")
        return TakeOver(
            folder=folder,
            id=names[0],
            what=str(data["what"]),
            old=names[1],
            new=names[2],
            kept=names[3],
            sink=None if sink is None else SinkLog(log=str(sink["log"]), kept=str(sink["kept"])),
        )
    except DAMAGE as broken:
        path = f"{folder.storage.uri}/{JOURNAL}"
        raise CheckpointError(
            "CORRUPT_FILE",
            f"{path} can't be read: {broken!r:.200}.",
            hint="Look which of the folders beside it is the checkpoint, then delete this file.",
            path=path,
        ) from broken


def _not_writable(folder: JobFolder, broken: OSError) -> SetupError:
    return SetupError(
        "NOT_WRITABLE",
        f"{folder.storage.uri} can't be changed: {broken.strerror}.",
        hint="Choose a folder that this user may write to.",
        path=folder.storage.uri,
    )

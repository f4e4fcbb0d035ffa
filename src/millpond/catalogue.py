"""The pond's catalogue: which jobs there are, where their checkpoints lie, and what their tables mean.

    <pond>/pond.json                       {"format": 1}
    <pond>/jobs/<job>/job.json             {"format": 1, "job": …, "checkpoint": "checkpoint" or an absolute URI;
                                           "checkpoint-123456789" after a copy took its place in a bucket}
    <pond>/jobs/<job>/checkpoint/          Spark's checkpoint, if `start` started the job
    <pond>/jobs/<job>/tables/<table>.json  definitions, and names of an operator's tables
    <pond>/jobs/<job>/heartbeat.json       written while a job of `start` or `publish` runs
    <pond>/jobs/<job>/lease.json           who may write the checkpoint, see `ownership.lease`
    <pond>/jobs/<job>/sink.json            the folder of the job's file sink; written by `start` and `publish`
    <pond>/savepoints/<name>/              see `savepoint.manage.folder`
    <pond>/jobs/<job>/retention.json       written by `RetentionPlan.hide`, see `tables.kept.shorter`
    <pond>/jobs/<job>/hot_keys.json        written by `HotKeys` if the job finds its own, see `schema.definition.hot_keys`

A job's checkpoint lies in the pond.  It may lie elsewhere if the reader allowed that place, or if
job.json belongs to the reader's own user and nobody else can write it: then that user's `publish`
or `define` named the place.

A checkpoint outside any pond has the same job folder beside it, never in it:
`<checkpoint>.millpond/`.  If that can't be written or belongs to others, the folder is in the
user's cache: `<home>/beside/<hash of the checkpoint's URI>/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.errors import CheckpointError, DefinitionError, MillpondError, RequestError, SavepointError, SetupError, StorageError
from millpond.schema.definition.hot_keys import HotKey, from_bytes, to_bytes
from millpond.schema.definition.operator_name import Entry, parse_entry
from millpond.schema.definition.table import TableDefinition, check_table_name
from millpond.schema.strict_json import parse_json
from millpond.schema.types import SparkType
from millpond.settings import FileBounds, home
from millpond.storage import FileStamp, Storage, open_storage, uri_of
from millpond.storage.fence import is_below, not_allowed
from millpond.storage.names import last_name
from millpond.storage.places import Places

FORMAT = 1
# The pause between two looks for a pond or table that doesn't exist yet.
ARRIVAL_SECONDS = 0.2
HOT_KEYS = "hot_keys.json"
HEARTBEAT_SECONDS = 2.0
# A file that was last written so long ago has its stamp alone: file times are exact to milliseconds.
_SETTLED_NS = 2_000_000_000
# If the heartbeat is older than this many intervals, the job no longer runs.
_MISSED = 5
# How job.json names a checkpoint in the job's own folder.
_INSIDE = "checkpoint"
_INSIDE_NAME = re.compile(r"checkpoint(-[1-9][0-9]{0,8})?")
_SAVEPOINTS = "savepoints"
JOB = "job.json"
_SINK = "sink.json"
_BOUNDS = FileBounds()
# A batch that is so much newer than the last heartbeat isn't of a job that stopped then.  Clocks of machines differ by less.
_SILENT_SECONDS = 60.0
# More is no count of Spark's.
_MOST_NUMBER = 1 << 63
_NOTHING_MORE = Places()


@dataclass(frozen=True, slots=True)
class Beat:
    """What a job reports of itself while it runs.

    job_state:  running, stopped, or unknown: only jobs of `start` and `publish` have a heartbeat
    reported:   what the job itself said last: running, stopped, or nothing
    newest:     source -> where it ended when the job last asked it; None if the job isn't running, or
                its sources don't number their records
    at:         when it said so, in seconds since 1970; None if it said nothing
    progress:   what Spark has reported since the job started, see `spark.progress`; empty if it isn't
                running
    """

    job_state: str
    reported: str
    newest: Mapping[str, Any] | None = None
    at: float | None = None
    progress: Mapping[str, int | float] = field(default_factory=dict)

    def state_given(self, committed_ns: int | None) -> str:
        """The state of a job whose newest batch was committed then: unknown if the last report is much older than that.

        Such a job runs and reports nothing: its query was started again without `start` and `publish`.

        committed_ns:  nanoseconds since 1970; None if that isn't known
        """
        if self.job_state == "stopped" and committed_ns is not None and self.at is not None:
            return "unknown" if committed_ns / 1e9 > self.at + _SILENT_SECONDS else "stopped"
        return self.job_state


@dataclass(frozen=True, slots=True)
class KnownState:
    """What is known of a query's state without its checkpoint.

    operators:     that have state, as those of defined tables
    is_stateless:  whether the query keeps none
    """

    operators: frozenset[int] = frozenset()
    is_stateless: bool = False


@dataclass(frozen=True, slots=True)
class JobFolder:
    """One job's folder: its name, its checkpoint, its tables and its heartbeat.

    job:        the job's name
    storage:    the job folder
    checkpoint: URI of Spark's checkpoint
    place:      the same, opened for reading; None if it hasn't been opened
    """

    job: str
    storage: Storage
    checkpoint: str
    place: Storage | None = field(default=None, compare=False)

    @property
    def is_inside(self) -> bool:
        """Whether its checkpoint lies in this folder: then `start` runs the job."""
        return is_below(self.checkpoint, self.storage.uri)

    def open_checkpoint(self) -> Storage:
        """Spark's checkpoint, with request counts of its own."""
        return open_storage(self.checkpoint) if self.place is None else self.place.folder("")

    def entries(self) -> list[Entry]:
        """Every definition in the folder, and every name of an operator's tables.

        Raises:  DEFINITION_MISMATCH, CORRUPT_FILE, PLACE_NOT_ALLOWED if one of them can't be read.
        """
        entries, broken = self.read_entries()
        for error in broken.values():
            raise error
        return entries

    def read_entries(self, known: KnownEntries | None = None) -> tuple[list[Entry], dict[str, MillpondError]]:
        """The entries that can be read; and by table, the errors of those that can't.

        known:  those that needn't be read again, if they are as they were
        """
        entries: list[Entry] = []
        broken: dict[str, MillpondError] = {}
        for name in self.storage.names("tables"):
            table = name.removesuffix(".json")
            try:
                if table != name:
                    entries.append(self._read_entry(table) if known is None else known.entry(self, table))
            except StorageError:
                raise
            except MillpondError as error:
                if error.condition != "FILE_GONE":  # it was deleted just now
                    broken[table] = error
        return entries, broken

    def known_state(self, *, is_stateless: bool = False) -> KnownState:
        """What the defined tables, as far as they can be read, say of the job's state."""
        return KnownState(frozenset(entry.operator for entry in self.read_entries()[0]), is_stateless)

    def _read_entry(self, table: str) -> Entry:
        path = _entry_path(table)
        found = _read_json(self.storage, path, _BOUNDS.definition_bytes)
        try:
            entry = parse_entry(found)
            if entry.table != table:
                raise DefinitionError(
                    "DEFINITION_MISMATCH",
                    f"The definition is that of a table {entry.table!r:.80}.",
                    hint="Name the file after its table, or define the table again.",
                )
        except DefinitionError as error:
            path = f"{self.storage.uri}/{path}"
            raise DefinitionError(
                error.condition, f"{path}: {error.message}", hint=error.hint, **{**error.context, "path": path}
            ) from error
        return entry

    def definitions(self) -> dict[str, TableDefinition]:
        """Table name -> definition, of every definition in the folder.  Raises as `entries`."""
        return {entry.table: entry for entry in self.entries() if isinstance(entry, TableDefinition)}

    def write_definition(self, entry: Entry) -> None:
        """Write a definition, or the name of an operator's tables, in place of one of the same name."""
        check_table_name(entry.table)
        data = json.dumps(entry.to_json(), indent=1).encode()
        self.storage.write(f"tables/{entry.table}.json", data)

    def write_sink(self, sink: str | None) -> None:
        """Record which file sink the job writes to; None for a sink of another kind."""
        data = json.dumps({"file_sink": sink}).encode()
        if self.storage.stamp(_SINK) is None or self.storage.read(_SINK, _BOUNDS.note_bytes) != data:
            self.storage.write(_SINK, data)

    def read_sink(self) -> tuple[bool, str | None]:
        """Whether it is known what the job writes to; and the file sink, if it is one.

        `start` has recorded it.  Raises CORRUPT_FILE.
        """
        if self.storage.stamp(_SINK) is None:
            return False, None
        data = _read_json(self.storage, _SINK, _BOUNDS.note_bytes)
        sink = data.get("file_sink") if isinstance(data, dict) else 0
        if not isinstance(sink, str | None):
            raise _corrupt(self.storage, _SINK, "it doesn't name a file sink")
        return True, sink

    def write_heartbeat(
        self, state: str, newest: Mapping[str, Any] | None = None, progress: Mapping[str, int | float] | None = None
    ) -> None:
        """Record that the job is `running` or was `stopped`, as of now.

        newest:    source -> where it ended when the job last asked it; None if that isn't known.  If
                   it is too large for such a file, it is left out
        progress:  what Spark has reported since the job started, see `spark.progress`
        """
        beat: dict[str, Any] = {"state": state, "at": time.time(), **({} if progress is None else {"progress": progress})}
        whole = json.dumps(beat if newest is None else {**beat, "newest": newest}).encode()
        self.storage.write("heartbeat.json", whole if len(whole) <= _BOUNDS.note_bytes else json.dumps(beat).encode())

    def job_state(self, committed_ns: int | None = None) -> str:
        """running, stopped, or unknown: only jobs of `start` and `publish` have a heartbeat.

        committed_ns:  when the newest batch was committed, see `Beat.state_given`
        """
        return self.beat().state_given(committed_ns)

    def said_stopped(self) -> bool:
        """Whether the job itself reported that it stopped.

        A killed job reports nothing, and may be starting again.
        """
        return self.beat().reported == "stopped"

    def newest(self) -> Mapping[str, Any] | None:
        """Source -> where it ended when the running job last asked it.

        None if the job isn't running, or its sources don't number their records.
        """
        return self.beat().newest

    def beat(self) -> Beat:
        """What the job last reported; nothing if no report can be read."""
        try:
            beat = _read_json(self.storage, "heartbeat.json", _BOUNDS.note_bytes)
        except MillpondError:
            return Beat("unknown", "")
        if not isinstance(beat, dict):
            return Beat("unknown", "")
        state, at, newest, progress = beat.get("state"), beat.get("at"), beat.get("newest"), beat.get("progress")
        if not isinstance(at, int | float) or state not in ("running", "stopped"):
            return Beat("unknown", "")
        if state == "stopped" or time.time() - at >= _MISSED * HEARTBEAT_SECONDS:
            return Beat("stopped", state, at=at)
        return Beat("running", state, newest if isinstance(newest, dict) else None, at, _numbers(progress))

    def hot_keys(self) -> list[HotKey]:
        """The hot groups that the job has found; empty if it doesn't look for any.  Raises CORRUPT_FILE."""
        if self.storage.stamp(HOT_KEYS) is None:
            return []
        try:
            return from_bytes(self.storage.read(HOT_KEYS, _BOUNDS.hot_keys_bytes))
        except ValueError as broken:
            raise CheckpointError(
                "CORRUPT_FILE",
                f"{self.storage.uri}/{HOT_KEYS} can't be read: {broken}.",
                hint="Delete the file: the job finds hot keys again, and no answer depends on them.",
                path=f"{self.storage.uri}/{HOT_KEYS}",
            ) from broken

    def write_hot_keys(self, keys: Iterable[HotKey], columns: Mapping[str, SparkType]) -> None:
        """Write the list of hot groups; `columns` has the types of the columns that tell groups apart."""
        self.storage.write(HOT_KEYS, to_bytes(keys, columns))


def _numbers(progress: Any) -> Mapping[str, int | float]:
    """The numbers of an object that are finite and not negative."""
    found = progress.items() if isinstance(progress, dict) else ()
    return {name: value for name, value in found if type(value) in (int, float) and 0 <= value < _MOST_NUMBER}


class KnownEntries:
    """Entries of a pond's jobs as they were read last: a file that is as it was isn't read again.

    A file that was written just now is read again: another one, of the same length, might get the
    same stamp.
    """

    def __init__(self, before: KnownEntries | None = None) -> None:
        self._before = {} if before is None else before._now
        self._now: dict[tuple[str, str], tuple[FileStamp, Entry]] = {}

    def entry(self, folder: JobFolder, table: str) -> Entry:
        """The entry of a table.  Raises as `JobFolder.entries`."""
        key, stamp = (folder.storage.uri, table), folder.storage.stamp(_entry_path(table))
        known = self._before.get(key)
        is_same = known is not None and stamp is not None and (known[0], known[0].changed_ns) == (stamp, stamp.changed_ns)
        entry = known[1] if known is not None and is_same else folder._read_entry(table)
        # Whoever writes a file may give it any time, but not the time of its last change.
        if stamp is not None and time.time_ns() - max(stamp.modified_ns, stamp.changed_ns) > _SETTLED_NS:
            self._now[key] = stamp, entry
        return entry


def _entry_path(table: str) -> str:
    return f"tables/{table}.json"


def shown_name(pond: str, job: str, ponds: int) -> str:
    """A job's name among so many ponds: where there are several, the pond's name precedes it."""
    return job if ponds == 1 else f"{pond}/{job}"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The jobs at a place.

    jobs:    those whose folder can be read
    broken:  job -> why its folder can't be read
    """

    jobs: list[JobFolder]
    broken: dict[str, MillpondError]


def job_of(pond: str | Path, job: str) -> JobFolder:
    """The folder of a job in a pond, with its checkpoint inside; it may not exist yet.

    Raises:  INVALID_NAME, CORRUPT_FILE.
    """
    check_table_name(job)
    storage = open_storage(pond).folder(f"jobs/{job}")
    there = _read_job(storage)[1] if storage.stamp(JOB) is not None else _INSIDE
    return _inside(storage, job, there if _is_inside(there) else _INSIDE)


def reopen(folder: JobFolder) -> JobFolder:
    """The same job with the checkpoint that job.json names now.  Raises CORRUPT_FILE, FILE_GONE."""
    there = _read_job(folder.storage)[1]
    return _inside(folder.storage, folder.job, there) if _is_inside(there) else folder


def read_job(folder: JobFolder) -> bytes:
    """The bytes of job.json.  Raises FILE_GONE."""
    return folder.storage.read(JOB, _BOUNDS.note_bytes)


def point_to(folder: JobFolder, name: str, text: bytes) -> None:
    """Let another folder in the job's own be its checkpoint, by one conditional write of job.json.

    name:    of that folder, such as checkpoint-123456789
    text:    the bytes of job.json, as they were when the caller had a right to change it
    Raises:  CHECKPOINT_IN_USE if somebody else has changed job.json since then; NOT_WRITABLE.
    """
    data = {**_parse(folder.storage, JOB, text), "checkpoint": name}
    if not folder.storage.replace(JOB, text, json.dumps(data, indent=1).encode()):
        raise SavepointError(
            "CHECKPOINT_IN_USE",
            f"Somebody has changed {folder.storage.uri}/{JOB}: the job {folder.job} isn't this command's any more.",
            hint="Look what else works on this job, and try again.",
            job=folder.job,
        )


def forbid_change(folder: JobFolder) -> None:
    """Write job.json anew with the same job in it, so that nobody who has read it before can change it.

    Raises:  NOT_WRITABLE, and what the storage raises.
    """
    text = read_job(folder)
    data = _parse(folder.storage, JOB, text)
    changed = json.dumps({**data, "stamp": uuid.uuid4().hex}, indent=1).encode()
    if not folder.storage.replace(JOB, text, changed):
        forbid_change(folder)


def create_job(pond: str | Path, job: str, checkpoint: str | None = None) -> JobFolder:
    """The folder of a job in a pond; made if it doesn't exist yet.

    checkpoint: path or URI of a checkpoint elsewhere; None for the one inside the job's folder
    Raises:     INVALID_NAME, NOT_WRITABLE; TABLE_EXISTS if the job has another checkpoint
    """
    storage, root = job_of(pond, job).storage, open_storage(pond)
    if root.stamp("pond.json") is None:
        root.write("pond.json", json.dumps({"format": FORMAT}).encode())
    elsewhere = uri_of(checkpoint) if checkpoint else _INSIDE
    return _create(storage, job, elsewhere)


def create_beside(checkpoint: str | Path, job: str | None = None) -> JobFolder:
    """The job folder beside a checkpoint that lies in no pond; made if it doesn't exist yet.

    Raises:  NOT_WRITABLE if neither the place beside it nor the cache folder can be written.
    """
    uri = uri_of(checkpoint)
    name = job or last_name(uri)
    try:
        return _create(_beside(uri), name, uri)
    except (SetupError, StorageError) as refused:
        if refused.condition not in ("NOT_WRITABLE", "ACCESS_DENIED"):
            raise
        return _create(_beside_in_cache(uri), name, uri)


def _beside(checkpoint: str) -> Storage:
    if checkpoint.count("/") == 2:  # a whole bucket, which can't have a folder beside it
        return _beside_in_cache(checkpoint)
    return open_storage(f"{checkpoint}.millpond")


def _beside_in_cache(checkpoint: str) -> Storage:
    digest = hashlib.sha256(checkpoint.encode()).hexdigest()[:32]
    return open_storage(home() / "beside" / digest)


def _create(storage: Storage, job: str, checkpoint: str) -> JobFolder:
    if storage.stamp("job.json") is None:
        data = {"format": FORMAT, "job": job, "checkpoint": checkpoint}
        storage.write("job.json", json.dumps(data, indent=1).encode())
    named, there, _ = _read_job(storage)
    inside = _inside(storage, named, there if _is_inside(there) else _INSIDE)
    folder = inside if checkpoint == _INSIDE else JobFolder(named, storage, checkpoint, open_storage(checkpoint))
    where = inside.checkpoint if _is_inside(there) else there
    if where != (inside.checkpoint if checkpoint == _INSIDE else uri_of(checkpoint)):
        raise DefinitionError(
            "TABLE_EXISTS",
            f"The job {job!r} exists already, with its checkpoint at {where}.",
            hint="Choose another name for the job, or another pond.",
            job=job,
            checkpoint=where,
        )
    return folder


def open_jobs(uri: str | Path, *, allow: Iterable[str | Path] = ()) -> list[JobFolder]:
    """The jobs at a path: all of a pond, or the one of a bare checkpoint.

    allow:   places outside of it where checkpoints and targets of links may lie
    Raises:  NO_CHECKPOINT if the path is neither; if no job's folder can be read, the error of one.
    """
    found = read_catalogue(uri, Places.of(allow))
    for error in found.broken.values():
        if not found.jobs:
            raise error
    return found.jobs


def read_catalogue(uri: str | Path, places: Places = _NOTHING_MORE) -> Catalogue:
    """The same, with the jobs whose folders can't be read: these don't hide the others.

    Raises:  NO_CHECKPOINT; what the pond's own folder raises.
    """
    own = uri_of(uri)
    root = open_storage(own, fence=places.fence(own))
    if root.stamp("pond.json") is not None:
        found = Catalogue([], {})
        for name in root.names("jobs"):
            storage = root.folder(f"jobs/{name}")
            try:
                if storage.stamp("job.json") is not None:
                    found.jobs.append(_job_folder(storage, root.uri, places, job=name))
            except MillpondError as error:
                if error.condition == "STORAGE_UNAVAILABLE":
                    raise
                found.broken[name] = error
        return found
    if root.stamp("job.json") is not None:
        return Catalogue([_job_folder(root, root.uri, places)], {})
    if root.stamp("metadata") is not None or root.names("offsets"):
        beside, cached = _beside(root.uri), _beside_in_cache(root.uri)
        for place in (beside, cached):
            try:
                if place.stamp("job.json") is not None:
                    # The folder's place says which checkpoint it belongs to: the checkpoint may
                    # have been moved.
                    return Catalogue([JobFolder(_read_job(place)[0], place, root.uri, root)], {})
            except StorageError as refused:
                # Credentials are often valid for the checkpoint alone.
                if refused.condition != "ACCESS_DENIED":
                    raise
                beside = cached
        return Catalogue([JobFolder(last_name(root.uri), beside, root.uri, root)], {})
    raise CheckpointError(
        "NO_CHECKPOINT",
        f"{root.uri} is neither a pond nor a checkpoint of a streaming query.",
        hint="Give a folder that `millpond.start` wrote (it has pond.json), or a query's checkpointLocation.",
        uri=root.uri,
    )


def find_job(place: str | Path, job: str | None, *, allow: Iterable[str | Path] = ()) -> JobFolder:
    """The job of a place.

    allow:   places outside of it where the checkpoint may lie
    Raises:  NO_CHECKPOINT; INVALID_REQUEST if the place has several jobs and none is named, or not
             the named one; what its folder raises.
    """
    found = read_catalogue(place, Places.of(allow))
    if job in found.broken:
        raise found.broken[job]
    if job is None and len(found.broken) == 1 and not found.jobs:
        raise next(iter(found.broken.values()))
    jobs = {folder.job: folder for folder in found.jobs}
    if job is None and len(jobs) == 1:
        return next(iter(jobs.values()))
    if job is None or job not in jobs:
        raise RequestError(
            "INVALID_REQUEST",
            f"{place} has no job {job!r}." if job else f"{place} has {len(jobs)} jobs.",
            hint=f"Name one of: {', '.join(sorted(jobs))}." if jobs else "Start a job there first.",
            place=str(place),
        )
    return jobs[job]


def is_pond(uri: str | Path) -> bool:
    """Whether a place is a pond, and not a bare checkpoint or nothing."""
    return open_storage(uri).stamp("pond.json") is not None


def savepoints_folder(uri: str | Path) -> Storage:
    """The folder of a place's savepoints: in the pond, or beside a bare checkpoint.

    It may not exist yet; neither may the checkpoint any more.
    """
    root = open_storage(uri)
    if root.stamp("pond.json") is not None or root.stamp("job.json") is not None:
        return root.folder(_SAVEPOINTS)
    for place in (_beside(root.uri), _beside_in_cache(root.uri)):
        if place.stamp("job.json") is not None:
            return place.folder(_SAVEPOINTS)
    return _beside(root.uri).folder(_SAVEPOINTS)


def wait_for_jobs(uri: str | Path, timeout_seconds: float, *, allow: Iterable[str | Path] = ()) -> None:
    """Return as soon as there is a pond or checkpoint at a path.

    Raises:  NO_CHECKPOINT after the timeout; as `read_catalogue`.
    """
    deadline, places = time.monotonic() + timeout_seconds, Places.of(allow)
    while True:
        try:
            read_catalogue(uri, places)
            return
        except CheckpointError as error:
            left = deadline - time.monotonic()
            if error.condition != "NO_CHECKPOINT" or left <= 0:
                raise
        time.sleep(min(left, ARRIVAL_SECONDS))


def folder_around(checkpoint: str) -> Storage | None:
    """The folder of the job whose checkpoint has this URI, by its name; there may be no such job."""
    parent, _, name = checkpoint.rpartition("/")
    return open_storage(parent) if _is_inside(name) else None


def folders_of(checkpoint: str | Path) -> list[JobFolder]:
    """The job folders of a checkpoint: around it, beside it, and in the cache folder.

    Raises:  CORRUPT_FILE.
    """
    uri = uri_of(checkpoint)
    around = [] if (inside := folder_around(uri)) is None else [inside]
    found = []
    for place in (*around, _beside(uri), _beside_in_cache(uri)):
        try:
            if place.stamp("job.json") is None:
                continue
            job, there, _ = _read_job(place)
        except StorageError as refused:
            if refused.condition != "ACCESS_DENIED":
                raise
            continue
        folder = _inside(place, job, there) if _is_inside(there) else JobFolder(job, place, uri, open_storage(uri))
        if folder.checkpoint == uri and (_is_inside(there) or there == uri):
            found.append(folder)
    return found


def _job_folder(storage: Storage, root: str, places: Places, *, job: str | None = None) -> JobFolder:
    """The job of a folder, if its checkpoint may be read.

    Raises:  CORRUPT_FILE, PLACE_NOT_ALLOWED, UNSUPPORTED.
    """
    named, checkpoint, is_ours = _read_job(storage)
    if job is not None and named != job:  # else two jobs could have one name, or swap names
        raise _corrupt(storage, "job.json", f"it names the job {named!r:.80}, and its folder is {job!r:.80}")
    if _is_inside(checkpoint):
        return _inside(storage, named, checkpoint)
    is_beside = storage.uri == f"{checkpoint}.millpond"
    if not (is_ours or is_beside or is_below(checkpoint, root) or places.allow(checkpoint)):
        raise not_allowed(f"{storage.uri}/job.json", checkpoint)
    fence = places.fence(root) if is_below(checkpoint, root) else places.fence(checkpoint)
    return JobFolder(named, storage, checkpoint, open_storage(checkpoint, fence=fence))


def _is_inside(checkpoint: str) -> bool:
    """Whether job.json names a checkpoint in the job's own folder so."""
    return _INSIDE_NAME.fullmatch(checkpoint) is not None


def _inside(storage: Storage, job: str, name: str) -> JobFolder:
    place = storage.folder(name)
    return JobFolder(job, storage, place.uri, place)


def _read_job(storage: Storage) -> tuple[str, str, bool]:
    """The contents of job.json, and whether only this user can have written it.

    These are the job, and `checkpoint`, `checkpoint-123456789` or the URI of a checkpoint elsewhere.
    """
    text, is_ours = storage.read_ours("job.json", _BOUNDS.note_bytes)
    data = _parse(storage, "job.json", text)
    job, checkpoint = (data.get("job"), data.get("checkpoint")) if isinstance(data, dict) else (None, None)
    if not isinstance(job, str) or not isinstance(checkpoint, str) or not job:
        raise _corrupt(storage, "job.json", "it doesn't name a job and a checkpoint")
    if _is_inside(checkpoint):
        return job, checkpoint, is_ours
    uri = uri_of(checkpoint)
    try:
        is_path = b"\0" not in os.fsencode(uri)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise _corrupt(storage, "job.json", f"{checkpoint!r:.80} isn't a place")
    return job, uri, is_ours


def _read_json(storage: Storage, path: str, most_bytes: int) -> Any:
    return _parse(storage, path, storage.read(path, most_bytes))


def _parse(storage: Storage, path: str, text: bytes) -> Any:
    try:
        return parse_json(text)
    except ValueError as broken:
        raise _corrupt(storage, path, f"it isn't valid JSON: {broken}") from broken


def _corrupt(storage: Storage, path: str, what: str) -> CheckpointError:
    return CheckpointError(
        "CORRUPT_FILE",
        f"{storage.uri}/{path}: {what}.",
        hint="Restore the file from a copy, or delete it and define the tables again.",
        path=f"{storage.uri}/{path}",
    )

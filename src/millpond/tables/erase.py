"""Plan to erase one key of a table, wherever a job has left it.

1. The table's definition says by which columns its rows were grouped, and their stored form.
2. Every place is looked at, and its rows of the key counted: the stopped job's checkpoint, copies
   of it that `rescale` and `rollback` have kept, its savepoints, archives and exports.
3. `run` erases the key from one place after the other (`savepoint.erase.place`), and then deletes
   what is built again by itself: the replica with its history, and the list of hot keys.
4. The receipt is written before the first place and after each one.

What is erased already isn't touched, so a killed command can be run again.
"""

from __future__ import annotations

import datetime as dt
import getpass
import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.catalogue import HOT_KEYS, JobFolder, read_catalogue
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError, RequestError, SavepointError, SetupError
from millpond.ownership.lease import leased
from millpond.ownership.take_over import finish
from millpond.replica.folder import ReplicaPlace
from millpond.savepoint.archive.layout import find_archive
from millpond.savepoint.erase.bucket import RemotePlace
from millpond.savepoint.erase.files import Written, as_json
from millpond.savepoint.erase.key import ErasedColumn, ErasedKey, grouping_fields
from millpond.savepoint.erase.place import FoundRows, Place, open_manifest
from millpond.savepoint.in_place.exchange import UNKNOWN, Found, find_stopped_job
from millpond.savepoint.manage.folder import list_savepoints
from millpond.savepoint.manage.tar import export_savepoint, import_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.threads import Progress
from millpond.schema.convert import to_python
from millpond.schema.definition.table import KeyColumn, TableDefinition, key_parts
from millpond.schema.values import to_json
from millpond.settings import home
from millpond.storage import Storage, open_storage
from millpond.tables.default_tables import unknown_table
from millpond.tables.diff.sides import OpenSide, Source
from millpond.tables.scan.keys import Key, KeyReader
from millpond.versions import meant_table, words_of_meant

_RECEIPTS = "erasures"
_EXPORT = ".erase-"
_EXPORTED = "export"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedPlace:
    """One place in a plan.

    kind:     checkpoint, old copy, savepoint, archive or export
    uri:      where it is
    files:    how many of its files have rows of the key
    records:  how many of their records: versions and deletes count too
    samples:  the grouping columns of the first rows, as JSON
    """

    kind: str
    uri: str
    files: int
    records: int
    samples: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What an erasure has done.

    id:      of the receipt, in its file's name
    uri:     of that file
    data:    its content
    """

    id: str
    uri: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasePlan:
    """An erasure that isn't done yet.

    job:        the job's folder
    asked:      the name of the table that was asked for: its own, or one that means its version
    key:        whose rows are erased
    places:     all that were looked at, with what they have
    replicas:   of the job on this machine, and of its shards
    hot_keys:   whether the job's list of hot keys is deleted
    beyond:     what can't be reached, a sentence each
    take_over:  whether to take the job's lease from whoever has it
    """

    job: JobFolder
    asked: str
    key: ErasedKey
    places: tuple[ErasedPlace, ...]
    replicas: tuple[ReplicaPlace, ...]
    hot_keys: bool
    beyond: tuple[str, ...]
    take_over: bool = False
    _folders: tuple[Place | RemotePlace, ...] = field(repr=False)
    _exports: tuple[Path, ...] = field(repr=False)

    @property
    def records(self) -> int:
        """How many records are erased in all places."""
        return sum(place.records for place in self.places)

    def describe(self) -> str:
        """What will be done, in a few lines."""
        names = ", ".join(column.name for column in self.key.columns)
        lines = [f"erase       rows of {self.key.table} with this {names}, of the job {self.job.job}"]
        lines += words_of_meant(self.asked, self.key.table)
        for place in self.places:
            what = f"{place.records:,} records in {place.files:,} files" if place.files else "none"
            lines.append(f"{place.kind:11} {place.uri}: {what}")
        samples = {json.dumps(sample, ensure_ascii=False): None for place in self.places for sample in place.samples}
        lines += [f"for example {sample:.200}" for sample in list(samples)[:5]]
        gone = "deleted with the history of all keys, and built again when it is used"
        lines += [f"replica     {replica.path}: {gone}" for replica in self.replicas]
        if self.hot_keys:
            lines.append("hot keys    their list is deleted: the job finds them again")
        left = [place.left for place in self._folders if place.left is not None]
        left += [str(_work_of(path)) for path in self._exports if _work_of(path).exists()]
        lines += [f"left        {path}, by a killed command: finished or deleted" for path in left]
        if not self.job.is_inside:
            lines.append(f"careful     {UNKNOWN}")
        lines += [f"beyond      {sentence}" for sentence in self.beyond]
        return "\n".join(lines)

    def run(self, progress: Progress | None = None) -> Receipt:
        """Do it.

        Raises:  CHECKPOINT_IN_USE if the job or a follower runs; UNSUPPORTED, SAVEPOINT_DAMAGED,
                 NOT_WRITABLE, and what the files raise.  Each place either has all its rows then,
                 or none of the key; run it again.
        """
        receipt = _Receipt(self)
        steps = len(self._folders) + len(self._exports)
        checkpoint = self.job.open_checkpoint()
        before = Found.of(checkpoint)
        # Of a job that Millpond doesn't start, nobody keeps a lease.
        held = leased(self.job.storage, "millpond erase", take_over=self.take_over) if self.job.is_inside else nullcontext()
        with held as lease, _not_followed(self.replicas):
            if lease is not None:
                finish(self.job)

            def check() -> None:
                before.check(checkpoint)
                if lease is not None:
                    lease.check()

            receipt.write()
            written = Written()
            for done, place in enumerate(self._folders, 1):
                receipt.add(place.kind, place.uri, place.erase(self.key, written, check))
                if progress is not None:
                    progress(done, steps)
            for done, path in enumerate(self._exports, 1 + len(self._folders)):
                receipt.add(_EXPORTED, str(path), _erase_export(path, self.job.job, self.key))
                if progress is not None:
                    progress(done, steps)
            for replica in self.replicas:
                _delete(replica.path)
            if self.hot_keys:
                self.job.storage.delete(HOT_KEYS)
            receipt.end()
        return receipt.made


def plan_erase(
    place: str | Path,
    table: str,
    key: Key,
    *,
    job: str | None = None,
    archives: Iterable[str | Path] = (),
    exports: Iterable[str | Path] = (),
    take_over: bool = False,
) -> ErasePlan:
    """Plan to erase the rows of one key of a table from everything that a stopped job has left.

    place:     a pond, or the folder of a checkpoint
    key:       key column -> value.  Columns may be left out: then all rows with these values are
               erased, such as all windows of one person
    table:     its own name, or one that means a version of it
    job:       needed in a pond with several jobs; also a name that means a version
    archives:  archives of the job
    exports:   tar files of its savepoints
    take_over: take the job's lease from whoever has it
    Raises:    as `find_job`; CHECKPOINT_IN_USE if the job runs; UNKNOWN_TABLE, UNKNOWN_COLUMN,
               NOT_A_KEY_COLUMN, WRONG_TYPE; INVALID_REQUEST without a column, and for places that
               aren't the job's; UNSUPPORTED for what can't be erased; SAVEPOINT_INCOMPLETE and
               SAVEPOINT_DAMAGED for savepoints that can't be read; what the files raise.
    """
    asked, (job, table) = table, meant_job(place, job, table)
    folder, _ = find_stopped_job(place, job, take_over=take_over)
    side, definition = _opened(folder, table)
    erased = _key_of(side, definition, key)
    folders: list[Place | RemotePlace] = [_place("checkpoint", folder.open_checkpoint())]
    folders += [_place("old copy", copy) for copy in _old_copies(folder)]
    beyond = _beyond(folder, side, definition)
    for savepoint in _savepoints(place):
        if savepoint.manifest.job == folder.job:
            folders.append(_place("savepoint", savepoint.storage))
        else:
            beyond.append(f"the savepoint {savepoint.manifest.name} of another job, {savepoint.manifest.job}")
    for archive in archives:
        if (found := find_archive(archive)) is None:
            raise RequestError("INVALID_REQUEST", f"{archive} is no archive.", hint="Name a folder of `millpond archive`.")
        if (of := found.facts().get("job")) != folder.job:
            raise RequestError("INVALID_REQUEST", f"{archive} is the archive of {of!r:.80}.", hint="Name archives of this job.")
        folders.append(_place("archive", found.storage))
    if any(isinstance(each, RemotePlace) for each in folders):
        beyond.append("older versions of objects, where a bucket keeps them")
    tars = tuple(Path(path).absolute() for path in exports)
    looked: list[tuple[str, str, FoundRows]] = [(each.kind, each.uri, each.find(erased)) for each in folders]
    for path in tars:
        with _imported(path, folder.job) as exported:
            looked.append((_EXPORTED, str(path), exported.find(erased)))
    return ErasePlan(
        job=folder,
        asked=asked,
        key=erased,
        places=tuple(_seen(kind, uri, rows, erased) for kind, uri, rows in looked),
        replicas=tuple(ReplicaPlace.all_of(home(), folder.checkpoint)),
        hot_keys=folder.storage.stamp(HOT_KEYS) is not None,
        beyond=tuple(beyond),
        take_over=take_over,
        _folders=tuple(folders),
        _exports=tars,
    )


def meant_job(place: str | Path, job: str | None, table: str) -> tuple[str | None, str]:
    """The job and the table that names mean, of which each may mean a version.  Raises CORRUPT_FILE."""
    root = open_storage(place)
    meant = meant_table(root, table)
    return (meant if meant != table else None) if job is None else meant_table(root, job), meant


def read_definition(folder: JobFolder, table: str) -> TableDefinition:
    """The definition of a table of a job.  Raises UNKNOWN_TABLE, DEFINITION_MISMATCH."""
    return _opened(folder, table)[1]


def _opened(folder: JobFolder, table: str) -> tuple[OpenSide, TableDefinition]:
    side = Source(folder).open(time.time_ns() // 1_000_000)
    side.check_known([table])
    if table not in side.tables:
        raise unknown_table(table, folder.storage.uri, side.tables)
    return side, side.tables[table]


def _key_of(side: OpenSide, definition: TableDefinition, key: Key) -> ErasedKey:
    table = definition.table
    if not key:
        names = ", ".join(column.name for column in definition.key)
        raise RequestError("INVALID_REQUEST", "No key is given.", hint=f"Name columns of the key of {table}: {names}.")
    (operator,) = read_operator_files(side.storage, side.batch.batch, only=definition.operator)
    stores = {store.name: store for store in read_whole_stores(side.storage, operator)}
    store = stores[definition.store]
    fields = grouping_fields(store)
    parts = {column.name: column for column in key_parts(definition)}
    columns = []
    for name, value in KeyReader(definition).stored(key).items():
        columns.append(_column(definition, store, parts[name], value))
    return ErasedKey(table=table, operator=operator.operator, operator_name=operator.name, fields=fields, columns=tuple(columns))


def _column(definition: TableDefinition, store: WholeStore, column: KeyColumn, value: Any) -> ErasedColumn:
    """Where a column of readers' keys is among those that rows were grouped by."""
    fields = grouping_fields(store)
    family = store.families[definition.family or store.name]
    index, path = column.index + (0 if definition.parts is None else 1), list(column.path)
    is_inside = store.operator.name.startswith("transformWithState") and family.encoder != "plain"
    if is_inside:  # a struct of the grouping columns stands first
        names = [f.name for f in fields]
        at = names.index(path.pop(0)) if index == 0 and path and path[0] in names else -1
    else:
        at = index if index < len(fields) else -1
    if at < 0:
        raise RequestError(
            "INVALID_REQUEST",
            f"{column.name} isn't one of the columns by which the rows of {definition.table} were grouped.",
            hint=f"Name some of: {', '.join(f.name for f in fields)}.",
            column=column.name,
        )
    type_, places = fields[at].type, []
    for name in path:
        names = [f.name for f in type_.fields]
        places.append(names.index(name))
        type_ = type_.fields[places[-1]].type
    if type_.name.startswith("string "):  # a collation finds other spellings equal
        raise CheckpointError(
            "UNSUPPORTED",
            f"{column.name} has the type {type_.name}, in which different texts can be equal.",
            hint="Erase it by another column of the key.",
        )
    return ErasedColumn(name=column.name, place=at, path=tuple(places), value=value)


def _old_copies(folder: JobFolder) -> list[Storage]:
    """What `rescale` and `rollback` have kept beside the checkpoint."""
    if not folder.is_inside:
        return []
    current, files = folder.open_checkpoint().uri, folder.storage.sizes()
    names = [name for name in folder.storage.names() if name.startswith("checkpoint") and name not in files]
    return [copy for name in names if (copy := folder.storage.folder(name)).uri != current]


def _savepoints(place: str | Path) -> list[Savepoint]:
    every = list_savepoints(place)
    for name in every.incomplete:
        raise SavepointError(
            "SAVEPOINT_INCOMPLETE",
            f"The savepoint {name} isn't finished, and may have the key.",
            hint=f"Wait for its command, or delete what it left: millpond savepoint delete … {name}.",
            savepoint=name,
        )
    for error in every.broken.values():
        raise error
    return every.found


def _beyond(folder: JobFolder, side: OpenSide, definition: TableDefinition) -> list[str]:
    """What nobody can erase from here."""
    sources = ", ".join(sorted(side.side.offsets)) or "none"
    found = [
        f"what the job's sources have, at their offsets (sources: {sources}): to read it again brings the key back",
        "archives and exports that aren't named here, backups, and copies that others made",
        "replicas and caches on other machines or in other folders, memory:// and --replica-dir: delete these",
        "rows of other keys whose values mention the key, and Spark's own logs and working folders",
    ]
    known, sink = folder.read_sink()
    if sink is not None:
        found.insert(1, f"what the job has written to its file sink, {sink}")
    else:
        found.insert(1, "what the job has written to its sink" if not known else "what the job has sent to its sink")
    others = sorted(name for name, table in side.tables.items() if table.operator != definition.operator)
    if others:
        found.insert(2, f"the tables of other operators, to be erased one by one: {', '.join(others)}")
    jobs = [other.job for other in read_catalogue(_root_of(folder)).jobs if other.job != folder.job] if folder.is_inside else []
    if jobs:
        found.insert(2, f"other jobs of the pond: {', '.join(sorted(jobs))}")
    return found


def _root_of(folder: JobFolder) -> str:
    """The pond of a job's folder."""
    return folder.storage.uri.rpartition("/jobs/")[0]


def _place(kind: str, storage: Storage) -> Place | RemotePlace:
    path = storage.local_path()
    return RemotePlace(kind=kind, storage=storage) if path is None else Place(kind=kind, path=path)


def _seen(kind: str, uri: str, rows: FoundRows, key: ErasedKey) -> ErasedPlace:
    write = [(f.name, to_python(f.type), to_json(f.type)) for f in key.fields]
    samples = tuple(
        {name: json_of(python_of(value)) for (name, python_of, json_of), value in zip(write, columns, strict=True)}
        for columns in rows.samples
    )
    return ErasedPlace(kind=kind, uri=uri, files=len(rows.files), records=rows.records, samples=samples)


def _work_of(path: Path) -> Path:
    return path.with_name(_EXPORT + path.name)


@contextmanager
def _imported(path: Path, job: str) -> Iterator[Place]:
    """The savepoint of a tar file, in a hidden folder beside it."""
    work = _work_of(path)
    if work.exists():
        _delete(work)
    try:
        folder = import_savepoint(work / "tar", path).storage.local_path()
        assert folder is not None
        if (of := open_manifest(open_storage(folder)).job) != job:
            raise RequestError("INVALID_REQUEST", f"{path} is a savepoint of {of!r:.80}.", hint="Name exports of this job.")
        yield Place(kind=_EXPORTED, path=folder)
    finally:
        if work.exists():
            _delete(work)


def _erase_export(path: Path, job: str, key: ErasedKey) -> FoundRows:
    with _imported(path, job) as place:
        found = place.erase_private(key)
        if found.files:
            storage = open_storage(place.path)
            export_savepoint(Savepoint(open_manifest(storage), storage), path)
        return found


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as broken:
        raise SetupError(
            "NOT_WRITABLE",
            f"{folder} can't be deleted: {broken.strerror}.",
            hint="Delete it as a user that may.",
            path=str(folder),
        ) from broken


@contextmanager
def _not_followed(replicas: tuple[ReplicaPlace, ...]) -> Iterator[None]:
    """Nobody follows the job into these replicas meanwhile.  Raises CHECKPOINT_IN_USE, REPLICA_NOT_WRITABLE."""
    with ExitStack() as locks:
        for replica in replicas:
            if not replica.try_lock():
                raise SavepointError(
                    "CHECKPOINT_IN_USE",
                    f"A program follows this job, and has its rows in {replica.path}.",
                    hint="Stop the servers and readers of this job on this machine, then erase again.",
                    path=str(replica.path),
                )
            locks.callback(replica.unlock)
        yield


class _Receipt:
    """The receipt while the places are erased."""

    def __init__(self, plan: ErasePlan) -> None:
        self._storage = plan.job.storage
        self._id = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        self._salt = secrets.token_hex(16)
        self._plan = plan
        self._places: list[dict[str, Any]] = []
        self._ended_ms: int | None = None
        self._begun_ms = time.time_ns() // 1_000_000

    def add(self, kind: str, uri: str, found: FoundRows) -> None:
        """A place is done."""
        self._places.append({"kind": kind, "uri": uri, "records": found.records, "files": [as_json(file) for file in found.files]})
        self.write()

    def end(self) -> None:
        """All places are done."""
        self._ended_ms = time.time_ns() // 1_000_000
        self.write()

    def write(self) -> None:
        """Write it as it is now."""
        self._storage.write(self._path, json.dumps(self._data(), indent=1, ensure_ascii=False).encode() + b"\n")

    @property
    def made(self) -> Receipt:
        """The receipt."""
        return Receipt(id=self._id, uri=f"{self._storage.uri}/{self._path}", data=self._data())

    @property
    def _path(self) -> str:
        return f"{_RECEIPTS}/{self._id}.json"

    def _data(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "format": 1,
            "id": self._id,
            "begun_ms": self._begun_ms,
            "ended_ms": self._ended_ms,
            "user": _user(),
            "job": plan.job.job,
            "table": plan.key.table,
            "columns": [column.name for column in plan.key.columns],
            "key_sha256": key_hash(plan.key, self._salt),
            "salt": self._salt,
            "places": self._places,
            "replicas": [str(replica.path) for replica in plan.replicas],
            "hot_keys": plan.hot_keys,
            "beyond_reach": list(plan.beyond),
        }


def key_hash(key: ErasedKey, salt: str) -> str:
    """A hash by which somebody who knows the key can find its receipt."""
    values = {column.name: repr(column.value) for column in key.columns}
    return hashlib.sha256((salt + json.dumps(values, sort_keys=True, ensure_ascii=False)).encode()).hexdigest()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user's number
        return "unknown"

"""The files of a checkpoint that Spark needs to start a job after one committed batch N.

1. `metadata`; offsets/N and offsets/N-1; commits/N.
2. sources/<source>/: of a file source's log the newest compacted entry up to the batch's offset and
   the entries after it; of any other source everything.
3. Of each operator the metadata in force, and all schema files that it names.
4. Of each partition the newest snapshot up to version N+1, with its SSTs, and the changes after it.

Spark starts without any other file.

Whoever has copies of the files of batch N-1 needs fewer of batch N: of each partition only the
changes of N.  Then Spark may have deleted the snapshot before them.  Not so in checkpoint format 2,
where a change log names the snapshot that it follows, nor for column families: Spark writes a
snapshot if these change, and only that snapshot names them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.catalogue import KnownState
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import OperatorFiles, check_state, is_single, read_operator_files
from millpond.checkpoint.position import version_of
from millpond.checkpoint.rocksdb.snapshot import folder_and_name, read_snapshot_metadata
from millpond.checkpoint.source_files import ENTRY
from millpond.checkpoint.state import StateReader
from millpond.checkpoint.whole.store import any_rows, read_families
from millpond.errors import CheckpointError
from millpond.schema.store import StoreSchema, store_folder
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.below import files_below

_BOUNDS = FileBounds()
_CHANGES = (".delta", ".changelog")
# A newer snapshot replaces the one before and the changes after it once there are so many changes.
# Spark makes one for every ten.  Those of RocksDB cost little, since most of their SSTs are copied
# already; those of the HDFS-backed provider have all rows.
_MOST_CHANGES = {"rocksdb": 10, "hdfs": 50}
# How often to look for a newer snapshot, in changes: each time lists a folder.
_LOOK_CHANGES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartFile:
    """One file that a restart needs.

    path:        below the checkpoint
    most_bytes:  a larger file of this kind is refused
    is_final:    no other file will ever have this name, so that the file may have several names
    is_settled:  the file stays as it is as long as its job isn't rewound
    partition:   (operator, store, partition) of a state file
    """

    path: str
    most_bytes: int
    is_final: bool = False
    is_settled: bool = False
    partition: tuple[int, str, int] | None = None


def restart_files(
    storage: Storage, batch: CommittedBatch, before: Sequence[RestartFile] = (), *, known: KnownState | None = None
) -> list[RestartFile]:
    """The files, in no order.

    before:  the files of the batch before, if there are copies of them
    known:   of the query's state, as for `gone_state`
    Raises:  FILE_GONE if Spark has cleaned one of them up; CORRUPT_FILE, INCOMPLETE_FILE,
             UNKNOWN_FORMAT, UNSUPPORTED, REWOUND_IN_PLACE.
    Source:  MicroBatchExecution, FileStreamSourceLog, StateStore, Spark 4.3; restarts of every
             operator in tests/spark/savepoint.
    """
    check_state(storage, batch, known)
    found = [RestartFile(path="metadata", most_bytes=_BOUNDS.note_bytes)]  # 1
    if batch.batch > 0:
        found.append(RestartFile(path=f"offsets/{batch.batch - 1}", most_bytes=_BOUNDS.log_bytes, is_settled=True))
    found.append(RestartFile(path=f"commits/{batch.batch}", most_bytes=_BOUNDS.log_bytes, is_settled=True))
    found += plan_files(storage, batch.batch, batch.offsets, before)  # 1, 2
    reader = StateReader(storage)
    state: defaultdict[tuple[int, str, int] | None, list[RestartFile]] = defaultdict(list)
    for file in before:
        state[file.partition].append(file)
    for operator in read_operator_files(storage, batch.batch):
        found += _schema_files(storage, operator)  # 3
        for store, partition in partitions_of_stores(storage, batch, operator):  # 4
            found += partition_files(reader, batch, store, partition, state[store.operator, store.store, partition])
    return found


def plan_files(storage: Storage, batch: int, offsets: dict[str, Any], before: Sequence[RestartFile] = ()) -> list[RestartFile]:
    """The plan of a batch, and what its sources wrote up to its offsets.  Raises as `restart_files`."""
    found = [RestartFile(path=f"offsets/{batch}", most_bytes=_BOUNDS.log_bytes, is_settled=True)]
    logged = {source for source, offset in offsets.items() if log_offset(offset) is not None}
    for source in sorted({*storage.names("sources"), *logged}):
        found += source_files(storage, source, offsets, before)
    return found


def partitions_of_stores(storage: Storage, batch: CommittedBatch, operator: OperatorFiles) -> Iterator[tuple[StoreSchema, int]]:
    """Each store of an operator with each partition that it has files in; the columns of its rows aren't known.

    Raises:  CORRUPT_FILE, UNKNOWN_FORMAT for a schema file.
    """
    for index, store in enumerate(operator.stores):
        schema = any_rows(operator, store, index, single=_is_single(storage, operator, store))
        for partition in _partitions(batch, schema):
            yield schema, partition


def log_offset(offset: Any) -> int | None:
    """The number of the newest entry of a file source's log that an offset includes; None for another source."""
    upto = offset.get("logOffset") if isinstance(offset, dict) and len(offset) == 1 else None
    return upto if isinstance(upto, int) else None


def source_files(
    storage: Storage, source: str, offsets: dict[str, Any], before: Sequence[RestartFile] = ()
) -> Iterator[RestartFile]:
    """What a source wrote up to its offset.  Raises FILE_GONE."""
    folder = f"sources/{source}"
    upto = log_offset(offsets.get(source))
    if upto is None:  # another kind of source, or none of its files read yet
        yield from (RestartFile(path=path, most_bytes=_BOUNDS.source_log_bytes) for path in files_below(storage, folder))
        return
    names = {*storage.sizes(folder), *(file.path.removeprefix(f"{folder}/") for file in before)}
    entries = {(int(m[1]), bool(m[2])) for name in names if (m := ENTRY.fullmatch(name)) and int(m[1]) <= upto}
    compact = max((number for number, is_compact in entries if is_compact), default=-1)
    if compact >= 0:
        yield RestartFile(path=f"{folder}/{compact}.compact", most_bytes=_BOUNDS.source_log_bytes, is_settled=True)
    for number in range(compact + 1, upto + 1):
        if (number, False) not in entries:
            raise CheckpointError(
                "FILE_GONE",
                f"{storage.uri}/{folder} has no entry {number}, which the batch needs.",
                hint="Choose a newer batch.",
                path=f"{storage.uri}/{folder}/{number}",
            )
        yield RestartFile(path=f"{folder}/{number}", most_bytes=_BOUNDS.source_log_bytes, is_settled=True)


def schema_files(operator: OperatorFiles) -> list[str]:
    """The schema files that an operator's metadata names, or that each store has without being named."""
    return [path for paths in operator.stores.values() for path in paths]


def _schema_files(storage: Storage, operator: OperatorFiles) -> Iterator[RestartFile]:
    paths = [path for path in schema_files(operator) if "/_stateSchema/" in path or storage.stamp(path)]
    for path in (operator.metadata, *paths):
        if path is not None:
            yield RestartFile(path=path, most_bytes=_BOUNDS.schema_bytes)


def _is_single(storage: Storage, operator: OperatorFiles, store: str) -> bool:
    families = read_families(storage, operator, store) if storage.stamp(operator.stores[store][-1]) is not None else {}
    return is_single(operator.name, *(family.key for family in families.values()))


def _partitions(batch: CommittedBatch, store: StoreSchema) -> range:
    if batch.state_ids:
        return range(len(batch.state_ids.get(store.operator, ())))
    return range(1 if store.single else batch.settings.partitions)


def partition_files(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, before: Sequence[RestartFile] = ()
) -> Iterator[RestartFile]:
    """The snapshot of a partition that Spark begins with, and the changes after it.

    Raises:  as `restart_files`; that the changes are there isn't checked.
    """
    where = (store.operator, store.store, partition)
    change = _following(reader, batch, store, partition, before)
    if change is not None:
        yield from before
        yield RestartFile(path=change, most_bytes=_BOUNDS.state_bytes, is_settled=True, partition=where)
        return
    base, changes = reader.files(batch, store, partition)
    folder = store_folder(store.operator, partition, store.store)
    if base is None and not changes:
        raise CheckpointError(
            "FILE_GONE",
            f"{reader.storage.uri}/{folder} has no file of batch {batch.batch}.",
            hint="Choose a newer batch.",
            path=f"{reader.storage.uri}/{folder}",
        )
    # Names of checkpoint format 2 have an id of their own; so have SSTs.
    has_ids = bool(batch.state_ids)
    paths = {path: has_ids for path in (base, *changes) if path is not None}
    if base is not None and batch.settings.provider == "rocksdb":
        names = read_snapshot_metadata(reader.storage, *folder_and_name(base)).sst_names.values()
        paths |= {f"{folder}/SSTs/{name}": True for name in sorted(set(names))}
    for path, is_final in paths.items():
        yield RestartFile(path=path, most_bytes=_BOUNDS.state_bytes, is_final=is_final, is_settled=True, partition=where)


def _following(
    reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, before: Sequence[RestartFile]
) -> str | None:
    """The batch's change file, if it and the files of the batch before are what a restart should have."""
    if not before or batch.state_ids:
        return None
    folder, version = store.folder(partition), version_of(batch.batch)
    if batch.settings.provider == "rocksdb" and reader.storage.stamp(f"{folder}/{version}.zip") is not None:
        return None
    changes = sum(file.path.endswith(_CHANGES) for file in before)
    if changes >= _MOST_CHANGES[batch.settings.provider] and changes % _LOOK_CHANGES == 0:
        newest, _ = reader.files(batch, store, partition)
        if newest is not None and newest not in {file.path for file in before}:
            return None
    return reader.change_file(batch, store, partition)

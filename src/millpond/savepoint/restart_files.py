"""The files of a checkpoint that Spark needs to start a job after one committed batch N.

1. `metadata`; offsets/N and offsets/N-1; commits/N.
2. sources/<source>/: of a file source's log the newest compacted entry up to the batch's offset and
   the entries after it; of any other source everything.
3. Of each operator the metadata in force, and all schema files that it names.
4. Of each partition the newest snapshot up to version N+1, with its SSTs, and the changes after it.

Spark starts without any other file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import OperatorFiles, is_single, read_operator_files
from millpond.checkpoint.rocksdb.snapshot import folder_and_name, read_snapshot_metadata
from millpond.checkpoint.schemas import parse_schema
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.schema.store import StoreSchema, store_folder
from millpond.settings import FileBounds
from millpond.storage import Storage
from millpond.storage.below import files_below
from millpond.storage.names import NUMBER

_BOUNDS = FileBounds()
_LOG_ENTRY = re.compile(rf"({NUMBER})(\.compact)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartFile:
    """One file that a restart needs.

    path:        below the checkpoint
    most_bytes:  a larger file of this kind is refused
    is_final:    no other file will ever have this name, so that the file may have several names
    partition:   (operator, store, partition) of a state file
    """

    path: str
    most_bytes: int
    is_final: bool = False
    partition: tuple[int, str, int] | None = None


def restart_files(storage: Storage, batch: CommittedBatch) -> list[RestartFile]:
    """The files, in no order.

    Raises:  FILE_GONE if Spark has cleaned one of them up; CORRUPT_FILE, INCOMPLETE_FILE,
             UNKNOWN_FORMAT, UNSUPPORTED, REWOUND_IN_PLACE.
    Source:  MicroBatchExecution, FileStreamSourceLog, StateStore, Spark 4.3; restarts of every
             operator in tests/spark/savepoint.
    """
    found = [RestartFile(path="metadata", most_bytes=_BOUNDS.note_bytes)]  # 1
    for number in (batch.batch, batch.batch - 1):
        if number >= 0:
            found.append(RestartFile(path=f"offsets/{number}", most_bytes=_BOUNDS.log_bytes))
    found.append(RestartFile(path=f"commits/{batch.batch}", most_bytes=_BOUNDS.log_bytes))
    for source in storage.names("sources"):  # 2
        found += _source_files(storage, source, batch)
    reader = StateReader(storage)
    for operator in read_operator_files(storage, batch.batch):
        found += _schema_files(storage, operator)  # 3
        for index, store in enumerate(operator.stores):  # 4
            schema = _any_rows(operator, store, index, single=_is_single(storage, operator, store))
            for partition in _partitions(batch, schema):
                found += _state_files(reader, batch, schema, partition)
    return found


def _source_files(storage: Storage, source: str, batch: CommittedBatch) -> Iterable[RestartFile]:
    folder = f"sources/{source}"
    offset = batch.offsets.get(source)
    upto = offset.get("logOffset") if isinstance(offset, dict) and len(offset) == 1 else None
    entries = {name: m for name in storage.sizes(folder) if (m := _LOG_ENTRY.fullmatch(name))}
    if not isinstance(upto, int):  # another kind of source, or none of its files read yet
        paths = [*files_below(storage, folder)]
    else:
        numbered = {name: (int(m[1]), bool(m[2])) for name, m in entries.items() if int(m[1]) <= upto}
        compact = max((number for number, is_compact in numbered.values() if is_compact), default=-1)
        paths = [
            f"{folder}/{name}"
            for name, (number, is_compact) in numbered.items()
            if number > compact or (number == compact and is_compact)
        ]
    return (RestartFile(path=path, most_bytes=_BOUNDS.source_log_bytes) for path in paths)


def _schema_files(storage: Storage, operator: OperatorFiles) -> Iterator[RestartFile]:
    paths = [path for paths in operator.stores.values() for path in paths if "/_stateSchema/" in path or storage.stamp(path)]
    for path in (operator.metadata, *paths):
        if path is not None:
            yield RestartFile(path=path, most_bytes=_BOUNDS.schema_bytes)


def _is_single(storage: Storage, operator: OperatorFiles, store: str) -> bool:
    path = operator.stores[store][-1]
    families = parse_schema(storage.read(path, _BOUNDS.schema_bytes)) if storage.stamp(path) is not None else []
    return is_single(operator.name, *(family.key for family in families))


def _any_rows(operator: OperatorFiles, store: str, index: int, *, single: bool) -> StoreSchema:
    """The store without its columns, which don't matter for finding its files."""
    return StoreSchema(
        operator=operator.operator, operator_name=operator.name, store=store, index=index, key=(), value=(), single=single
    )


def _partitions(batch: CommittedBatch, store: StoreSchema) -> range:
    if batch.state_ids:
        return range(len(batch.state_ids.get(store.operator, ())))
    return range(1 if store.single else batch.settings.partitions)


def _state_files(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[RestartFile]:
    base, changes = reader.files(batch, store, partition)
    folder = store_folder(store.operator, partition, store.store)
    if base is None and not changes:
        raise CheckpointError(
            "FILE_GONE",
            f"{reader.storage.uri}/{folder} has no file of batch {batch.batch}.",
            hint="Choose a newer batch.",
            path=f"{reader.storage.uri}/{folder}",
        )
    where = (store.operator, store.store, partition)
    # Names of checkpoint format 2 have an id of their own; so have SSTs.
    is_final = bool(batch.state_ids)
    if base is not None:
        yield RestartFile(path=base, most_bytes=_BOUNDS.state_bytes, is_final=is_final, partition=where)
        if batch.settings.provider == "rocksdb":
            for name in sorted(set(read_snapshot_metadata(reader.storage, *folder_and_name(base)).sst_names.values())):
                yield RestartFile(path=f"{folder}/SSTs/{name}", most_bytes=_BOUNDS.state_bytes, is_final=True, partition=where)
    for path in changes:
        yield RestartFile(path=path, most_bytes=_BOUNDS.state_bytes, is_final=is_final, partition=where)

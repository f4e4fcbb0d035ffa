"""A batch of Millpond's own after the last one of a stopped job: it changes rows, and has no events.

1. Write the change file of each partition of each store, as Spark would, also of those without
   changes.  A RocksDB store gets a change log, whether or not the job writes them: Spark loads the
   newest snapshot and then the logs after it.
2. Write offsets/N+1: the offsets and the watermark of the batch before, and a setting that says that
   the batch is a repair, which Spark ignores.
3. Create commits/N+1, if it isn't there.  That decides.

Who is killed before the third step has changed nothing: Spark runs the batch N+1 as one without
events, and replaces the change files, or in checkpoint format 2 uses others.  Replicas apply the
batch like any other.

Rejected: a copy of the state with other rows, which takes the checkpoint's place.  The job stands
still for as long as all its state takes to write, and a reader can't see which rows have changed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from millpond.checkpoint.encoding import with_checksums
from millpond.checkpoint.files.checksums import crc32c
from millpond.checkpoint.files.pack import pack
from millpond.checkpoint.files.records import DELETE, Changelog, Record, encode_changes, parse_changelog_header
from millpond.checkpoint.log import CommittedBatch, with_start, with_state_ids
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch, version_of
from millpond.checkpoint.state import StateReader, partitions_of, rocksdb_name, unpack
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import SavepointError
from millpond.settings import FileBounds
from millpond.storage import Storage

_BOUNDS = FileBounds()
_CRC_BYTES = 4
RowChanges = Mapping[tuple[int, str], Mapping[int, Sequence[Record]]]
"""(operator, store) -> partition -> puts and deletes, with keys and values as the provider has them, without checksums"""


def write_patch(
    storage: Storage, batch: CommittedBatch, changes: RowChanges, what: str, check: Callable[[], None] = lambda: None
) -> Batch:
    """Commit a batch after the last committed one; returns its number.

    storage:  the checkpoint of a stopped job, whose lease the caller has
    batch:    the last committed one; none is planned after it
    what:     is repaired, in one word
    check:    raises if the batch mustn't be committed any more
    Raises:   CHECKPOINT_IN_USE if somebody else has committed that batch; NOT_WRITABLE, and what
              the storage raises.
    """
    following = Batch(batch.batch + 1)
    started_ms = max(time.time_ns() // 1_000_000, batch.started_ms + 1)
    ids: dict[int, list[list[str]]] = {}
    for operator in read_operator_files(storage, batch.batch):  # 1
        stores = read_whole_stores(storage, operator)
        if batch.state_ids:
            ids[operator.operator] = [[str(uuid.uuid4()) for _ in stores] for _ in partitions_of(batch, stores[0].files)]
        for store in stores:
            by_partition = changes.get((operator.operator, store.name), {})
            for partition in partitions_of(batch, store.files):
                name = ids[operator.operator][partition][store.files.index] if batch.state_ids else None
                _write_changes(storage, batch, store, partition, by_partition.get(partition, ()), name)
    path = f"offsets/{batch.batch}"
    plan = with_start(
        storage.read(path, _BOUNDS.log_bytes), path, started_ms, batch.planned_watermark_ms, repair=f"{what} {uuid.uuid4().hex}"
    )
    check()
    if not storage.create(f"offsets/{following}", plan):  # 2
        raise _in_use(storage, following, "planned")
    storage.sync()
    path = f"commits/{batch.batch}"
    commit = storage.read(path, _BOUNDS.log_bytes)
    check()
    if not storage.create(f"commits/{following}", with_state_ids(commit, path, ids) if ids else commit):  # 3
        raise _in_use(storage, following, "committed")
    return following


def _in_use(storage: Storage, batch: Batch, done: str) -> SavepointError:
    return SavepointError(
        "CHECKPOINT_IN_USE",
        f"Another program has {done} batch {batch} of {storage.uri} meanwhile.",
        hint="Stop the job first; what it has done stays.",
        uri=storage.uri,
    )


def _write_changes(
    storage: Storage, batch: CommittedBatch, store: WholeStore, partition: int, changes: Iterable[Record], state_id: str | None
) -> None:
    folder, version = store.files.folder(partition), version_of(batch.batch) + 1
    if batch.settings.provider == "hdfs":
        path, header = f"{folder}/{version}.delta", None
    else:
        name = str(version) if state_id is None else f"{version}_{state_id}"
        path = f"{folder}/{name}.changelog"
        header = _header(storage, batch, store, partition)
    # Hadoop's checksum of a file that an attempt of Spark's has left.
    storage.delete(f"{folder}/.{path.rpartition('/')[2]}.crc")
    records = _with_checksums(changes, batch) if batch.settings.row_checksum else changes
    storage.write_pieces(path, pack(batch.settings.codec, encode_changes(records, header)))


def _with_checksums(changes: Iterable[Record], batch: CommittedBatch) -> Iterator[Record]:
    for kind, key, value in changes:
        if kind == DELETE:
            yield kind, crc32c(key).to_bytes(_CRC_BYTES, "little") + key, value
        elif batch.settings.provider == "hdfs":
            yield kind, key, crc32c(key + value).to_bytes(_CRC_BYTES, "little") + value
        else:
            yield kind, key, with_checksums(key, [value], batch.settings.merge_delimiter)


def _header(storage: Storage, batch: CommittedBatch, store: WholeStore, partition: int) -> Changelog:
    typed = store.has_families
    if not batch.state_ids:
        return Changelog(2 if typed else 1, (), 0)
    version = version_of(batch.batch)
    name = rocksdb_name(batch, store.files, partition, version)
    state_id = name.split("_", 1)[1]
    lineage: tuple[tuple[int, str], ...] = ()
    before = StateReader(storage).change_file(batch, store.files, partition)
    if before is not None and storage.stamp(f"{store.files.folder(partition)}/{name}.zip") is None:
        lineage = parse_changelog_header(unpack(storage, before, batch.settings.codec)).lineage
    return Changelog(4 if typed else 3, (*lineage, (version, state_id)), 0)

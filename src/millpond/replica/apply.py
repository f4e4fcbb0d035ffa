"""Moves a replica from a batch to the next one.

1. Read every partition's change file of every store, and turn keys into ordered keys.  If a file is
   missing, apply nothing.
2. Check that commits/N is still the one that was read: state files of an uncommitted batch may be
   replaced.
3. Put and delete all rows, and move the record, in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.bulk.stream import read_changes
from millpond.checkpoint.files.records import DELETE, PUT, Record
from millpond.checkpoint.log import CommittedBatch, check_still_committed
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.replica.backends.base import Backend
from millpond.replica.history.keeper import (
    GONE,
    GONE_UNSEEN,
    Appended,
    Changes,
    Gone,
    Keeper,
)
from millpond.replica.indexes import IndexedWrite, Indexes
from millpond.replica.keys.codec import MAX_KEY_BYTES, KeyCodec, join_value, store_key
from millpond.replica.keys.transcode import KeysTranscoder, Transcode, key_transcoder
from millpond.replica.record import ReplicaRecord
from millpond.schema.shard import Shard
from millpond.schema.store import StoreSchema


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """A store, and the encoding of its keys in the replica."""

    name: str
    schema: StoreSchema
    transcode_key: Transcode
    keys: KeysTranscoder


def plan_tables(stores: Iterable[StoreSchema]) -> list[ReplicaTable]:
    """One table for each store."""
    return [ReplicaTable(s.id, s, key_transcoder(s.key, KeyCodec(s.key)), KeysTranscoder(s.key)) for s in stores]


def apply_batch(
    reader: StateReader,
    backend: Backend,
    batch: CommittedBatch,
    tables: list[ReplicaTable],
    keeper: Keeper,
    before: ReplicaRecord,
    *,
    indexes: Indexes,
    reads: int = 1,
    shard: Shard | None = None,
) -> int:
    """Move a replica from the previous batch to `batch`; returns how many rows changed.

    before:  the replica's record
    indexes: those of the replica
    reads:   how many change files to read at the same time
    shard:   the partitions that the replica follows; None for all
    Raises:  FILE_GONE if a change file is missing: build again.  After any error, nothing was
             applied.
    """
    changed: dict[str, Changes] = {table.name: {} for table in tables}
    # Without new input, a batch doesn't change a row before it deletes the row.
    is_idle = batch.offsets == before.offsets
    hidden: set[str] = set()
    for table, records, tells_all in _changes_of(reader, batch, files_of(batch, tables, shard), reads):  # 1
        certain = is_idle or tells_all
        collect(table, records, changed[table.name], GONE if certain else GONE_UNSEEN)
        if not certain:
            hidden.add(table.name)
    check_still_committed(reader.storage, batch)  # 2
    with backend.write() as write:  # 3
        indexed = IndexedWrite(write, indexes) if indexes else write
        write.set_record(keeper.write(indexed, batch, changed, before, hidden))
    return sum(len(changes) for changes in changed.values())


def _changes_of(
    reader: StateReader, batch: CommittedBatch, files: list[tuple[int, list[ReplicaTable]]], reads: int
) -> Iterator[tuple[ReplicaTable, RowChunk | Iterable[Record], bool]]:
    """The changes of every table and partition, each with whether the batch wrote no others there."""
    if reads == 1 or len(files) <= 1:
        for partition, sharing in files:
            yield from ((table, *read_changes(reader, batch, table.schema, partition)) for table in sharing)
        return

    def read(item: tuple[int, list[ReplicaTable]]) -> list[tuple[ReplicaTable, RowChunk | list[Record], bool]]:
        partition, sharing = item
        found = ((table, *read_changes(reader, batch, table.schema, partition)) for table in sharing)
        return [(table, rows if isinstance(rows, RowChunk) else list(rows), tells_all) for table, rows, tells_all in found]

    with ThreadPoolExecutor(min(reads, len(files)), thread_name_prefix="millpond-read") as pool:
        try:
            for found in pool.map(read, files):
                yield from found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def files_of(batch: CommittedBatch, tables: list[ReplicaTable], shard: Shard | None = None) -> list[tuple[int, list[ReplicaTable]]]:
    """Every partition of every store, or those of a shard, with its tables: column families of one store share files."""
    found: dict[tuple[int, str, int], tuple[int, list[ReplicaTable]]] = {}
    for table in tables:
        partitions = partitions_of(batch, table.schema)
        for partition in partitions if shard is None else shard.partitions(len(partitions)):
            place = (table.schema.operator, table.schema.store, partition)
            found.setdefault(place, (partition, []))[1].append(table)
    return [found[place] for place in sorted(found)]


def collect(table: ReplicaTable, records: RowChunk | Iterable[Record], changes: Changes, gone: Gone) -> None:
    """Add records to the changes of a table.

    Of several records for one key, the last and later appends count.

    gone:  the mark for a deleted key that these records didn't put before
    """
    transcode = table.transcode_key
    if isinstance(records, RowChunk):
        keys = table.keys.transcode(records.keys)
        if keys is not None and records.gone is None:
            changes.update(zip(keys, records.values.tolist(), strict=True))
            return
        if keys is not None:
            transcode = bytes  # these keys are already ordered keys
        records = records.records(keys)
    for kind, key_row, value_row in records:
        ordered = transcode(key_row)
        stored_key = ordered if len(ordered) < MAX_KEY_BYTES else store_key(ordered)
        if kind == PUT:
            changes[stored_key] = value_row if stored_key is ordered else join_value(ordered, value_row)
        elif kind == DELETE:
            before = changes.get(stored_key)
            if not isinstance(before, Gone):  # a second delete keeps the mark, with the row's last value
                changes[stored_key] = Gone(before) if isinstance(before, bytes) else gone
        else:
            _append(changes, stored_key, join_value(ordered, b""), value_row)


def _append(changes: Changes, stored_key: bytes, front: bytes, tail: bytes) -> None:
    before = changes.get(stored_key)
    if before is None:
        changes[stored_key] = Appended(front, tail)
    elif isinstance(before, Appended):
        before.tail += tail
    else:
        changes[stored_key] = (front if isinstance(before, Gone) else before) + tail

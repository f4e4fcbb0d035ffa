"""Bring a replica from nothing to a batch, or from a batch to the next one.

apply_batch     1. Read every partition's change file of every store, and turn keys into ordered keys.  A file that isn't there is
                   a gap: nothing is applied.
                2. Check that commits/N is still the one that was read: state files of an uncommitted batch may be replaced.
                3. Put and delete everything, and move the record, in one transaction.

build           1. Apply the newest snapshot of every store and partition and the changes after it, in transactions of bounded size:
                   nobody reads this generation yet.
                2. Check that commits/N is still the one that was read.
                3. Write the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import StoreSchema
from millpond.checkpoint.records import PUT, Record
from millpond.checkpoint.state import iter_changes, iter_state, partitions_of
from millpond.errors import CheckpointError
from millpond.replica.backend import Backend, WriteBatch
from millpond.replica.ordered import MAX_KEY_BYTES, KeyCodec, join_value, store_key
from millpond.replica.record import StoresRecord, make_record, table_id
from millpond.replica.transcode import Transcode, key_transcoder
from millpond.storage import Storage

Changes = dict[bytes, bytes | None]
"""key in the replica -> value, None for a delete"""
Progress = Callable[[int, int, int], None]
"""(partitions done, partitions in all, rows so far)"""


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """A store, and how its keys are written into the replica."""

    name: str
    schema: StoreSchema
    transcode_key: Transcode


def plan_tables(stores: Iterable[StoreSchema]) -> list[ReplicaTable]:
    """One table a store."""
    return [ReplicaTable(table_id(s.operator, s.store), s, key_transcoder(s.key, KeyCodec(s.key))) for s in stores]


def apply_batch(storage: Storage, backend: Backend, batch: CommittedBatch, tables: list[ReplicaTable], *, reads: int = 1) -> int:
    """Move a replica from the batch before to `batch`; how many rows changed.

    reads:   how many change files are got at the same time
    Raises:  FILE_GONE where a change file isn't there: build again.  Whatever is raised, nothing was applied.
    """
    changed: list[tuple[str, Changes]] = []
    for table in tables:  # 1
        changes: Changes = {}
        for records in _changes_of(storage, batch, table.schema, reads):
            collect(table, records, changes)
        changed.append((table.name, changes))
    check_still_committed(storage, batch)  # 2
    with backend.write() as write:  # 3
        for name, changes in changed:
            write_changes(write, name, changes)
        write.set_record(make_record(batch))
    return sum(len(changes) for _, changes in changed)


def _changes_of(storage: Storage, batch: CommittedBatch, store: StoreSchema, reads: int) -> Iterator[Iterable[Record]]:
    """The changes of each partition, in their order."""
    partitions = partitions_of(batch, store)
    if reads == 1 or len(partitions) == 1:
        yield from (iter_changes(storage, batch, store, partition) for partition in partitions)
        return
    with ThreadPoolExecutor(min(reads, len(partitions)), thread_name_prefix="millpond-read") as pool:
        try:
            yield from pool.map(lambda partition: list(iter_changes(storage, batch, store, partition)), partitions)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def build(
    storage: Storage,
    backend: Backend,
    batch: CommittedBatch,
    stores: StoresRecord,
    *,
    chunk_rows: int,
    progress: Progress,
) -> int:
    """Fill an empty backend with the whole state of `batch`; how many records were read.

    Raises:  FILE_GONE where Spark cleaned a file up meanwhile: begin again with a newer batch, in a new backend.
    """
    tables = plan_tables(stores.schemas())
    backend.create([t.name for t in tables])
    work = [(table, partition) for table in tables for partition in partitions_of(batch, table.schema)]
    records = 0
    for done, (table, partition) in enumerate(work):  # 1
        changes: Changes = {}
        for record in iter_state(storage, batch, table.schema, partition):
            collect(table, (record,), changes)
            records += 1
            if len(changes) >= chunk_rows:
                with backend.write() as write:
                    write_changes(write, table.name, changes)
                changes = {}
                progress(done, len(work), records)
        with backend.write() as write:
            write_changes(write, table.name, changes)
        progress(done + 1, len(work), records)
    check_still_committed(storage, batch)  # 2
    backend.set_stores(stores)
    with backend.write() as write:  # 3
        write.set_record(make_record(batch))
    return records


def collect(table: ReplicaTable, records: Iterable[Record], changes: Changes) -> None:
    """Add records to the changes of a table; of several for one key the last counts."""
    transcode = table.transcode_key
    for kind, key_row, value_row in records:
        ordered = transcode(key_row)
        if len(ordered) < MAX_KEY_BYTES:
            changes[ordered] = value_row if kind == PUT else None
        else:
            changes[store_key(ordered)] = join_value(ordered, value_row) if kind == PUT else None


def write_changes(write: WriteBatch, table: str, changes: Changes) -> None:
    """Put and delete the changes of a table, in key order: neighbours share pages."""
    puts = [(key, value) for key, value in changes.items() if value is not None]
    puts.sort()
    write.put(table, puts)
    if len(puts) < len(changes):
        write.delete(table, sorted(key for key, value in changes.items() if value is None))


def check_still_committed(storage: Storage, batch: CommittedBatch) -> None:
    """Raise FILE_GONE where commits/N isn't the file that was read: what was decoded may belong to another run."""
    if storage.stamp(f"commits/{batch.batch}") != batch.commit_stamp:
        raise CheckpointError(
            "FILE_GONE",
            f"commits/{batch.batch} changed while its batch was read.",
            hint="Ask again in a moment; the replica is built again by itself.",
            batch=batch.batch,
        )

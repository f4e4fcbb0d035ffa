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

import msgspec

from millpond.checkpoint.chunks import iter_state, read_changes
from millpond.checkpoint.log import CommittedBatch, check_still_committed
from millpond.checkpoint.operators import StoreSchema
from millpond.checkpoint.records import DELETE, PUT, Record
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.checkpoint.whole import Part, only_newest
from millpond.replica.backend import Backend
from millpond.replica.kept import (
    GONE,
    GONE_UNSEEN,
    Appended,
    Changes,
    Gone,
    Keeper,
    put_rows,
    table_names,
    write_position,
)
from millpond.replica.ordered import MAX_KEY_BYTES, KeyCodec, join_value, store_key
from millpond.replica.record import ReplicaRecord, StoresRecord, make_record
from millpond.replica.stamp import stamp_at_most
from millpond.replica.transcode import KeysTranscoder, Transcode, key_transcoder

Progress = Callable[[int, int, int], None]
"""(partitions done, partitions in all, rows so far)"""


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """A store, and how its keys are written into the replica."""

    name: str
    schema: StoreSchema
    transcode_key: Transcode
    keys: KeysTranscoder


def plan_tables(stores: Iterable[StoreSchema]) -> list[ReplicaTable]:
    """One table a store."""
    return [ReplicaTable(s.id, s, key_transcoder(s.key, KeyCodec(s.key)), KeysTranscoder(s.key)) for s in stores]


def apply_batch(
    reader: StateReader,
    backend: Backend,
    batch: CommittedBatch,
    tables: list[ReplicaTable],
    keeper: Keeper,
    before: ReplicaRecord,
    *,
    reads: int = 1,
) -> int:
    """Move a replica from the batch before to `batch`; how many rows changed.

    before:  the replica's record
    reads:   how many change files are got at the same time
    Raises:  FILE_GONE where a change file isn't there: build again.  Whatever is raised, nothing was applied.
    """
    changed: dict[str, Changes] = {table.name: {} for table in tables}
    # Without new input a batch changes no row before it deletes it.
    is_idle = batch.offsets == before.offsets
    for table, records, tells_all in _changes_of(reader, batch, tables, reads):  # 1
        collect(table, records, changed[table.name], GONE if is_idle or tells_all else GONE_UNSEEN)
    check_still_committed(reader.storage, batch)  # 2
    with backend.write() as write:  # 3
        write.set_record(keeper.write(write, batch, changed, before))
    return sum(len(changes) for changes in changed.values())


def _changes_of(
    reader: StateReader, batch: CommittedBatch, tables: list[ReplicaTable], reads: int
) -> Iterator[tuple[ReplicaTable, Part | Iterable[Record], bool]]:
    """The changes of every table and partition, and whether they are all that the batch wrote there."""
    work = _work(batch, tables)
    if reads == 1 or len(work) == 1:
        yield from ((table, *read_changes(reader, batch, table.schema, partition)) for table, partition in work)
        return
    files: dict[tuple[int, str, int], list[ReplicaTable]] = {}
    for table, partition in work:
        files.setdefault((table.schema.operator, table.schema.store, partition), []).append(table)

    def read(item: tuple[tuple[int, str, int], list[ReplicaTable]]) -> list[tuple[ReplicaTable, Part | list[Record], bool]]:
        (_, _, partition), sharing = item
        found = ((table, *read_changes(reader, batch, table.schema, partition)) for table in sharing)
        return [(table, rows if isinstance(rows, Part) else list(rows), tells_all) for table, rows, tells_all in found]

    with ThreadPoolExecutor(min(reads, len(files)), thread_name_prefix="millpond-read") as pool:
        try:
            for found in pool.map(read, files.items()):
                yield from found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def build(
    reader: StateReader,
    backend: Backend,
    batch: CommittedBatch,
    stores: StoresRecord,
    keeper: Keeper,
    *,
    chunk_rows: int,
    progress: Progress,
) -> int:
    """Fill an empty backend with the whole state of `batch`; how many records were read.

    Raises:  FILE_GONE where Spark cleaned a file up meanwhile: begin again with a newer batch, in a new backend.
    """
    tables = plan_tables(stores.schemas())
    backend.create(table_names(t.name for t in tables))
    work = _work(batch, tables)
    records, mark = 0, stamp_at_most(batch.batch)
    for done, (table, partition) in enumerate(work):  # 1
        changes: Changes = {}
        for rows in _iter_bounded(reader, batch, table, partition, chunk_rows):
            collect(table, rows, changes, GONE)
            records += len(rows)
            if len(changes) >= chunk_rows:
                with backend.write() as write:
                    write.delete(table.name, put_rows(write, table.name, changes, mark))
                changes = {}
                progress(done, len(work), records)
        with backend.write() as write:
            write.delete(table.name, put_rows(write, table.name, changes, mark))
        progress(done + 1, len(work), records)
    check_still_committed(reader.storage, batch)  # 2
    backend.set_stores(stores)
    with backend.write() as write:  # 3
        reached = make_record(batch)
        write_position(write, reached)
        write.set_record(msgspec.structs.replace(reached, kept=keeper.begin(batch.batch)))
    return records


def _iter_bounded(
    reader: StateReader, batch: CommittedBatch, table: ReplicaTable, partition: int, chunk_rows: int
) -> Iterator[Part | list[Record]]:
    """The rows of a state, not many more than `chunk_rows` at a time, those of a file in key order where that can be."""
    for rows in iter_state(reader, batch, table.schema, partition):
        if isinstance(rows, Part) and len(rows) > chunk_rows:
            yield from _in_key_order(table, rows, chunk_rows)
        else:
            yield rows


def _in_key_order(table: ReplicaTable, rows: Part, chunk_rows: int) -> Iterator[Part]:
    """The rows of a part in pieces, each of which reaches a small part of the replica's pages only."""
    rows = only_newest(rows)  # which of two rows of a key is newer is told by their order in the file
    order = table.keys.order(rows.keys) if rows.unique else None
    for first in range(0, len(rows), chunk_rows):
        yield rows.slice(first, first + chunk_rows) if order is None else rows.select(order[first : first + chunk_rows])


def _work(batch: CommittedBatch, tables: list[ReplicaTable]) -> list[tuple[ReplicaTable, int]]:
    """Every partition of every table; column families of one store one after the other, since they share files."""
    work = [(table, partition) for table in tables for partition in partitions_of(batch, table.schema)]
    return sorted(work, key=lambda item: (item[0].schema.operator, item[0].schema.store, item[1]))


def collect(table: ReplicaTable, records: Part | Iterable[Record], changes: Changes, gone: Gone) -> None:
    """Add records to the changes of a table; of several for one key the last counts, and what was appended after it.

    gone:  what a deleted key is that these records didn't put before
    """
    transcode = table.transcode_key
    if isinstance(records, Part):
        keys = table.keys.transcode(records.keys)
        if keys is not None and records.gone is None:
            changes.update(zip(keys, records.values.tolist(), strict=True))
            return
        if keys is not None:
            transcode = bytes  # they are ordered keys already
        records = records.records(keys)
    for kind, key_row, value_row in records:
        ordered = transcode(key_row)
        stored_key = ordered if len(ordered) < MAX_KEY_BYTES else store_key(ordered)
        if kind == PUT:
            changes[stored_key] = value_row if stored_key is ordered else join_value(ordered, value_row)
        elif kind == DELETE:
            before = changes.get(stored_key)
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

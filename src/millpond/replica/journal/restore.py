"""Restores expired rows from the journal into a new generation, if no older generation can be trusted.

1. The mark's batch must be of the same run of the same job as the checkpoint, as for any replica
   (`identity`).  A job that was replaced, or rewound beyond it, gets nothing.
2. Restore the rows of a store with the same schema, of batches up to the mark's and up to the built
   one.  For each key, the newest row counts; a key that is in the state is live.
3. If expired keys may be written again (a TTL), a row may have been written and expired unseen
   since the mark, unless the mark is of the built batch.  Then we know that it expired, but not its
   last value.
4. Remove rows that are beyond their retention by now.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from millpond.checkpoint.identity import judge
from millpond.checkpoint.log import CommittedBatch
from millpond.replica.backends.base import Backend
from millpond.replica.history.delete_cause import may_return
from millpond.replica.history.keeper import ClosedRow, ClosedRows, Keeper, closed_table, unknown, write_closed
from millpond.replica.journal.segments import Mark, is_whole, iter_store, read_mark, store_folder
from millpond.replica.record import KeptRecord, StoresRecord
from millpond.replica.row_stamp import changed_batch
from millpond.schema.store import StoreSchema
from millpond.storage import Storage


def restore_closed(
    place: Path, storage: Storage, batch: CommittedBatch, backend: Backend, stores: StoresRecord, keeper: Keeper
) -> None:
    """Restore expired rows into a generation that was built at `batch`, and that nobody reads yet.

    place:   the replica's folder
    Raises:  STORAGE_UNAVAILABLE, ACCESS_DENIED; DISK_FULL, REPLICA_NOT_WRITABLE.
    """
    mark = read_mark(place)
    if mark is None or (mark.checkpoint, mark.job_id) != (stores.checkpoint, stores.job_id):
        return
    if judge(storage, mark, mark.job_id)[0] == "replaced":  # 1
        return
    with backend.snapshot() as snapshot:
        record = snapshot.record()
    kept = dict(record.kept)
    for store in stores.stores:
        if not keeper.of(store.id).keeps_closed or store_folder(store.id) not in mark.ends:
            continue
        size = _restore(place / mark.folder, mark, batch, backend, store, keeper.of(store.id).number)
        with backend.write() as write:
            restored = msgspec.structs.replace(kept.get(store.id, KeptRecord()), closed_bytes=size)
            kept[store.id] = keeper.forget_closed(write, store.id, restored, batch)  # 4
            write.set_record(msgspec.structs.replace(record, kept=kept))


def _restore(folder: Path, mark: Mark, batch: CommittedBatch, backend: Backend, store: StoreSchema, number: int) -> int:
    """Restore the rows of one store; returns how many bytes they take."""
    name, size, table = store_folder(store.id), 0, closed_table(store.id)
    is_known = not may_return(store) or (mark.batch == batch.batch and is_whole(folder / name, mark.ends[name]))  # 3
    for found in iter_store(folder / name, store):
        if found.batch > min(mark.batch, batch.batch):
            continue
        with backend.write() as write:  # 2
            rows = [
                row if is_known else ClosedRow(row.number, row.key, unknown(row.key, row.value))
                for row in found.rows
                if (there := write.get(table, row.key)) is None or (changed_batch(there) or 0) <= found.batch
            ]
            size += write_closed(write, store.id, number, ClosedRows(found.batch, found.started_ms, rows))
    return size

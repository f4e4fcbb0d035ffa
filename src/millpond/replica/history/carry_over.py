"""Carries history and expired rows over to a new build, after Spark cleaned up the next batch.

1. Copy expired rows, changes and positions of every store with the same schema.
2. Compare the rows of both generations, in key order.  Each difference is one change, of all
   batches in between.  A missing row has expired if nothing else removes rows; its last value was
   never seen.  If the job's own code, or merged sessions, may have removed it, the cause is
   unknown.
3. Write the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from millpond.replica.backends.base import Backend, Snapshot
from millpond.replica.history.delete_cause import only_expires
from millpond.replica.history.keeper import (
    BATCHES,
    ORDER,
    SHARED_TABLES,
    Change,
    ClosedRow,
    ClosedRows,
    Keeper,
    closed_table,
    unknown,
    write_changes,
    write_closed,
)
from millpond.replica.record import KeptRecord, ReplicaRecord, StoresRecord
from millpond.replica.row_stamp import STAMP_BYTES, stamp
from millpond.schema.store import StoreSchema

_FIRST = b"\x00"
Pairs = Iterator[tuple[bytes, bytes]]


def carry_over(
    old: Backend, old_stores: StoresRecord, new: Backend, stores: StoresRecord, keeper: Keeper, *, chunk_rows: int
) -> None:
    """Carry an older generation's history and expired rows into a newer one, which nobody reads yet."""
    known = stores.stores
    same = {number: store for number, store in enumerate(old_stores.stores) if store in known}
    with old.snapshot() as before, new.snapshot() as after:
        was, now = before.record(), after.record()
        for store in same.values():  # 1
            _copy(new, closed_table(store.id), before.iterate(closed_table(store.id), _FIRST), chunk_rows)
        with_history = {n: s for n, s in same.items() if keeper.of(s.id).retention.keeps_history}
        for table in SHARED_TABLES:
            pairs = before.iterate(table, _FIRST)
            if table != BATCHES:
                wanted = same if table == ORDER else with_history
                pairs = _renumbered(pairs, {_number(n): _number(keeper.of(s.id).number) for n, s in wanted.items()})
            _copy(new, table, pairs, chunk_rows)
        kept = dict(now.kept)
        for store in same.values():  # 2
            kept[store.id] = _difference(before, after, new, store, keeper, was, now, chunk_rows)
        with new.write() as write:  # 3
            write.set_record(msgspec.structs.replace(now, kept=kept))


def _copy(new: Backend, table: str, pairs: Pairs, chunk_rows: int) -> None:
    while chunk := list(islice(pairs, chunk_rows)):
        with new.write() as write:
            write.put(table, sorted(chunk))


def _number(store: int) -> bytes:
    return store.to_bytes(2, "big")


def _renumbered(pairs: Pairs, numbers: dict[bytes, bytes]) -> Pairs:
    return ((numbers[key[:2]] + key[2:], value) for key, value in pairs if key[:2] in numbers)


def _difference(
    before: Snapshot,
    after: Snapshot,
    new: Backend,
    store: StoreSchema,
    keeper: Keeper,
    was: ReplicaRecord,
    now: ReplicaRecord,
    chunk_rows: int,
) -> KeptRecord:
    kept, this = was.kept.get(store.id, KeptRecord()), keeper.of(store.id)
    if not this.retention.keeps_history:
        kept = msgspec.structs.replace(kept, history_from=None, collapsed=())
    elif kept.history_from is None:
        kept = msgspec.structs.replace(kept, history_from=now.batch + 1)
    has_history = kept.history_from is not None and kept.history_from <= now.batch
    if now.batch > was.batch and this.may_expire:
        kept = msgspec.structs.replace(kept, closed_forgotten=now.batch)  # rows may have been added and removed in between
    if now.batch <= was.batch or not (this.keeps_closed or has_history):
        return kept
    done = size = 0
    expires = only_expires(store)
    changes = _changes(before.iterate(store.id, _FIRST), after.iterate(store.id, _FIRST), now.batch, expires)
    while chunk := list(islice(changes, chunk_rows)):
        with new.write() as write:
            if this.keeps_closed:
                gone = [
                    ClosedRow(number, c.key, unknown(c.key, c.old[:-STAMP_BYTES]))
                    for number, c in enumerate(chunk, done)
                    if c.kind == "expire" and c.old is not None
                ]
                size += write_closed(write, store.id, this.number, ClosedRows(now.batch, now.started_ms, gone))
            if has_history:
                write_changes(write, this.number, now.batch, chunk, done)
        done += len(chunk)
    collapsed = kept.collapsed
    if has_history and now.batch > was.batch + 1:
        collapsed += ((was.batch + 1, now.batch),)
    return msgspec.structs.replace(kept, collapsed=collapsed, closed_bytes=kept.closed_bytes + size)


def _changes(before: Pairs, after: Pairs, batch: int, expires: bool) -> Iterator[Change]:
    """The differences between two generations, in key order."""
    mark = stamp(batch)
    for key, old, new in _side_by_side(before, after):
        if new is None:
            yield Change(key, "expire" if expires else "remove", old, None)
        elif old is None:
            yield Change(key, "insert", None, new[:-STAMP_BYTES] + mark)
        elif old[:-STAMP_BYTES] != new[:-STAMP_BYTES]:
            yield Change(key, "update", old, new[:-STAMP_BYTES] + mark)


def _side_by_side(left: Pairs, right: Pairs) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """(key, value on the left, value on the right) of two sorted iterators."""
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            yield one[0], one[1], None
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield other[0], None, other[1]
            other = next(right, None)
        else:
            yield one[0], one[1], other[1]
            one, other = next(left, None), next(right, None)

"""Expired rows, changes and positions in a replica.

They are five more tables, written in the same transaction as the rows:

    closed/<store>    as the store's own table: rows that a watermark or a TTL removed, stamped with that
                      batch.  An empty row has expired, but its last value was never seen.
    closed-order      store, batch, number -> when (int64 milliseconds), stored key; to remove the oldest first
    changes           store, batch, number -> one change, see `encode_change`; ordered by key within a batch
    versions          store, start of the key, batch, number -> nothing; finds the changes of a key
    batches           batch -> the record after it

Numbers are big-endian, so that they sort.  A store is its number in the replica's list (two bytes).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from millpond.checkpoint.log import CommittedBatch
from millpond.replica.backends.base import WriteBatch
from millpond.replica.history.delete_cause import KINDS, Cause, Kind, Written, cause_of, judge_of, may_expire
from millpond.replica.keys.codec import join_value, split_value
from millpond.replica.record import KeptRecord, ReplicaRecord, decode_record, encode_record, make_record
from millpond.replica.row_stamp import STAMP_BYTES, changed_batch, stamp, stamp_final
from millpond.schema.store import StoreSchema
from millpond.settings import Retention

ORDER, CHANGES, VERSIONS, BATCHES = "closed-order", "changes", "versions", "batches"
SHARED_TABLES = (ORDER, CHANGES, VERSIONS, BATCHES)
# How many batches' positions to keep if no history needs more: some hundred bytes each.
_POSITIONS = 1000
_VERSION_KEY_BYTES = 480
_NUMBER = struct.Struct(">HQI")
_BATCH = struct.Struct(">Q")
_TIME = struct.Struct("<q")
_CHANGE = struct.Struct("<BBHII")
_NOTHING = 0xFFFFFFFF


def closed_table(store: str) -> str:
    """The table of a store's expired rows."""
    return f"closed/{store}"


@dataclass(slots=True)
class Appended:
    """Elements to append to a key's list.

    front:  the beginning of the value, if the replica has none yet
    """

    front: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """A key that a batch deleted.

    last:     the value that the same batch had put before, None if it hadn't
    certain:  False if the batch may have put a value that we can't see: snapshots only have the
              final rows
    """

    last: bytes | None = None
    certain: bool = True


GONE, GONE_UNSEEN = Gone(), Gone(certain=False)
Changes = dict[bytes, "bytes | Appended | Gone"]
"""key in the replica -> value, elements to append, or a mark that it was deleted"""


class Change(msgspec.Struct, frozen=True):
    """One row's change by one batch.

    key:    stored key; if it is cut, the whole key is in the values
    kind:   insert, update, delete, expire, remove
    old:    stored value before the batch, with its stamp; None if there was none
    new:    stored value after it, with its stamp; of `expire` the row's last value, None if unknown
    repaired: whether the batch has no events, and repairs rows
    """

    key: bytes
    kind: Kind
    old: bytes | None
    new: bytes | None
    repaired: bool = False


class ClosedRow(NamedTuple):
    """An expired row.

    number:  its place among those of its store and batch
    value:   the stored value, without its stamp; if the last value was never seen, that of
             `unknown`
    """

    number: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class ClosedRows:
    """Rows of one store that expired in one batch, which began at a time in milliseconds."""

    batch: int
    started_ms: int
    rows: list[ClosedRow] = field(default_factory=list)


def encode_change(change: Change) -> bytes:
    """Shape:  kind, 1 if repaired, key length, old length, new length (ffffffff: none), key, old, new."""
    old, new = change.old, change.new
    sizes = (_NOTHING if old is None else len(old)), (_NOTHING if new is None else len(new))
    return b"".join(
        (_CHANGE.pack(KINDS.index(change.kind), change.repaired, len(change.key), *sizes), change.key, old or b"", new or b"")
    )


def decode_change(data: bytes) -> Change:
    """The reverse."""
    kind, repaired, key_size, old_size, new_size = _CHANGE.unpack_from(data)
    begin = _CHANGE.size + key_size
    end = begin + (0 if old_size == _NOTHING else old_size)
    return Change(
        data[_CHANGE.size : begin],
        KINDS[kind],
        None if old_size == _NOTHING else data[begin:end],
        None if new_size == _NOTHING else data[end : end + new_size],
        bool(repaired),
    )


def number_key(store: int, batch: int, number: int = 0) -> bytes:
    """A key of `changes` and of `closed-order`."""
    return _NUMBER.pack(store, batch, number)


def split_number(key: bytes) -> tuple[int, int, int]:
    """(store, batch, number) of such a key, or of the end of a version's."""
    return _NUMBER.unpack(key)


def split_order(value: bytes) -> tuple[int, bytes]:
    """(when in milliseconds, stored key) of a value of `closed-order`."""
    return _TIME.unpack_from(value)[0], value[_TIME.size :]


def version_prefix(store: int, stored_key: bytes) -> bytes:
    """The first bytes of the version keys of a key; other long keys may share them."""
    return store.to_bytes(2, "big") + stored_key[:_VERSION_KEY_BYTES]


def version_key(store: int, stored_key: bytes, batch: int, number: int) -> bytes:
    """The key of `versions` for a change."""
    return version_prefix(store, stored_key) + number_key(store, batch, number)[2:]


def split_version(key: bytes) -> tuple[bytes, int, int]:
    """(prefix, batch, number) of a version's key."""
    batch, number = struct.unpack(">QI", key[-12:])
    return key[:-12], batch, number


def batch_key(batch: int) -> bytes:
    """A key of `batches`."""
    return _BATCH.pack(batch)


def split_batch(key: bytes) -> int:
    """The reverse."""
    return int.from_bytes(key, "big")


@dataclass(frozen=True, slots=True)
class StoreRetention:
    """One store: its number, its retention, and why its rows leave the state."""

    number: int
    retention: Retention
    may_expire: bool
    cause: Cause

    @property
    def keeps_closed(self) -> bool:
        """Whether its expired rows are kept."""
        return self.may_expire and self.retention.keeps_closed


class Keeper:
    """Writes the changes of a batch into a replica, with history and expired rows."""

    def __init__(self, stores: Iterable[StoreSchema], retention: Mapping[str, Retention], default: Retention) -> None:
        self._stores = {
            s.id: StoreRetention(number, retention.get(s.id, default), may_expire(s), cause_of(s))
            for number, s in enumerate(stores)
        }

    def of(self, store: str) -> StoreRetention:
        """The retention of a store."""
        return self._stores[store]

    def words(self) -> dict[str, str]:
        """The retention of each store, for people."""
        return {store: this.retention.words() for store, this in self._stores.items()}

    def begin(self, batch: int, before: Mapping[str, KeptRecord] | None = None) -> dict[str, KeptRecord]:
        """The kept records when following begins at a batch: history begins with the next one.

        before:  the records until then, of a replica that is taken over
        """
        kept = dict(before or {})
        for store, this in self._stores.items():
            known = kept.get(store, KeptRecord())
            if this.retention.keeps_history and known.history_from is None:
                kept[store] = msgspec.structs.replace(known, history_from=batch + 1)
        return kept

    def write(
        self,
        write: WriteBatch,
        batch: CommittedBatch,
        changed: Mapping[str, Changes],
        before: ReplicaRecord,
        hidden: Collection[str],
    ) -> ReplicaRecord:
        """Write all of one batch except the record; returns the kept records for it.

        hidden:  stores in which the batch may have put and removed rows that we can't see
        """
        record = make_record(batch)
        kept = dict(before.kept)
        # Rows of the same batch expire only if the watermark has moved: rows behind the last one
        # are late.
        moved = batch.planned_watermark_ms != before.planned_watermark_ms
        for store, changes in changed.items():
            after = self._write_store(write, store, changes, batch, kept.get(store, KeptRecord()))
            if not batch.is_repair and self._loses_expired(store, changes, store in hidden and moved):
                after = msgspec.structs.replace(after, closed_forgotten=batch.batch)
            kept[store] = after
        write_position(write, record)
        self._forget_positions(write, batch.batch, kept)
        return msgspec.structs.replace(record, kept=kept)

    def _loses_expired(self, store: str, changes: Changes, hidden: bool) -> bool:
        """Whether rows may have expired without being kept."""
        this = self._stores[store]
        if not this.may_expire:
            return False
        return hidden or (not this.keeps_closed and any(isinstance(value, Gone) for value in changes.values()))

    def _write_store(self, write: WriteBatch, store: str, changes: Changes, batch: CommittedBatch, kept: KeptRecord) -> KeptRecord:
        this, mark = self._stores[store], stamp(batch.batch)
        if not this.retention.keeps_history and kept.history_from is not None:
            kept = self._forget_changes(write, this, kept, None)
        if this.retention.keeps_history:
            kept = self._write_with_history(write, store, changes, batch, kept)
        else:
            gone = put_rows(write, store, changes, mark)
            if gone:
                kept = self._delete(write, store, changes, gone, batch, kept)
        if kept.history_from is not None:
            kept = self._forget_changes(write, this, kept, self._history_limit(write, this, kept.history_from, batch))
        return self.forget_closed(write, store, kept, batch)

    def _delete(
        self, write: WriteBatch, store: str, changes: Changes, gone: list[bytes], batch: CommittedBatch, kept: KeptRecord
    ) -> KeptRecord:
        """The deletes of a store whose changes aren't kept."""
        this = self._stores[store]
        if this.keeps_closed:
            judge = judge_of(this.cause, batch, lambda: _written(changes))
            closed = []
            for key in gone:
                value = changes[key]
                assert isinstance(value, Gone)
                last = _last(value, write.get(store, key))
                if last is not None and judge(*split_value(key, last)) == "expire":
                    closed.append((key, _closing(key, value, last)))
            kept = self._close(write, store, this, closed, batch, kept)
        write.delete(store, gone)
        return kept

    def _write_with_history(
        self, write: WriteBatch, store: str, changes: Changes, batch: CommittedBatch, kept: KeptRecord
    ) -> KeptRecord:
        this, mark = self._stores[store], stamp(batch.batch)
        judge = judge_of(this.cause, batch, lambda: _written(changes))
        puts: list[tuple[bytes, bytes]] = []
        gone: list[bytes] = []
        closed: list[tuple[bytes, bytes]] = []
        out: list[Change] = []
        for key in sorted(changes):
            value, old = changes[key], write.get(store, key)
            if isinstance(value, Gone):
                last = _last(value, old)
                if last is None:
                    continue
                kind = judge(*split_value(key, last))
                if kind == "expire" and this.keeps_closed:
                    closed.append((key, _closing(key, value, last)))
                if old is None and kind != "expire":
                    continue  # this batch put and removed it, so nobody can have seen it
                gone.append(key)
                final = last + stamp_final(batch.batch) if kind == "expire" and value.certain else None
                out.append(Change(key, kind, old, final, batch.is_repair))
                continue
            new = _next(old, value)
            if old is not None and old[:-STAMP_BYTES] == new:
                continue  # written again with the same value
            puts.append((key, new + mark))
            out.append(Change(key, "insert" if old is None else "update", old, new + mark, batch.is_repair))
        write.put(store, puts)
        write.delete(store, gone)
        write_changes(write, this.number, batch.batch, out)
        return self._close(write, store, this, closed, batch, kept)

    def _close(
        self,
        write: WriteBatch,
        store: str,
        this: StoreRetention,
        closed: list[tuple[bytes, bytes]],
        batch: CommittedBatch,
        kept: KeptRecord,
    ) -> KeptRecord:
        """Keep expired rows."""
        if not closed:
            return kept
        rows = [ClosedRow(i, key, value) for i, (key, value) in enumerate(closed)]
        size = write_closed(write, store, this.number, ClosedRows(batch.batch, batch.started_ms, rows))
        return msgspec.structs.replace(kept, closed_bytes=kept.closed_bytes + size)

    def forget_closed(self, write: WriteBatch, store: str, kept: KeptRecord, batch: CommittedBatch) -> KeptRecord:
        """Remove expired rows that are too old, or too many, the oldest first."""
        this = self._stores[store]
        if not kept.closed_bytes:
            return kept
        retention, size, forgotten = this.retention, kept.closed_bytes, kept.closed_forgotten
        limit = None if retention.closed_seconds is None else batch.started_ms - retention.closed_seconds * 1000
        ends, keys = [], []
        for key, value in write.iterate(ORDER, number_key(this.number, 0)):
            store_number, closed_in, _ = split_number(key)
            when, stored_key = split_order(value)
            too_old = limit is not None and when < limit
            if store_number != this.number or not (too_old or size > retention.closed_bytes):
                break
            ends.append(key)
            found = write.get(closed_table(store), stored_key)
            # The key may have been written and expired again since.
            if found is not None and changed_batch(found) == closed_in:
                keys.append(stored_key)
                size -= len(stored_key) + len(found)
            forgotten = max(forgotten or 0, closed_in)
        write.delete(closed_table(store), keys)
        write.delete(ORDER, ends)
        return msgspec.structs.replace(kept, closed_bytes=size, closed_forgotten=forgotten)

    def _history_limit(self, write: WriteBatch, this: StoreRetention, first: int, batch: CommittedBatch) -> int:
        """The first batch whose changes must still be kept."""
        retention, limits = this.retention, [0]
        if retention.history_batches is not None:
            limits.append(batch.batch - retention.history_batches + 1)
        if retention.history_seconds is not None:
            since_ms = batch.started_ms - retention.history_seconds * 1000
            young = (split_batch(k) for k, v in write.iterate(BATCHES, batch_key(first)) if decode_record(v).started_ms >= since_ms)
            limits.append(next(young, batch.batch))
        return max(limits)

    def _forget_changes(self, write: WriteBatch, this: StoreRetention, kept: KeptRecord, limit: int | None) -> KeptRecord:
        """Remove the changes of batches before `limit`; None for all."""
        if limit is not None and kept.history_from is not None and kept.history_from >= limit:
            return kept
        keys, versions = [], []
        for key, value in write.iterate(CHANGES, number_key(this.number, 0)):
            store, batch, number = split_number(key)
            if store != this.number or (limit is not None and batch >= limit):
                break
            keys.append(key)
            versions.append(version_key(this.number, decode_change(value).key, batch, number))
        write.delete(CHANGES, keys)
        write.delete(VERSIONS, sorted(versions))
        collapsed = tuple(pair for pair in kept.collapsed if limit is not None and pair[1] >= limit)
        return msgspec.structs.replace(kept, history_from=limit, collapsed=collapsed)

    def _forget_positions(self, write: WriteBatch, batch: int, kept: Mapping[str, KeptRecord]) -> None:
        # The batch before the first change is the oldest that can still be read.
        needed = [k.history_from - 1 for k in kept.values() if k.history_from is not None]
        limit = min([batch - _POSITIONS, *needed])
        gone = []
        for key, _ in write.iterate(BATCHES, b"\x00"):
            if split_batch(key) >= limit:
                break
            gone.append(key)
        write.delete(BATCHES, gone)


def write_changes(write: WriteBatch, store: int, batch: int, changes: list[Change], first: int = 0) -> None:
    """Write changes in key order; `first` is the number of the first of them within the batch."""
    write.put(CHANGES, ((number_key(store, batch, i), encode_change(c)) for i, c in enumerate(changes, first)))
    write.put(VERSIONS, sorted((version_key(store, c.key, batch, i), b"") for i, c in enumerate(changes, first)))


def write_closed(write: WriteBatch, store: str, number: int, closed: ClosedRows) -> int:
    """Keep expired rows; returns how many bytes this adds."""
    mark, when, size = stamp_final(closed.batch), _TIME.pack(closed.started_ms), 0
    for _, key, value in closed.rows:
        before = write.get(closed_table(store), key)
        size += len(value) + STAMP_BYTES + (len(key) if before is None else -len(before))
    write.put(closed_table(store), [(key, value + mark) for _, key, value in closed.rows])
    write.put(ORDER, [(number_key(number, closed.batch, row.number), when + row.key) for row in closed.rows])
    return size


def write_position(write: WriteBatch, record: ReplicaRecord) -> None:
    """Write the position of a batch."""
    write.put(BATCHES, [(batch_key(record.batch), encode_record(record))])


def put_rows(write: WriteBatch, table: str, changes: Changes, mark: bytes) -> list[bytes]:
    """Put and append rows in key order, since neighbours share pages.

    Returns the keys to be deleted, in order.
    """
    puts = [(key, value + mark) for key, value in changes.items() if isinstance(value, bytes)]
    puts.sort()
    write.put(table, puts)
    if len(puts) == len(changes):
        return []
    appended = sorted(key for key, value in changes.items() if isinstance(value, Appended))
    write.put(table, [(key, _next(write.get(table, key), changes[key]) + mark) for key in appended])
    return sorted(key for key, value in changes.items() if isinstance(value, Gone))


def _next(old: bytes | None, value: bytes | Appended | Gone) -> bytes:
    """A key's new value, without its stamp."""
    assert not isinstance(value, Gone)
    if isinstance(value, bytes):
        return value
    return (value.front if old is None else old[:-STAMP_BYTES]) + value.tail


def _last(value: Gone, old: bytes | None) -> bytes | None:
    """The last known value of a deleted row."""
    if value.last is not None:
        return value.last
    return None if old is None else old[:-STAMP_BYTES]


def _closing(key: bytes, value: Gone, last: bytes) -> bytes:
    """The kept value of an expired row, without its stamp."""
    return last if value.certain else unknown(key, last)


def unknown(key: bytes, value: bytes) -> bytes:
    """The stored value, without its stamp, of a row whose last value isn't known."""
    ordered, _ = split_value(key, value)
    return join_value(ordered, b"")


def _written(changes: Changes) -> Written:
    for key, value in changes.items():
        if isinstance(value, bytes):
            yield split_value(key, value)
        elif isinstance(value, Gone) and value.last is not None:
            yield split_value(key, value.last)

"""Reads of a replica's history: its rows as of an earlier batch, and the changes since.

A row as of batch B is the old value of its first change after B; without such a change, it is the
present row.  So history adds no cost to reads of the newest state, and a read of an earlier one
costs the changes since then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import merge
from operator import itemgetter

from millpond.errors import ReplicaError
from millpond.replica.backends.base import Snapshot
from millpond.replica.history.keeper import (
    BATCHES,
    CHANGES,
    VERSIONS,
    Change,
    batch_key,
    closed_table,
    decode_change,
    number_key,
    split_batch,
    split_number,
    split_version,
    version_prefix,
)
from millpond.replica.keys.codec import split_value
from millpond.replica.record import KeptRecord, ReplicaRecord, StoresRecord, decode_record
from millpond.replica.row_stamp import changed_batch

NumberedChange = tuple[int, int, Change]
"""(batch, number within it, change)"""
_key = itemgetter(0)


def kept_of(record: ReplicaRecord, store: str) -> KeptRecord:
    """The kept history and expired rows of a store."""
    return record.kept.get(store, KeptRecord())


def iter_positions(rows: Snapshot, first: int = 0) -> Iterator[ReplicaRecord]:
    """The kept positions from a batch on, ascending."""
    return (decode_record(value) for _, value in rows.iterate(BATCHES, batch_key(first)))


def first_position(rows: Snapshot) -> int | None:
    """The oldest batch whose position is kept."""
    first = next(iter(rows.iterate(BATCHES, batch_key(0))), None)
    return None if first is None else split_batch(first[0])


def position_at(rows: Snapshot, batch: int) -> ReplicaRecord | None:
    """The record after a batch; None if it isn't kept."""
    data = rows.get(BATCHES, batch_key(batch))
    return None if data is None else decode_record(data)


def position_at_time(rows: Snapshot, time_ms: int) -> ReplicaRecord | None:
    """The record of the newest batch that was committed by this time; None if none is kept."""
    found = None
    for record in iter_positions(rows):
        if record.committed_ms > time_ms:
            break
        found = record
    return found


def check_kept(record: ReplicaRecord, store: str, batch: int, *, table: str) -> None:
    """Raise HISTORY_GONE if a store as of a batch is unknown."""
    kept, newest = kept_of(record, store), record.batch
    if batch == newest:
        return
    if batch > newest:
        raise ReplicaError(
            "NOT_UP_TO_BOUND",
            f"{table} is at batch {newest}; batch {batch} isn't applied yet.",
            hint="Wait for it, with min_batch and wait_seconds.",
            batch=newest,
            wanted=batch,
        )
    first = kept.history_from
    if first is None or batch < first - 1:
        known = f"is kept from batch {first - 1} on" if first is not None else "isn't kept"
        raise ReplicaError(
            "HISTORY_GONE",
            f"{table} as of batch {batch} is unknown: its history {known}.",
            hint="Keep more of it: millpond.Retention(history_batches=…) or --history TABLE=TIME; it begins when a follower starts "
            "with that, and again after a restart of the machine.",
            batch=batch,
            first=None if first is None else first - 1,
            newest=newest,
        )
    for begin, end in kept.collapsed:
        if begin - 1 < batch < end:
            raise ReplicaError(
                "HISTORY_GONE",
                f"{table} as of batch {batch} is unknown: batches {begin} to {end} were cleaned up before they were read, so "
                "their changes are kept as one.",
                hint=f"Ask for {begin - 1} or {end}; let the job keep more of its log: spark.sql.streaming.minBatchesToRetain.",
                batch=batch,
                first=begin,
                newest=end,
            )


class SnapshotAsOf:
    """All tables as of an earlier batch, as a `Snapshot`; the caller has called `check_kept`.

    Source:  compared with reads at each batch, of every operator, in tests/golden/test_history.py.
    """

    def __init__(self, rows: Snapshot, stores: StoresRecord, record: ReplicaRecord) -> None:
        self._rows = rows
        self._record = record
        self._batch = record.batch
        self._numbers = {store.id: number for number, store in enumerate(stores.stores)}
        self._closed = {closed_table(store): store for store in self._numbers}
        self._overlays: dict[str, _Overlay] = {}

    @property
    def newest(self) -> Snapshot:
        """The present tables."""
        return self._rows

    def __enter__(self) -> SnapshotAsOf:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.__exit__(*error)

    def record(self) -> ReplicaRecord:
        return self._record

    def get(self, table: str, key: bytes) -> bytes | None:
        if table in self._closed:
            found = self._rows.get(table, key)
            return found if found is not None and self._had_expired(found) else None
        if table not in self._numbers:
            return self._rows.get(table, key)
        for _, _, change in iter_versions(self._rows, self._numbers[table], key, first=self._batch + 1):
            return change.old
        return self._rows.get(table, key)

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        now = self._rows.iterate(table, start)
        if table not in self._numbers and table not in self._closed:
            return now  # the table of positions
        if table in self._closed:
            return (pair for pair in now if self._had_expired(pair[1]))
        return self._overlay(table).over(now, start)

    def iterate_back(self, table: str, below: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        now = self._rows.iterate_back(table, below)
        if table in self._closed:
            return (pair for pair in now if self._had_expired(pair[1]))
        return self._overlay(table).over_back(now, below)

    def count(self, table: str) -> int:
        if table in self._closed:
            return sum(1 for _ in self.iterate(table, b"\x00"))
        if table not in self._numbers:
            return self._rows.count(table)
        overlay = self._overlay(table)
        return self._rows.count(table) + sum(
            (old is not None) - (self._rows.get(table, key) is not None) for key, old in overlay.rows.items()
        )

    def _had_expired(self, stored: bytes) -> bool:
        batch = changed_batch(stored)
        return batch is not None and batch <= self._batch

    def _overlay(self, table: str) -> _Overlay:
        if table not in self._overlays:
            rows: dict[bytes, bytes | None] = {}
            for _, _, change in iter_changes(self._rows, self._numbers[table], self._batch + 1):
                rows.setdefault(change.key, change.old)
            self._overlays[table] = _Overlay(rows)
        return self._overlays[table]


class _Overlay:
    """Rows that have changed since: stored key -> the old row, None if there was none."""

    def __init__(self, rows: dict[bytes, bytes | None]) -> None:
        self.rows = rows

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self.rows)

    def over(self, now: Iterator[tuple[bytes, bytes]], start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows as of that batch, in key order."""
        others = self._sorted[bisect_left(self._sorted, start) :]
        return merge(self._unchanged(now), self._before(others), key=_key)

    def over_back(self, now: Iterator[tuple[bytes, bytes]], below: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The same, against key order."""
        others = self._sorted[: None if below is None else bisect_left(self._sorted, below)]
        return merge(self._unchanged(now), self._before(reversed(others)), key=_key, reverse=True)

    def _unchanged(self, now: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        return (pair for pair in now if pair[0] not in self.rows)

    def _before(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        return ((key, old) for key in keys if (old := self.rows[key]) is not None)


def iter_changes(rows: Snapshot, store: int, first: int, number: int = 0) -> Iterator[NumberedChange]:
    """The changes of a store from a batch on, in order: by batch, then by key."""
    for key, value in rows.iterate(CHANGES, number_key(store, first, number)):
        whose, batch, place = split_number(key)
        if whose != store:
            return
        yield batch, place, decode_change(value)


def whole_key(change: Change) -> bytes:
    """The ordered key of a change; if the stored key is cut, it is beside the values."""
    value = change.old if change.old is not None else change.new
    return change.key if value is None else split_value(change.key, value)[0]


def iter_versions(rows: Snapshot, store: int, key: bytes, *, first: int = 0) -> Iterator[NumberedChange]:
    """The changes of one stored key from a batch on, ascending."""
    prefix = version_prefix(store, key)
    for found, _ in rows.iterate(VERSIONS, prefix + batch_key(first)):
        if not found.startswith(prefix):
            return
        whose, batch, number = split_version(found)
        if whose != prefix:
            continue  # a change of a longer key
        change = _change_at(rows, store, batch, number)
        if change.key == key:  # long keys share their first bytes
            yield batch, number, change


def iter_versions_between(rows: Snapshot, store: int, low: bytes, high: bytes | None, *, first: int) -> Iterator[NumberedChange]:
    """The changes, from a batch on, of the ordered keys from `low` on and below `high`.

    The changes of each key ascend.  Changes of other long keys with the same first bytes are among
    them: compare `whole_key`.
    """
    whose, end = version_prefix(store, b""), None if high is None else version_prefix(store, high)
    for found, _ in rows.iterate(VERSIONS, version_prefix(store, low)):
        prefix, batch, number = split_version(found)
        if not prefix.startswith(whose) or (end is not None and prefix > end):
            return
        if batch >= first:
            yield batch, number, _change_at(rows, store, batch, number)


def _change_at(rows: Snapshot, store: int, batch: int, number: int) -> Change:
    data = rows.get(CHANGES, number_key(store, batch, number))
    assert data is not None
    return decode_change(data)

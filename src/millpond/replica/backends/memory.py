"""A generation of a replica in memory, for tests and for replicas that nobody else reads.

Every write batch copies the tables that it touches: simple, and a snapshot is never disturbed.
"""

from __future__ import annotations

import bisect
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millpond.errors import ReplicaError
from millpond.replica.record import ReplicaRecord, StoresRecord


@dataclass(frozen=True, slots=True)
class _Table:
    rows: dict[bytes, bytes]
    keys: list[bytes]


@dataclass(frozen=True, slots=True)
class _State:
    tables: dict[str, _Table]
    record: ReplicaRecord | None


class MemoryBackend:
    """See `base.Backend`."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.folder = None
        self._state = _State({}, None)
        self._stores: StoresRecord | None = None
        self._lock = threading.Lock()

    def stores(self) -> StoresRecord | None:
        return self._stores

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(self._state)

    @contextmanager
    def write(self) -> Iterator[MemoryWriteBatch]:
        with self._lock:
            batch = MemoryWriteBatch(self._state)
            yield batch
            self._state = batch.finish()

    def create(self, tables: Iterable[str]) -> None:
        with self._lock:
            self._state = _State({table: _Table({}, []) for table in tables}, self._state.record)

    def set_stores(self, stores: StoresRecord) -> None:
        self._stores = stores

    def check_readers(self) -> int:
        return 0

    def size_bytes(self) -> int:
        return sum(len(k) + len(v) for t in self._state.tables.values() for k, v in t.rows.items())


class MemorySnapshot:
    """See `base.Snapshot`."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def __enter__(self) -> MemorySnapshot:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def record(self) -> ReplicaRecord:
        if self._state.record is None:
            raise ReplicaError(
                "REPLICA_BUILDING", "The replica is being built; nothing can be read yet.", hint="Ask again in a moment."
            )
        return self._state.record

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._state.tables[table].rows.get(key)

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._state.tables[table]
        for i in range(bisect.bisect_left(found.keys, start), len(found.keys)):
            yield found.keys[i], found.rows[found.keys[i]]

    def iterate_back(self, table: str, below: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        found = self._state.tables[table]
        for i in reversed(range(len(found.keys) if below is None else bisect.bisect_left(found.keys, below))):
            yield found.keys[i], found.rows[found.keys[i]]

    def count(self, table: str) -> int:
        return len(self._state.tables[table].keys)


class MemoryWriteBatch:
    """See `base.WriteBatch`."""

    def __init__(self, state: _State) -> None:
        self._before = state
        self._rows: dict[str, dict[bytes, bytes]] = {}
        self._record = state.record

    def put(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        self._copy(table).update(items)

    def append(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        self.put(table, items)

    def delete(self, table: str, keys: Iterable[bytes]) -> None:
        rows = self._copy(table)
        for key in keys:
            rows.pop(key, None)

    def get(self, table: str, key: bytes) -> bytes | None:
        rows = self._rows.get(table)
        return self._before.tables[table].rows.get(key) if rows is None else rows.get(key)

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._rows.get(table)
        if rows is None:
            yield from MemorySnapshot(self._before).iterate(table, start)
        else:
            yield from ((key, rows[key]) for key in sorted(rows) if key >= start)

    def set_record(self, record: ReplicaRecord) -> None:
        self._record = record

    def finish(self) -> _State:
        """The state after this batch."""
        changed = {name: _Table(rows, sorted(rows)) for name, rows in self._rows.items()}
        return _State(self._before.tables | changed, self._record)

    def _copy(self, table: str) -> dict[bytes, bytes]:
        if table not in self._rows:
            self._rows[table] = dict(self._before.tables[table].rows)
        return self._rows[table]

"""The storage of a replica: named tables of ordered byte keys, with a record, in one transaction.

Two backends: LMDB (many processes read, one writes) and memory (one process, for tests and
throw-away replicas).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from millpond.replica.record import ReplicaRecord, StoresRecord


class Snapshot(Protocol):
    """One consistent state of all tables, which later batches don't change.

    A context manager that ends it.
    """

    def __enter__(self) -> Snapshot:
        """Itself."""

    def __exit__(self, *error: object) -> None:
        """End the snapshot."""

    def record(self) -> ReplicaRecord:
        """The replica's record."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value of a key, None if there is none."""

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs from the first key that is not below `start`, ascending."""

    def iterate_back(self, table: str, below: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs from the last key that is below `below`, descending; from the last of all if it is None."""

    def count(self, table: str) -> int:
        """How many keys a table has."""


class WriteBatch(Protocol):
    """Changes that become visible together."""

    def put(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Insert or replace."""

    def append(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Insert sorted keys that are above all keys of the table."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value of a key, with earlier writes of this batch; None if there is none."""

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs from the first key that is not below `start`, ascending.

        Nothing may be written meanwhile.
        """

    def delete(self, table: str, keys: Iterable[bytes]) -> None:
        """Remove keys; missing ones are no error."""

    def set_record(self, record: ReplicaRecord) -> None:
        """Write the record after this batch."""


class Backend(Protocol):
    """One generation of a replica."""

    @property
    def name(self) -> str:
        """The generation's unique name, the same in every process that reads it."""

    @property
    def folder(self) -> Path | None:
        """Its folder, with room for data that doesn't fit into memory; None for a generation in memory."""

    def stores(self) -> StoresRecord | None:
        """Its stores; None during the build, and for another format."""

    def snapshot(self) -> Snapshot:
        """Open a snapshot.  Raises REPLICA_BUILDING if nothing was ever applied."""

    def write(self) -> AbstractContextManager[WriteBatch]:
        """Begin a write, all or nothing.  Raises DISK_FULL, REPLICA_NOT_WRITABLE."""

    def create(self, tables: Iterable[str]) -> None:
        """Make empty tables."""

    def set_stores(self, stores: StoresRecord) -> None:
        """Record its stores, once, after the build."""

    def size_bytes(self) -> int:
        """Bytes in use."""

    def check_readers(self) -> int:
        """Free snapshots of killed readers, which keep old pages from reuse; returns how many there were."""

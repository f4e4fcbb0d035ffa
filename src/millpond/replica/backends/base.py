"""What a replica is kept in: named tables of ordered byte keys, moved together with a record in one transaction.

Two backends: LMDB (many processes read, one writes) and memory (one process, for tests and throw-away replicas).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from millpond.replica.record import ReplicaRecord, StoresRecord


class Snapshot(Protocol):
    """One consistent state of all tables; what is applied meanwhile isn't seen.  A context manager that ends it."""

    def __enter__(self) -> Snapshot:
        """Itself."""

    def __exit__(self, *error: object) -> None:
        """End the snapshot."""

    def record(self) -> ReplicaRecord:
        """Where the replica stands."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value under a key, None where there is none."""

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs from the first key that is not below `start`, ascending."""

    def iterate_back(self, table: str, below: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs from the last key that is below `below`, descending; from the last of all where it is None."""

    def count(self, table: str) -> int:
        """How many keys a table has."""


class WriteBatch(Protocol):
    """Changes that become visible together."""

    def put(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Insert or replace."""

    def append(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Insert keys that are in order, and above all that the table has."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value under a key, with what was written before, None where there is none."""

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs from the first key that is not below `start`, ascending.  Nothing may be written meanwhile."""

    def delete(self, table: str, keys: Iterable[bytes]) -> None:
        """Remove; a key that isn't there is fine."""

    def set_record(self, record: ReplicaRecord) -> None:
        """Where the replica stands after this."""


class Backend(Protocol):
    """One generation of a replica."""

    @property
    def name(self) -> str:
        """What tells this generation from every other, in every process that reads it."""

    @property
    def folder(self) -> Path | None:
        """Where it lies, and where there is room for what doesn't fit into memory; None: it is in memory itself."""

    def stores(self) -> StoresRecord | None:
        """What it holds; None while it is being built, and where it is of another format."""

    def snapshot(self) -> Snapshot:
        """Read.  Raises REPLICA_BUILDING where nothing was ever applied."""

    def write(self) -> AbstractContextManager[WriteBatch]:
        """Write; all or nothing.  Raises DISK_FULL, REPLICA_NOT_WRITABLE."""

    def create(self, tables: Iterable[str]) -> None:
        """Make the tables, empty."""

    def set_stores(self, stores: StoresRecord) -> None:
        """Say what it holds, once, when it is built."""

    def size_bytes(self) -> int:
        """Bytes in use."""

    def check_readers(self) -> int:
        """Free what readers left that were killed, whose snapshots keep old pages from reuse; how many there were."""

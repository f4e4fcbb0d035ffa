"""A generation of a replica in LMDB: many processes read it, each in well under a microsecond; one writes.

LMDB allows one environment per file and process, so environments are shared by path
(`open_backend`), and none survives a fork.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import lmdb

from millpond.errors import ReplicaError
from millpond.native.lookup import Reader, open_reader
from millpond.replica.backends.lmdb_functions import loaded
from millpond.replica.backends.table_names import table_names
from millpond.replica.record import ReplicaRecord, StoresRecord, decode_record, encode_record, encode_stores, parse_stores
from millpond.settings import ReplicaSettings

_META = b"meta"
_RECORD, _STORES = b"record", b"stores"
_MAX_TABLES = 1024
# Sizes in LMDB's lock file: more than the part before the slots of readers, and a slot.
_LOCK_HEADER_BYTES, _READER_BYTES = 4096, 64
# With less free space than this, a failed write is reported as a full disk.
_LITTLE_BYTES = 1 << 20

# How long to wait for an environment that another thread closes, and how LMDB's error says that it is open.
_CLOSING_SECONDS, _PAUSE_SECONDS = 5.0, 0.01
_ALREADY_OPEN = "already open in this process"

_open: weakref.WeakValueDictionary[str, LmdbBackend] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def _forget_after_fork() -> None:
    for backend in list(_open.values()):
        backend.forked = True


os.register_at_fork(after_in_child=_forget_after_fork)


def open_backend(path: Path, settings: ReplicaSettings) -> LmdbBackend:
    """The environment in a folder, shared by all in this process that open that folder.

    Raises:  REPLICA_NOT_WRITABLE, DISK_FULL; FileNotFoundError if the folder doesn't exist.
    """
    name = os.path.realpath(path)
    with _open_lock:
        backend = _open.get(name)
        if backend is None or backend.forked:
            backend = LmdbBackend(path, settings)
            _open[name] = backend
        return backend


class LmdbBackend:
    """One LMDB environment.  See `base.Backend`.

    handles:  LMDB's handle of each table
    """

    def __init__(self, path: Path, settings: ReplicaSettings) -> None:
        self.folder = path
        self.name = path.name
        self.forked = False  # whether this process is a fork of the one that opened the environment
        readonly = not os.access(path, os.W_OK)
        if not path.is_dir():
            raise FileNotFoundError(path)
        with explained(path):
            if not readonly:
                _reserve_lock_file(path, settings.max_readers)
            self._environment = _open_environment(
                path,
                map_size=settings.map_size_bytes,
                max_readers=settings.max_readers,
                max_dbs=_MAX_TABLES,
                readonly=readonly,
                create=not readonly,
                mode=0o600,
                sync=False,  # a batch can be applied again; a replica of another boot is built again
                metasync=False,
                readahead=False,
                # A crash of the process is safe without a sync, but not with a writable map
                # (WRITEMAP).
                writemap=False,
            )
        self._seen: tuple[int, ReplicaRecord] | None = None
        try:
            with explained(path):
                self._meta = self._environment.open_db(_META, create=not readonly)
                stores = self.stores()
                # A transaction can't use a handle that was opened after it began, so open all now.
                names = table_names(stores) if stores is not None else []
                self.handles: dict[str, Any] = {n: self._environment.open_db(n.encode(), create=False) for n in names}
        except BaseException:
            self._environment.close()  # else the error's traceback keeps it open, and nobody could open the file again
            raise

    def stores(self) -> StoresRecord | None:
        with self._environment.begin() as transaction:
            data = transaction.get(_STORES, db=self._meta)
        return parse_stores(data) if data else None

    def snapshot(self) -> LmdbSnapshot:
        if self.forked:
            raise ReplicaError(
                "REPLICA_CLOSED",
                "The replica was opened before this process was forked.",
                hint="Open the pond in the process that reads it, or start processes with the `spawn` method.",
            )
        return LmdbSnapshot(self, self._environment.begin())

    def reader(self, snapshot: LmdbSnapshot) -> Reader | None:
        """Compiled code that reads this environment, given a snapshot of it that is open; None if there is none."""
        known = loaded()
        found = None if known is None else known.of(snapshot.transaction)
        return None if found is None else open_reader(self._environment, *found)

    @contextmanager
    def write(self) -> Iterator[LmdbWriteBatch]:
        with explained(self.folder), self._environment.begin(write=True) as transaction:
            yield LmdbWriteBatch(self, transaction)

    def create(self, tables: Iterable[str]) -> None:
        with explained(self.folder):
            for table in tables:
                self.handles[table] = self._environment.open_db(table.encode())

    def set_stores(self, stores: StoresRecord) -> None:
        with explained(self.folder), self._environment.begin(write=True) as transaction:
            transaction.put(_STORES, encode_stores(stores), db=self._meta)

    def size_bytes(self) -> int:
        info, stat = self._environment.info(), self._environment.stat()
        return int((info["last_pgno"] + 1) * stat["psize"])

    def check_readers(self) -> int:
        return int(self._environment.reader_check())

    def record_in(self, transaction: lmdb.Transaction) -> ReplicaRecord:
        """The record that a transaction sees; decoded once per applied batch."""
        number, seen = transaction.id(), self._seen
        if seen is not None and seen[0] == number:
            return seen[1]
        data = transaction.get(_RECORD, db=self._meta)
        if data is None:
            raise ReplicaError(
                "REPLICA_BUILDING",
                "The replica is being built; nothing can be read yet.",
                hint="Ask again in a moment.",
            )
        record = decode_record(data)
        self._seen = (number, record)
        return record

    def write_record(self, transaction: lmdb.Transaction, record: ReplicaRecord) -> None:
        """Write the record, inside a write transaction."""
        transaction.put(_RECORD, encode_record(record), db=self._meta)


class LmdbSnapshot:
    """See `base.Snapshot`."""

    def __init__(self, backend: LmdbBackend, transaction: lmdb.Transaction) -> None:
        self.backend = backend
        self.transaction = transaction
        self._get: Any = transaction.get
        self._handles = backend.handles

    def __enter__(self) -> LmdbSnapshot:
        return self

    def __exit__(self, *error: object) -> None:
        self.transaction.abort()

    def record(self) -> ReplicaRecord:
        return self.backend.record_in(self.transaction)

    def get(self, table: str, key: bytes) -> bytes | None:
        found: bytes | None = self._get(key, db=self._handles[table])
        return found

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self.transaction.cursor(db=self.backend.handles[table]) as cursor:
            if cursor.set_range(start) if start else cursor.first():
                yield from cast(Iterator[tuple[bytes, bytes]], cursor)

    def iterate_back(self, table: str, below: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with self.transaction.cursor(db=self.backend.handles[table]) as cursor:
            # LMDB finds the first key that isn't below; take the one before it, or the last key if
            # there is none.
            if cursor.prev() if below and cursor.set_range(below) else below != b"" and cursor.last():
                yield from cast(Iterator[tuple[bytes, bytes]], cursor.iterprev())

    def count(self, table: str) -> int:
        return int(self.transaction.stat(self.backend.handles[table])["entries"])


class LmdbWriteBatch:
    """See `base.WriteBatch`."""

    def __init__(self, backend: LmdbBackend, transaction: lmdb.Transaction) -> None:
        self._backend = backend
        self._transaction = transaction

    def put(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        with self._transaction.cursor(db=self._backend.handles[table]) as cursor:
            cursor.putmulti(items)

    def append(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        with self._transaction.cursor(db=self._backend.handles[table]) as cursor:
            cursor.putmulti(items, append=True)

    def delete(self, table: str, keys: Iterable[bytes]) -> None:
        handle, delete = self._backend.handles[table], self._transaction.delete
        for key in keys:
            delete(key, db=handle)

    def get(self, table: str, key: bytes) -> bytes | None:
        return cast(bytes | None, self._transaction.get(key, db=self._backend.handles[table]))

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor(db=self._backend.handles[table]) as cursor:
            if cursor.set_range(start):
                yield from cast(Iterator[tuple[bytes, bytes]], cursor)

    def set_record(self, record: ReplicaRecord) -> None:
        self._backend.write_record(self._transaction, record)


def _open_environment(path: Path, **options: Any) -> lmdb.Environment:
    """LMDB's environment in a folder.

    LMDB opens no file twice in a process, and knows a file by its inode.  While another thread closes
    the environment of a folder that was removed, the system may give that inode to a new file: so
    wait until it is closed.
    """
    ends, is_first = time.monotonic() + _CLOSING_SECONDS, True
    while True:
        try:
            return lmdb.open(str(path), **options)
        except lmdb.Error as refused:
            if _ALREADY_OPEN not in str(refused) or time.monotonic() > ends:
                raise
        if is_first:
            gc.collect()  # closes one that only the traceback of an error has
            is_first = False
        time.sleep(_PAUSE_SECONDS)


def _reserve_lock_file(path: Path, readers: int) -> None:
    """Reserve the lock file's disk space before LMDB maps it.

    On a full disk, a write to a slot would end the process by SIGBUS.
    """
    file = os.open(path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, _LOCK_HEADER_BYTES + readers * _READER_BYTES)
    finally:
        os.close(file)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn LMDB's and the system's errors about a replica's folder into ours.

    Raises:  DISK_FULL, REPLICA_NOT_WRITABLE.
    """
    try:
        yield
    except (lmdb.Error, OSError) as broken:
        text = str(broken)
        if isinstance(broken, lmdb.MapFullError | lmdb.DiskError) or _is_full(path):
            raise ReplicaError(
                "DISK_FULL",
                f"The replica in {path} can't grow: {text}.",
                hint="Free space on that disk, or name another one with --replica-dir; the replica then continues by itself.",
                path=str(path),
            ) from broken
        raise ReplicaError(
            "REPLICA_NOT_WRITABLE",
            f"The replica in {path} can't be used: {text}.",
            hint="Choose a folder on a local disk that this user may write to, with --replica-dir or MILLPOND_HOME.",
            path=str(path),
        ) from broken


def _is_full(path: Path) -> bool:
    """Whether the disk is full: LMDB reports a short write as an input/output error."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LITTLE_BYTES

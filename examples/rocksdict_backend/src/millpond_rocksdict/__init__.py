"""Keeps Millpond's replicas in RocksDB, by rocksdict.

    key in RocksDB    = table (2 bytes), key with its zeros escaped, 00 00, inverted number of the write (8 bytes)
    value in RocksDB  = 01 and the value; 00 for a key that the write removed

A snapshot is a number: that of the newest write when it was opened.  Of each key it sees the newest
version that isn't above that number.  Later writes remove versions that no open snapshot can see.
RocksDB's own snapshots won't do: in rocksdict 0.3.29 their iterators see later writes.

Table 0 has the record and the counts of rows.  Table 1 has what isn't versioned: the stores, the
names of the tables, the number of the last write.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from rocksdict import Options, Rdict, RdictIter, WriteBatch

from millpond.backends import (
    ReplicaError,
    ReplicaRecord,
    ReplicaSettings,
    StoresRecord,
    building,
    decode_record,
    encode_record,
    encode_stores,
    parse_stores,
)

_NEWEST = (1 << 64) - 1
_THERE, _GONE = b"\x01", b"\x00"
_VERSIONED, _PLAIN, _FIRST = 0, 1, 2
_RECORD, _STORES, _TABLES, _LAST = b"record", b"stores", b"tables", b"last"


def open_backend(path: Path, settings: ReplicaSettings) -> RocksdictBackend:  # noqa: ARG001 - RocksDB needs none of them
    """The RocksDB in a folder."""
    with _explained(path):
        return RocksdictBackend(path)


def _prefix(table: int, key: bytes) -> bytes:
    """What all versions of a key begin with: in the order of the keys."""
    return table.to_bytes(2, "big") + key.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _key_of(stored: bytes) -> bytes:
    return stored[2:-10].replace(b"\x00\xff", b"\x00")


class RocksdictBackend:
    """One generation of a replica.  See `millpond.backends.Backend`."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self.name = path.name
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self.db = Rdict(str(path / "rocksdb"), options)
        weakref.finalize(self, _close, self.db)
        self.tables: dict[str, int] = msgspec.json.decode(self.plain(_TABLES) or b"{}", type=dict[str, int])
        self.last = int.from_bytes(self.plain(_LAST) or b"", "big")
        self._write_lock, self._lock = threading.Lock(), threading.RLock()
        self._open: Counter[int] = Counter()  # snapshots, by the number of their write
        self._ended: deque[int] = deque()  # those that have ended, and still count
        self._obsolete: deque[tuple[int, list[bytes]]] = deque()  # versions that snapshots from that write on don't see

    def plain(self, name: bytes) -> bytes | None:
        """What isn't versioned."""
        found: bytes | None = self.db.get(_PLAIN.to_bytes(2, "big") + name)
        return found

    def stores(self) -> StoresRecord | None:
        data = self.plain(_STORES)
        return None if data is None else parse_stores(data)

    def set_stores(self, stores: StoresRecord) -> None:
        with _explained(self.folder):
            self.db[_PLAIN.to_bytes(2, "big") + _STORES] = encode_stores(stores)

    def create(self, tables: Iterable[str]) -> None:
        numbers = {table: number for number, table in enumerate(tables, _FIRST)}
        with _explained(self.folder):
            self.db[_PLAIN.to_bytes(2, "big") + _TABLES] = msgspec.json.encode(numbers)
        self.tables = numbers

    def snapshot(self) -> RocksdictSnapshot:
        with self._lock:
            last = self.last
            self._open[last] += 1
        return RocksdictSnapshot(self, last)

    def end(self, write: int) -> None:
        """A snapshot has ended.  Python may call this anywhere, when it collects garbage: so it takes no lock."""
        self._ended.append(write)

    def _oldest(self) -> int:
        """The write that the oldest snapshot sees."""
        with self._lock:
            while self._ended:
                write = self._ended.popleft()
                self._open[write] -= 1
                if not self._open[write]:
                    del self._open[write]
            return min(self._open, default=self.last)

    @contextmanager
    def write(self) -> Iterator[RocksdictWrite]:
        with self._write_lock:
            batch = RocksdictWrite(self, self.last + 1)
            yield batch
            with _explained(self.folder):
                obsolete, oldest, done = batch.finish(), self._oldest(), 0
                while done < len(self._obsolete) and self._obsolete[done][0] <= oldest:
                    for key in self._obsolete[done][1]:
                        batch.raw.delete(key)
                    done += 1
                try:
                    self.db.write(batch.raw)
                except Exception:
                    with self._lock:  # it may be there all the same, and whole
                        self.last = int.from_bytes(self.plain(_LAST) or b"", "big")
                    raise
            for _ in range(done):
                self._obsolete.popleft()
            self._obsolete.append((batch.number, obsolete))
            with self._lock:
                self.last = batch.number

    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self.folder / "rocksdb").iterdir() if file.is_file())

    def check_readers(self) -> int:
        return 0

    # ------------------------------------------------------------ versions

    def find(self, table: int, key: bytes, write: int) -> bytes | None:
        """The value of a key as of a write."""
        found = self.version(table, key, write)
        return None if found is None or found[1][:1] == _GONE else found[1][1:]

    def version(self, table: int, key: bytes, write: int) -> tuple[bytes, bytes] | None:
        """The newest version of a key that isn't above a write: as it is stored."""
        prefix = _prefix(table, key)
        at = self._seek(prefix + (_NEWEST - write).to_bytes(8, "big"))
        if not at.valid() or not (stored := bytes(at.key())).startswith(prefix) or len(stored) != len(prefix) + 8:
            return None
        return stored, bytes(at.value())

    def iterate(self, table: int, start: bytes, write: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows from a key on, as of a write."""
        at, ends = self._seek(_prefix(table, start)), (table + 1).to_bytes(2, "big")
        done = b""
        while at.valid() and (stored := bytes(at.key())) < ends:
            if stored[:-8] != done and _NEWEST - int.from_bytes(stored[-8:], "big") <= write:
                done = stored[:-8]
                value = bytes(at.value())
                if value[:1] == _THERE:
                    yield _key_of(stored), value[1:]
            at.next()
        _check(at)

    def iterate_back(self, table: int, below: bytes | None, write: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows below a key, from the last on, as of a write."""
        at: RdictIter = self.db.iter()
        at.seek_for_prev(_prefix(table, below) if below is not None else (table + 1).to_bytes(2, "big"))
        begins, best = table.to_bytes(2, "big"), (b"", _GONE)
        while at.valid() and (stored := bytes(at.key())).startswith(begins):
            if stored[:-8] != best[0][:-8] and best[1][:1] == _THERE:
                yield _key_of(best[0]), best[1][1:]
            if stored[:-8] != best[0][:-8]:
                best = (stored, _GONE)
            if _NEWEST - int.from_bytes(stored[-8:], "big") <= write:  # older versions come first
                best = (stored, bytes(at.value()))
            at.prev()
        _check(at)
        if best[1][:1] == _THERE:
            yield _key_of(best[0]), best[1][1:]

    def _seek(self, key: bytes) -> RdictIter:
        at: RdictIter = self.db.iter()
        at.seek(key)
        _check(at)
        return at


class RocksdictSnapshot:
    """See `millpond.backends.Snapshot`."""

    def __init__(self, backend: RocksdictBackend, write: int) -> None:
        self._backend = backend
        self._write = write
        self._end = weakref.finalize(self, backend.end, write)

    def __enter__(self) -> RocksdictSnapshot:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def record(self) -> ReplicaRecord:
        data = self._backend.find(_VERSIONED, _RECORD, self._write)
        if data is None:
            raise building()
        return decode_record(data)

    def get(self, table: str, key: bytes) -> bytes | None:
        with _explained(self._backend.folder):
            return self._backend.find(self._backend.tables[table], key, self._write)

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        with _explained(self._backend.folder):
            yield from self._backend.iterate(self._backend.tables[table], start, self._write)

    def iterate_back(self, table: str, below: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with _explained(self._backend.folder):
            yield from self._backend.iterate_back(self._backend.tables[table], below, self._write)

    def count(self, table: str) -> int:
        number = self._backend.tables[table].to_bytes(2, "big")
        return int.from_bytes(self._backend.find(_VERSIONED, number, self._write) or b"", "big")


class RocksdictWrite:
    """See `millpond.backends.WriteBatch`."""

    def __init__(self, backend: RocksdictBackend, number: int) -> None:
        self.number = number
        self.raw = WriteBatch(raw_mode=True)
        self._backend = backend
        self._record: ReplicaRecord | None = None
        self._changes: dict[str, dict[bytes, bytes | None]] = {}

    def put(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        self._changes.setdefault(table, {}).update(items)

    def append(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        self.put(table, items)

    def delete(self, table: str, keys: Iterable[bytes]) -> None:
        self._changes.setdefault(table, {}).update((key, None) for key in keys)

    def get(self, table: str, key: bytes) -> bytes | None:
        changes = self._changes.get(table, {})
        return changes[key] if key in changes else self._backend.find(self._backend.tables[table], key, self.number)

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        changes = self._changes.get(table, {})
        changed = iter(sorted(key for key in changes if key >= start))
        own = next(changed, None)
        for key, value in self._backend.iterate(self._backend.tables[table], start, self.number):
            while own is not None and own < key:
                if (new := changes[own]) is not None:
                    yield own, new
                own = next(changed, None)
            if own == key:
                if (new := changes[key]) is not None:
                    yield key, new
                own = next(changed, None)
            else:
                yield key, value
        while own is not None:
            if (new := changes[own]) is not None:
                yield own, new
            own = next(changed, None)

    def set_record(self, record: ReplicaRecord) -> None:
        self._record = record

    def finish(self) -> list[bytes]:
        """Everything in `raw`; returns the versions that nobody sees from this write on."""
        backend, version = self._backend, (_NEWEST - self.number).to_bytes(8, "big")
        obsolete: list[bytes] = []

        def put(table: int, key: bytes, value: bytes | None) -> int:
            """Write a version; returns how many rows more there are."""
            before = backend.version(table, key, self.number)
            was = before is not None and before[1][:1] == _THERE
            if value is None and not was:
                return 0
            stored = _prefix(table, key) + version
            self.raw.put(stored, _GONE if value is None else _THERE + value)
            if before is not None:
                obsolete.append(before[0])
            if value is None:
                obsolete.append(stored)  # as soon as what it hides is removed
            return (value is not None) - was

        for name, changes in self._changes.items():
            table = backend.tables[name]
            more = sum(put(table, key, value) for key, value in changes.items())
            if more:
                number = table.to_bytes(2, "big")
                count = int.from_bytes(backend.find(_VERSIONED, number, self.number) or b"", "big") + more
                put(_VERSIONED, number, count.to_bytes(8, "big"))
        if self._record is not None:
            put(_VERSIONED, _RECORD, encode_record(self._record))
        self.raw.put(_PLAIN.to_bytes(2, "big") + _LAST, self.number.to_bytes(8, "big"))
        return obsolete


def _close(db: Rdict) -> None:
    with suppress(Exception):  # a newer generation serves, and this one's folder was removed
        db.close()


def _check(at: RdictIter) -> None:
    """Raise what made an iterator end early."""
    at.status()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn RocksDB's errors about a replica's folder into Millpond's."""
    try:
        yield
    except ReplicaError:
        raise
    except Exception as broken:  # rocksdict has no class of its own for most errors
        is_full = "No space left" in str(broken)
        raise ReplicaError(
            "DISK_FULL" if is_full else "REPLICA_NOT_WRITABLE",
            f"The replica in {path} can't be used: {broken}.",
            hint="Free space on that disk." if is_full else "Choose a folder on a local disk with --replica-dir.",
            path=str(path),
        ) from broken

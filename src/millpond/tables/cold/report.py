"""The contents of a checkpoint, for people: from Spark's files alone, without a replica or Java.

A part that can't be read doesn't hide the rest: `unread` names it, with its condition.

1. The newest committed batch names settings, offsets and watermark; the batches before it name
   their times.
2. Every store of every operator: its schema, and the tables that show it.
   Copies of a table are compared with each other, all of them in memory.
3. Every partition of a store is read whole, one after the other, to count rows and bytes. Memory
   needs room for the keys of one partition.
4. The disk a replica needs: each row's bytes as LMDB lays them out in leaf pages, times what a
   build measurably adds to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from millpond.catalogue import JobFolder
from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.files.records import DELETE, PUT
from millpond.checkpoint.files.sidecars import verify_file
from millpond.checkpoint.log import CommittedBatch, StateSettings, committed_batches, job_id, read_batch, read_conf
from millpond.checkpoint.operators import UnreadStore, check_state, read_each_operator
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import MillpondError
from millpond.replica.apply import plan_tables
from millpond.replica.build import can_sort
from millpond.replica.record import StoresRecord, make_stores_record
from millpond.schema.definition.hot_keys import HotKey
from millpond.schema.definition.operator_name import Entry, NamedOperator
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.settings import Retention
from millpond.storage import Storage
from millpond.storage.below import files_below
from millpond.tables.cold.merged import MergedRows
from millpond.tables.default_tables import stored_tables, why_hidden
from millpond.tables.scan.binding import check_schemas, store_missing

Found = TypeVar("Found")
StoreId = tuple[int, str, str]
"""(operator, store, column family)"""

_PAGE = 4096
_PAGE_HEADER = 16
# A leaf's node has 8 bytes of header and 2 bytes for its place in the page. The value of a node
# above half a page has pages of its own.
_NODE = 10
_OVERFLOW = (_PAGE - _PAGE_HEADER) // 2
# The environment's bytes for each byte of nodes. Rows that are sorted before they are written fill
# their pages.
_SORTED = 1.05
# The same after a build from so many partitions that couldn't be sorted. Each partition has a
# transaction of its own: a single one fills its pages; later ones split the pages of those before,
# and leave copied pages free. Measured on 20,000 rows with keys of 8 to 32 characters: 1.04, 1.96,
# 3.24, 3.68, and the same for 32 and 200 partitions; held by tests/tables/cold/test_inspect.py.
_SPREAD = ((8, 3.7), (4, 3.25), (2, 2.0), (1, 1.05))
# After so many partitions without any file, stop: no other one will have files.
_MISSING = 8
# An environment's two meta pages, its list of tables and of free pages.
_EMPTY_BYTES = 8 * _PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A part that couldn't be read, and why.

    part:  its name in words: `job id`, `batch 41`, `operator 0, store default, partition 3`
    """

    part: str
    condition: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """One committed batch.

    started_ms:    when Spark planned it, from offsets/N
    committed_ms:  when commits/N was written; None if the checkpoint was copied, so that the file's
                   time is another
    """

    batch: int
    started_ms: int
    committed_ms: int | None
    watermark_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    """One partition of a store.

    rows, row_bytes:  the number of rows after the newest batch, and the bytes of their keys and
                      values; None if they can't be read
    files, file_bytes: all files in its folder, older versions too
    """

    partition: int
    rows: int | None
    row_bytes: int | None
    files: int
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """One store of an operator.

    family:         the column family; empty if the store has none
    tables:         names under which `open` shows it
    kept:           the retention that the pond names, None if it names none
    key, value:     (column, type) from Spark's schema file; empty if that can't be read
    replica_bytes:  an estimate of the disk that its replica needs; None if some partitions can't be
                    read
    """

    operator: int
    operator_name: str
    store: str
    family: str
    tables: tuple[str, ...]
    kept: Retention | None
    key: tuple[tuple[str, str], ...]
    value: tuple[tuple[str, str], ...]
    partitions: tuple[PartitionSize, ...]
    replica_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """All that a job's checkpoint says.

    job_id:         None if it can't be read; so with every None here but that of `watermark_ms`
    settings:       how Spark wrote the newest batch's state
    conf:           every setting that Spark pinned in the newest batch
    format:         of the checkpoint's state files, 1 or 2
    sources:        source -> its end offset; None if it had none yet
    batches:        how many are committed and still in the log
    newest:         the last of these, newest first
    hot_keys:       the groups that the job found to be hot, if it looks for them
    replica_bytes:  of all stores.  A new build needs three times that: for the old replica, the
                    rows in the sort, and the new replica.  Rows that come and go later leave pages
                    half empty
    """

    job: str
    checkpoint: str
    job_state: str
    job_id: str | None
    settings: StateSettings | None
    conf: dict[str, str]
    format: int | None
    sources: dict[str, Any]
    watermark_ms: int | None
    batches: int
    newest: tuple[BatchTimes, ...]
    stores: tuple[StoreReport, ...]
    hot_keys: tuple[HotKey, ...]
    replica_bytes: int | None
    checksums: Checksums | None
    unread: tuple[Unread, ...]
    requests: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksums:
    """How many files have checksums, all compared; files that don't match theirs are in `unread`.

    files, checked:  how many files there are, and how many of them have a checksum
    """

    files: int
    checked: int


def inspect_job(folder: JobFolder, *, batches: int = 5, checksums: bool = False) -> JobReport:
    """Read all that a job's checkpoint tells.

    batches:    how many of the newest batches to show
    checksums:  compare every file of the logs and the state, older versions too, with the checksum
                beside it
    Raises:     UNSUPPORTED for a kind of storage that can't be read; all other errors are in
                `unread`.
    """
    return _Inspection(folder).report(batches, checksums=checksums)


class _Inspection:
    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._storage: Storage = folder.open_checkpoint()
        self._reader = StateReader(self._storage)
        self._unread: list[Unread] = []

    def report(self, count: int, *, checksums: bool) -> JobReport:
        storage = self._storage
        identity = self._try("job id", lambda: job_id(storage))
        numbers = self._try("list of batches", lambda: committed_batches(storage)) or []
        read = [self._batch(number) for number in reversed(numbers[-max(1, count) :])]  # 1
        # Don't show an older batch's settings and offsets as those of the newest.
        newest = read[0] if read else None
        conf = self._try(f"settings of batch {newest.batch}", lambda: read_conf(storage, newest.batch)) if newest else None
        if newest:
            self._try("trigger", partial(refuse_real_time, storage, newest))
        last = numbers[-1] if numbers else Batch(0)
        if newest:
            self._try("state", lambda: check_state(storage, newest, self._folder.known_state(is_stateless=True)))
        known, unread = self._try("operators", lambda: read_each_operator(storage, last)) or ([], [])
        tables = self._shown_tables(identity or "", newest, known, unread)
        stores = [self._store(s, tables, newest) for s in known] + [self._refused(u) for u in unread]  # 2
        sizes = [s.replica_bytes for s in stores if s.key or s.value]
        verified = self._verify() if checksums else None
        return JobReport(
            job=self._folder.job,
            checkpoint=storage.uri,
            job_state=self._folder.job_state(newest.committed_ns if newest else None),
            job_id=identity,
            settings=newest.settings if newest else None,
            conf=conf or {},
            format=None if newest is None else 2 if newest.state_ids else 1,
            sources=newest.offsets if newest else {},
            watermark_ms=newest.watermark_ms if newest else None,
            batches=len(numbers),
            newest=tuple(_times(batch) for batch in read if batch is not None)[:count],
            stores=tuple(sorted(stores, key=lambda s: (s.operator, s.store, s.family))),
            hot_keys=tuple(self._try("hot keys", self._folder.hot_keys) or ()),
            replica_bytes=None if None in sizes or not sizes else _EMPTY_BYTES + sum(s for s in sizes if s is not None),
            checksums=verified,
            unread=tuple(self._unread),
            requests=dict(storage.requests),
        )

    def _verify(self) -> Checksums:
        checked = 0
        found = [path for folder in ("offsets", "commits", "state") for path in files_below(self._storage, folder)]
        paths = ["metadata", *(path for path in found if not path.endswith(".crc"))]
        for path in paths:
            checked += self._try(f"checksum of {path}", partial(verify_file, self._storage, path)) is not False
        return Checksums(files=len(paths), checked=checked)

    def _batch(self, number: Batch) -> CommittedBatch | None:
        return self._try(f"batch {number}", lambda: read_batch(self._storage, number))

    def _try(self, part: str, read: Callable[[], Found]) -> Found | None:
        try:
            return read()
        except MillpondError as error:
            self._note(part, error)
            return None

    def _note(self, part: str, error: MillpondError) -> None:
        self._unread.append(Unread(part=part, condition=error.condition, message=error.message, hint=error.hint))

    def _shown_tables(
        self, identity: str, batch: CommittedBatch | None, known: list[StoreSchema], unread: list[UnreadStore]
    ) -> dict[StoreId, list[TableDefinition]]:
        """The tables that show each store; names that no longer fit a store are noted."""
        entries = self._try("definitions of tables", self._folder.entries) or []
        shown: dict[StoreId, list[TableDefinition]] = {}
        stores = make_stores_record(identity, self._storage.uri, known, unread)
        for entry in entries if batch else ():
            self._try(f"table {entry.table}", partial(_check_fits, entry, known, stores))
        defined = [entry for entry in entries if isinstance(entry, TableDefinition)]
        for definition in (*defined, *(found for found, _ in stored_tables(self._folder, stores, entries))):
            shown.setdefault(definition.store_id, []).append(definition)
        return shown

    def _refused(self, store: UnreadStore) -> StoreReport:
        self._note(f"operator {store.operator} ({store.operator_name}), store {store.store}", store.error)
        return StoreReport(
            operator=store.operator,
            operator_name=store.operator_name,
            store=store.store,
            family="",
            tables=(),
            kept=None,
            key=(),
            value=(),
            partitions=(),
            replica_bytes=None,
        )

    def _store(self, store: StoreSchema, tables: dict[StoreId, list[TableDefinition]], batch: CommittedBatch | None) -> StoreReport:
        shown = tables.get((store.operator, store.store, store.family), [])
        sizes: list[PartitionSize] = []
        replica_bytes: int | None = 0 if batch else None
        for definition in shown if batch else ():
            if definition.parts is not None and definition.parts.merges is None and batch is not None:
                self._try(f"table {definition.table}", partial(self._check_copies, definition, store, batch))
        for partition in partitions_of(batch, store) if batch else ():
            assert batch is not None
            size, needed = self._partition(store, batch, partition)
            sizes.append(size)
            replica_bytes = None if needed is None or replica_bytes is None else replica_bytes + needed
            if len(sizes) >= _MISSING and not any(s.files for s in sizes):
                break  # the folders are missing: a damaged log may name any number of them
        return StoreReport(
            operator=store.operator,
            operator_name=store.operator_name,
            store=store.store,
            family=store.family,
            tables=tuple(d.table for d in shown),
            kept=next((d.retention for d in shown if d.retention is not None), None),
            key=tuple((f.name, str(f.type)) for f in store.key),
            value=tuple((f.name, str(f.type)) for f in store.value),
            partitions=tuple(sizes),
            replica_bytes=replica_bytes and int(replica_bytes * _spread(store, len(sizes))),
        )

    def _check_copies(self, definition: TableDefinition, store: StoreSchema, batch: CommittedBatch) -> None:
        """Compare all copies of a table with each other.

        Raises:  COPIES_DIFFER, which names the first row that differs; DEFINITION_MISMATCH.
        """
        check_schemas(definition, store.key, store.value)
        found = MergedRows(definition, store)
        for partition in partitions_of(batch, store):
            rows: dict[bytes, bytes] = {}
            for kind, key, value in self._reader.iter_state(batch, store, partition):
                if kind == DELETE:
                    rows.pop(key, None)
                else:
                    rows[key] = value if kind == PUT else rows.get(key, b"") + value
            for key, value in rows.items():
                found.add(key, iter_elements(value) if store.many else (value,))
        for _ in found.rows():
            pass

    def _partition(self, store: StoreSchema, batch: CommittedBatch, partition: int) -> tuple[PartitionSize, int | None]:
        """One partition's sizes, and the bytes of its replica."""
        family = f", {store.family}" if store.family else ""
        part = f"operator {store.operator}, store {store.store}{family}, partition {partition}"
        files = self._try(f"files of {part}", lambda: _files(self._storage, store.folder(partition))) or []
        rows = self._try(part, lambda: self._rows(store, batch, partition))  # 3
        count, row_bytes, replica_bytes = rows or (None, None, None)
        size = PartitionSize(partition=partition, rows=count, row_bytes=row_bytes, files=len(files), file_bytes=sum(files))
        return size, replica_bytes

    def _rows(self, store: StoreSchema, batch: CommittedBatch, partition: int) -> tuple[int, int, int]:
        """(rows, bytes of keys and values, bytes in a replica) of one partition."""
        (table,) = plan_tables([store])
        sizes: dict[bytes, int] = {}
        for kind, key, value in self._reader.iter_state(batch, store, partition):
            if kind == PUT:
                sizes[key] = len(value)
            elif kind == DELETE:
                sizes.pop(key, None)
            else:
                sizes[key] = sizes.get(key, 0) + len(value)
        row_bytes = sum(len(key) + size for key, size in sizes.items())
        return len(sizes), row_bytes, _replica_bytes((len(table.transcode_key(key)), size) for key, size in sizes.items())


def _check_fits(entry: Entry, known: list[StoreSchema], stores: StoresRecord) -> None:
    """Compare a definition, or a name of an operator, with the state.

    Raises:  DEFINITION_MISMATCH if it isn't of this state; nothing if its operator can't be read,
             which is reported elsewhere.
    """
    if any(unread.operator == entry.operator for unread in stores.unread):
        return
    if isinstance(entry, NamedOperator):
        if (why := why_hidden(entry, stores)) is not None:
            raise why
        return
    for store in known:
        if (store.operator, store.store, store.family) == entry.store_id:
            check_schemas(entry, store.key, store.value)
            return
    raise store_missing(entry)


def _files(storage: Storage, folder: str) -> list[int]:
    """Sizes of a partition's files, in bytes."""
    return [*storage.sizes(folder).values(), *storage.sizes(f"{folder}/SSTs").values()]


def _replica_bytes(rows: Iterable[tuple[int, int]]) -> int:  # 4
    """The bytes that rows with these (key bytes, value bytes) take in LMDB's pages."""
    leaves = overflow = 0
    for key, value in rows:
        node = key + value + value % 2 + key % 2 + _NODE
        if node > _OVERFLOW:
            overflow += -(-(value + _PAGE_HEADER) // _PAGE) * _PAGE
            node = key + key % 2 + _NODE + 8
        leaves += node
    return -(-leaves // (_PAGE - _PAGE_HEADER)) * _PAGE + overflow


def _spread(store: StoreSchema, partitions: int) -> float:
    return _SORTED if can_sort(store) else next(factor for least, factor in _SPREAD if partitions >= least)


def _times(batch: CommittedBatch) -> BatchTimes:
    return BatchTimes(
        batch=batch.batch,
        started_ms=batch.started_ms,
        committed_ms=None if batch.committed_ns is None else batch.committed_ns // 1_000_000,
        watermark_ms=batch.watermark_ms,
    )

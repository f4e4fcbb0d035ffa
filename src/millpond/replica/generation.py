"""A generation of a replica: opened if it can continue, or built from the newest committed batch.

To build:

1. Read the checkpoint's stores at its newest batch, and refuse a job that can't be served.
2. Fill a new backend, which nobody reads yet.
3. Carry over the history and expired rows of the previous generation, if it is of the same job;
   else restore those of the journal.
4. Fill the indexes from all these rows.

If any step fails, nothing of the new generation stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from millpond.catalogue import KnownState
from millpond.checkpoint.log import WHY_NOT_STRICT, CommittedBatch, job_id, read_batch
from millpond.checkpoint.operators import check_state, read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.checkpoint.state import StateReader
from millpond.errors import CheckpointError
from millpond.replica.apply import ReplicaTable, plan_tables
from millpond.replica.backends.base import Backend
from millpond.replica.backends.choice import OpenBackend
from millpond.replica.backends.lmdb import open_backend as open_lmdb
from millpond.replica.build import Progress, build
from millpond.replica.fill_indexes import fill_indexes
from millpond.replica.folder import ReplicaPlace
from millpond.replica.history.carry_over import carry_over
from millpond.replica.history.keeper import Keeper
from millpond.replica.indexes import Indexes, WantedIndexes, kept_indexes, records_of
from millpond.replica.journal.restore import restore_closed
from millpond.replica.record import ReplicaRecord, StoresRecord, make_stores_record, with_indexes
from millpond.schema.shard import Shard
from millpond.settings import ReplicaSettings
from millpond.storage import Storage


@dataclass(slots=True)
class Generation:
    """A generation that is followed.

    path:      its folder, None in memory
    record:    its record
    metadata:  the schema files of those operators whose schemas may change from run to run
    indexes:   that it has; None if they can't be kept up to date, so that it must be built again
    """

    path: Path | None
    backend: Backend
    record: ReplicaRecord
    stores: StoresRecord
    reader: StateReader
    keeper: Keeper
    indexes: Indexes | None
    metadata: tuple[str, ...] = ()
    tables: list[ReplicaTable] = field(init=False)

    def __post_init__(self) -> None:
        self.tables = plan_tables(self.stores.stores)

    @property
    def job_id(self) -> str:
        """The id of its job."""
        return self.stores.job_id

    @property
    def evolving(self) -> list[int]:
        """The operators whose schemas may change from run to run: those with column families."""
        return sorted({s.operator for s in self.stores.stores if s.family})


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """Opens and builds generations of one checkpoint's replica.

    place:        the replica's folder, or None for a replica in memory, whose backends
                  `new_backend` makes
    make_keeper:  makes the keeper for these stores
    wanted_indexes:  the indexes for these stores
    build_reads:  how many partitions to read at the same time
    shard:        the partitions to follow; None for all
    open_backend: opens a generation's folder
    """

    storage: Storage
    place: ReplicaPlace | None
    settings: ReplicaSettings
    new_backend: Callable[[], Backend] | None
    make_keeper: Callable[[StoresRecord], Keeper]
    wanted_indexes: WantedIndexes
    build_reads: int
    shard: Shard | None = None
    open_backend: OpenBackend = open_lmdb

    def open(self) -> Generation | None:
        """The generation that serves; None if there is none that can continue.  Raises as `open_backend`."""
        path = self.place.current() if self.place is not None else None
        if path is None:
            return None
        backend = self.open_backend(path, self.settings)
        stores = backend.stores()
        if stores is None or stores.checkpoint != self.storage.uri or stores.shard != (self.shard.text if self.shard else ""):
            return None
        with backend.snapshot() as snapshot:
            record = snapshot.record()
        if record.status != "live":
            return None
        keeper = self.make_keeper(stores)
        kept = keeper.begin(record.batch, record.kept)
        if kept != record.kept:
            record = msgspec.structs.replace(record, kept=kept)
            with backend.write() as write:
                write.set_record(record)
        indexes = kept_indexes(stores, self.wanted_indexes(stores))
        return Generation(path, backend, record, stores, StateReader(self.storage), keeper, indexes)

    def plan(self, newest: Batch, before: Generation | None) -> tuple[CommittedBatch, StoresRecord]:
        """A batch, and the stores of a generation that is built at it.

        Raises:  as `read_batch`; UNSUPPORTED in real-time mode.
        """
        identity = job_id(self.storage)  # 1
        batch = read_batch(self.storage, newest)
        refuse_real_time(self.storage, batch)
        if self.shard is not None and not batch.settings.is_strict:
            raise CheckpointError(
                "UNSUPPORTED",
                f"A shard of {self.storage.uri} can't be followed: its rows may lie in any partition, since {WHY_NOT_STRICT}.",
                hint="Follow all partitions: leave the shard out.",
            )
        same = before if before is not None and before.job_id == identity else None
        had = frozenset(same.stores.operators()) if same is not None else frozenset[int]()
        check_state(self.storage, batch, KnownState(had, is_stateless=True))
        known, unread = read_stores(self.storage, batch.batch)
        lineage = same.stores.lineage if same is not None else None
        return batch, make_stores_record(identity, self.storage.uri, known, unread, lineage, self.shard)

    def has_all_indexes(self, generation: Generation) -> bool:
        """Whether a generation has all indexes that are wanted now, and each of its own still has the same meaning."""
        return records_of(self.wanted_indexes(generation.stores)) == generation.stores.indexes

    def build(
        self,
        batch: CommittedBatch,
        stores: StoresRecord,
        before: Generation | None,
        progress: Progress,
        aside: StateReader | None = None,
    ) -> tuple[Generation, int]:
        """A new generation, which doesn't serve yet, and how many records were read.

        before:  the present generation
        aside:   a reader of the batch's files, where they were put aside
        Raises:  as `build.build`.
        """
        if before is not None and before.job_id != stores.job_id:
            before = None
        path, backend = self._empty()
        indexes = self.wanted_indexes(stores)
        stores = with_indexes(stores, records_of(indexes))
        reached = (0, 0, 0)

        def noted(done: int, of: int, rows_read: int) -> None:
            nonlocal reached
            reached = done, of, rows_read
            progress(*reached)

        try:
            reader, keeper, rows = aside or StateReader(self.storage), self.make_keeper(stores), self.settings.rebuild_batch_rows
            records = build(  # 2
                reader, backend, batch, stores, keeper, chunk_rows=rows, reads=self.build_reads, progress=noted, shard=self.shard
            )
            if self.shard is not None and (before is None or before.record.partitions != batch.settings.partitions):
                pass  # rows that this shard had before the job was rescaled may be another shard's now
            elif before is not None:  # 3
                carry_over(before.backend, before.stores, backend, stores, keeper, chunk_rows=rows)
            elif self.place is not None:
                restore_closed(self.place.path, self.storage, batch, backend, stores, keeper)
            fill_indexes(backend, indexes, chunk_rows=rows, on_chunk=lambda: progress(*reached))  # 4
        except BaseException:
            del backend
            if self.place is not None:
                self.place.clean()
            raise
        with backend.snapshot() as snapshot:
            record = snapshot.record()
        return Generation(path, backend, record, stores, reader.on(self.storage), keeper, indexes), records

    def _empty(self) -> tuple[Path | None, Backend]:
        if self.place is None:
            assert self.new_backend is not None
            return None, self.new_backend()
        path = self.place.new_generation()
        return path, self.open_backend(path, self.settings)

"""A generation of a replica: opened if it can continue, or built from the newest committed batch.

To build:

1. Read the checkpoint's stores at its newest batch, and refuse a job that can't be served.
2. Fill a new backend, which nobody reads yet.
3. Carry over the history and expired rows of the previous generation, if it is of the same job;
   else restore those of the journal.

If any step fails, nothing of the new generation stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from millpond.checkpoint.log import CommittedBatch, job_id, read_batch
from millpond.checkpoint.operators import read_stores
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.checkpoint.state import StateReader
from millpond.replica.apply import ReplicaTable, plan_tables
from millpond.replica.backends.base import Backend
from millpond.replica.backends.lmdb import open_backend
from millpond.replica.build import Progress, build
from millpond.replica.folder import ReplicaPlace
from millpond.replica.history.carry_over import carry_over
from millpond.replica.history.keeper import Keeper
from millpond.replica.journal.restore import restore_closed
from millpond.replica.record import ReplicaRecord, StoresRecord, make_stores_record
from millpond.settings import ReplicaSettings
from millpond.storage import Storage


@dataclass(slots=True)
class Generation:
    """A generation that is followed.

    path:      its folder, None in memory
    record:    its record
    metadata:  the schema files of those operators whose schemas may change from run to run
    """

    path: Path | None
    backend: Backend
    record: ReplicaRecord
    stores: StoresRecord
    reader: StateReader
    keeper: Keeper
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
    build_reads:  how many partitions to read at the same time
    """

    storage: Storage
    place: ReplicaPlace | None
    settings: ReplicaSettings
    new_backend: Callable[[], Backend] | None
    make_keeper: Callable[[StoresRecord], Keeper]
    build_reads: int

    def open(self) -> Generation | None:
        """The generation that serves; None if there is none that can continue.  Raises as `open_backend`."""
        path = self.place.current() if self.place is not None else None
        if path is None:
            return None
        backend = open_backend(path, self.settings)
        stores = backend.stores()
        if stores is None or stores.checkpoint != self.storage.uri:
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
        return Generation(path, backend, record, stores, StateReader(self.storage), keeper)

    def plan(self, newest: Batch, before: Generation | None) -> tuple[CommittedBatch, StoresRecord]:
        """A batch, and the stores of a generation that is built at it.

        Raises:  as `read_batch`; UNSUPPORTED in real-time mode.
        """
        identity = job_id(self.storage)  # 1
        batch = read_batch(self.storage, newest)
        refuse_real_time(self.storage, batch)
        known, unread = read_stores(self.storage, batch.batch)
        lineage = before.stores.lineage if before is not None and before.job_id == identity else None
        return batch, make_stores_record(identity, self.storage.uri, known, unread, lineage)

    def build(
        self, batch: CommittedBatch, stores: StoresRecord, before: Generation | None, progress: Progress
    ) -> tuple[Generation, int]:
        """A new generation, which doesn't serve yet, and how many records were read.

        before:  the present generation
        Raises:  as `build.build`.
        """
        if before is not None and before.job_id != stores.job_id:
            before = None
        path, backend = self._empty()
        try:
            reader, keeper, rows = StateReader(self.storage), self.make_keeper(stores), self.settings.rebuild_batch_rows
            records = build(  # 2
                reader, backend, batch, stores, keeper, chunk_rows=rows, reads=self.build_reads, progress=progress
            )
            if before is not None:  # 3
                carry_over(before.backend, before.stores, backend, stores, keeper, chunk_rows=rows)
            elif self.place is not None:
                restore_closed(self.place.path, self.storage, batch, backend, stores, keeper)
        except BaseException:
            del backend
            if self.place is not None:
                self.place.clean()
            raise
        with backend.snapshot() as snapshot:
            record = snapshot.record()
        return Generation(path, backend, record, stores, reader, keeper), records

    def _empty(self) -> tuple[Path | None, Backend]:
        if self.place is None:
            assert self.new_backend is not None
            return None, self.new_backend()
        path = self.place.new_generation()
        return path, open_backend(path, self.settings)

"""A job as it was at an earlier batch: every read of a table that keeps history, as of then."""

from __future__ import annotations

import datetime as dt

import msgspec

from millpond.checkpoint.position import Batch
from millpond.errors import ReplicaError
from millpond.replica.backends.base import Snapshot
from millpond.replica.history.as_of import SnapshotAsOf, check_kept, iter_positions, position_at, position_at_time
from millpond.replica.record import ReplicaRecord
from millpond.replica.replica import View
from millpond.schema.moment import time_micros
from millpond.tables.answer import Cut
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.reads import Reads
from millpond.tables.scan.ttl import clock_ms


class EarlierReads(Reads):
    """The reads of one table's job, as of a batch, or as of a time that names the batch."""

    def __init__(self, now: Reads, store: str, table: str, batch: int, asked_ms: int | None) -> None:
        self.job = now.job
        self._now = now
        self._store = store
        self._table = table
        self._batch = batch
        self._asked_ms = asked_ms

    def open(self, bounds: Bounds | None = None) -> tuple[View, Cut]:
        """A view of that batch.

        Raises:  HISTORY_GONE; NOT_UP_TO_BOUND if the batch is still to come or doesn't meet the
                 bounds, without waiting for them; as `JobReads.open`.
        """
        now, _ = self._now.open()
        with now:
            view = as_of(now, self._store, self._table, self._batch)
        return self.job.meeting(view, bounds)

    def clock_ms(self, record: ReplicaRecord) -> int:
        """The time by which TTLs are judged: when the batch was planned, or the time asked for."""
        return record.started_ms if self._asked_ms is None else clock_ms(record.started_ms, self._asked_ms)


def as_of(now: View, store: str, table: str, batch: int) -> View:
    """The given view, handed on as of an earlier batch.  Raises as `rows_as_of`."""
    rows, record = rows_as_of(now, store, table, batch)
    return now.hand_on() if rows is now.rows else now.hand_on_as(rows, record)


def rows_as_of(now: View, store: str, table: str, batch: int) -> tuple[Snapshot, ReplicaRecord]:
    """The rows of a view as of an earlier batch, with its record.

    Raises:  HISTORY_GONE, NOT_UP_TO_BOUND.
    """
    check_kept(now.record, store, batch, table=table)
    if batch == now.record.batch:
        return now.rows, now.record
    record = position_at(now.rows, batch)
    if record is None:
        raise ReplicaError(
            "HISTORY_GONE",
            f"The position of batch {batch} is no longer kept.",
            hint="Ask for a newer batch.",
            batch=batch,
        )
    record = msgspec.structs.replace(record, kept=now.record.kept)
    return SnapshotAsOf(now.rows, now.stores, record), record


def batch_of(view: View, when: int | dt.datetime | str) -> int:
    """A batch by its number, or by a time.  Raises as `batch_at`; WRONG_TYPE."""
    return when if isinstance(when, int) else batch_at(view, time_micros(when) // 1000)


def batch_at(view: View, time_ms: int) -> Batch:
    """The newest batch that was committed by then.  Raises HISTORY_GONE if no kept batch is so old."""
    if time_ms >= view.record.committed_ms:
        return Batch(view.record.batch)
    found = position_at_time(view.rows, time_ms)
    if found is None:
        first = next(iter_positions(view.rows), view.record)
        raise ReplicaError(
            "HISTORY_GONE",
            f"No kept batch is so old: the oldest, batch {first.batch}, was committed after that time.",
            hint="Ask for a later time.",
            first=first.batch,
            time_ms=time_ms,
        )
    return Batch(found.batch)

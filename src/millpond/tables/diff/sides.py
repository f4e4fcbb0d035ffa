"""The two sides of a diff: a savepoint, a job at its newest batch, or a job at an earlier one.

before-upgrade       the savepoint or the job of this name
savepoint:views      the savepoint, if a job has the same name; `job:views` is the job
views@41             the job at batch 41, if Spark still has it
@41                  the same for the only job of a place
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from millpond.catalogue import JobFolder, find_job, is_pond, read_catalogue
from millpond.checkpoint.log import CommittedBatch, job_id, read_batch
from millpond.checkpoint.operators import UnreadStore, read_each_operator
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.errors import CheckpointError, MillpondError, RequestError, SavepointError
from millpond.replica.record import make_stores_record
from millpond.savepoint.create import find_batches
from millpond.savepoint.manage.folder import open_savepoint
from millpond.savepoint.manifest import Savepoint
from millpond.savepoint.restore import read_tables
from millpond.schema.definition.operator_name import Entry
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.storage import Storage
from millpond.tables.default_tables import stored_tables
from millpond.tables.job.offsets import is_own
from millpond.tables.kept.shorter import Hidden, hidden_of, read_shorter
from millpond.tables.scan.binding import store_of
from millpond.tables.scan.ttl import clock_ms

Offsets = Literal["same", "differ", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffSide:
    """One side of a diff: one batch of one job, for all of its tables.

    savepoint:         the savepoint's name; None if this is the job itself
    job, job_id:       the job's name, and the id that Spark wrote into its checkpoint
    checkpoint:        URI of the job's checkpoint, also for a savepoint of it
    batch:             all rows are of this batch
    offsets:           source -> its end offset; None if it had none yet
    watermark_ms:      after the batch; None if the job has none
    batch_started_ms:  when Spark planned the batch
    committed_ms:      when it was committed; None if the checkpoint was copied
    judged_ms:         rows whose TTL had passed at this time are left out: for a job's newest batch
                       when it was read, else when the batch was planned
    behind_batches:    how many later batches the job had committed; None for a savepoint
    job_state:         running, stopped or unknown; None for a savepoint
    """

    savepoint: str | None
    job: str
    job_id: str
    checkpoint: str
    batch: int
    offsets: dict[str, Any]
    watermark_ms: int | None
    batch_started_ms: int
    committed_ms: int | None
    judged_ms: int
    behind_batches: int | None
    job_state: str | None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a side is read from.

    folder:     the job's; of a savepoint, made from its manifest
    savepoint:  None if it is the job itself
    number:     of the batch; None for the newest when it is opened
    """

    folder: JobFolder
    savepoint: Savepoint | None = None
    number: int | None = None

    def open(self, now_ms: int) -> OpenSide:
        """Its batch, stores and definitions, as they are now.

        now_ms:  by the reader's clock, one time for both sides
        Raises:  NO_COMMITTED_BATCH, BATCH_GONE, SAVEPOINT_DAMAGED; what reading the checkpoint
                 raises.
        """
        storage = self.folder.open_checkpoint()
        batches = find_batches(storage, self.number)
        batch = read_batch(storage, batches[-1] if self.number is None else Batch(self.number))
        refuse_real_time(storage, batch)
        stores, unread = read_each_operator(storage, batch.batch)
        entries, broken = self._entries()
        identity = job_id(storage)
        record = make_stores_record(identity, storage.uri, stores, unread)
        tables = {definition.table: definition for definition, _ in stored_tables(self.folder, record, entries)}
        tables |= {entry.table: entry for entry in entries if isinstance(entry, TableDefinition)}
        saved = None if self.savepoint is None else self.savepoint.manifest
        committed_ms = None if batch.committed_ns is None else batch.committed_ns // 1_000_000
        side = DiffSide(
            savepoint=saved.name if saved else None,
            job=self.folder.job,
            job_id=identity,
            checkpoint=saved.checkpoint if saved else storage.uri,
            batch=batch.batch,
            offsets=batch.offsets,
            watermark_ms=batch.watermark_ms,
            batch_started_ms=batch.started_ms,
            committed_ms=saved.committed_ms if saved else committed_ms,
            judged_ms=clock_ms(batch.started_ms, now_ms) if self.number is None else batch.started_ms,
            behind_batches=None if saved else sum(number > batch.batch for number in batches),
            job_state=None if saved else self.folder.job_state(batch.committed_ns),
        )
        return OpenSide(side, storage, batch, tables, broken, stores, unread, None if saved else self.folder.storage)

    def _entries(self) -> tuple[list[Entry], dict[str, MillpondError]]:
        return self.folder.read_entries() if self.savepoint is None else (read_tables(self.savepoint.manifest), {})


@dataclass(frozen=True, slots=True)
class OpenSide:
    """One batch of a side, of which no row was read yet.

    tables:  by name
    broken:  table -> why its definition can't be read
    folder:  of the job; None for a savepoint
    """

    side: DiffSide
    storage: Storage
    batch: CommittedBatch
    tables: dict[str, TableDefinition]
    broken: dict[str, MillpondError]
    stores: list[StoreSchema]
    unread: list[UnreadStore]
    folder: Storage | None

    def hidden(self, definition: TableDefinition) -> Hidden | None:
        """The buckets of a table that readers of the job don't see.  Raises CORRUPT_FILE."""
        if self.folder is None or definition.resolutions is None:
            return None
        return hidden_of(definition, read_shorter(self.folder, definition), self.batch.watermark_ms)

    def check_known(self, wanted: Iterable[str]) -> None:
        """Raise the error of a table that can't be read; of any table if none is wanted by name."""
        names = set(wanted)
        for table, error in self.broken.items():
            if not names or table in names:
                raise error
        if not names and self.unread:
            raise self.unread[0].error

    def store(self, table: str) -> StoreSchema:
        """The store of a table.  Raises as `store_of`."""
        return store_of(self.tables[table], self.stores, self.unread)


def find_sources(
    place: str | Path, left: str, right: str | None, against: str | Path | None, allow: Iterable[str | Path] = ()
) -> tuple[Source, Source]:
    """What two names mean.

    place:    a pond or the folder of a checkpoint
    right:    None for the only job of `against`, or else the job of the left side
    against:  the place of the right side if it is another
    allow:    places outside of a pond where its checkpoints may lie
    Raises:   as `millpond.read_diff`.
    """
    first = _find(place, left, allow)
    if right is not None:
        return first, _find(place if against is None else against, right, allow)
    if against is not None:
        return first, Source(find_job(against, None, allow=allow))
    if first.number is None:
        raise RequestError(
            "INVALID_REQUEST",
            f"{left} is a job, and no other side is named.",
            hint="Name a savepoint, another job, or a batch of it as well: before-upgrade, page_views_b, page_views@41.",
        )
    # The folder of a checkpoint has one job, whatever its name was.
    return first, Source(find_job(place, first.folder.job if is_pond(place) else None, allow=allow))


def compare_offsets(left: DiffSide, right: DiffSide) -> Offsets:
    """Whether both sides have read the same input, by the ends of their sources.

    It is unknown if the numbers are equal but mean something in one job only, and there are two.
    """
    if left.offsets != right.offsets:
        return "differ"
    is_one = (left.job_id, left.checkpoint) == (right.job_id, right.checkpoint)
    own = any(offset is not None and is_own(offset) for offset in left.offsets.values())
    return "same" if is_one or not own else "unknown"


def _find(place: str | Path, text: str, allow: Iterable[str | Path]) -> Source:
    kind, colon, rest = text.partition(":")
    if colon and kind == "savepoint":
        return source_of_savepoint(open_savepoint(place, rest))
    name, at, batch = (rest if colon and kind == "job" else text).rpartition("@")
    if at:
        if not (batch.isascii() and batch.isdecimal() and len(batch) < 19):
            raise RequestError("INVALID_REQUEST", f"{text!r} names no batch.", hint="Write JOB@BATCH, like page_views@41.")
        return Source(find_job(place, name or None, allow=allow), None, int(batch))
    if colon and kind == "job":
        return Source(find_job(place, rest, allow=allow))
    is_job = _has_job(place, text)
    try:
        saved = open_savepoint(place, text)
    except SavepointError as error:
        if error.condition != "UNKNOWN_SAVEPOINT":
            raise
        if is_job:
            return Source(find_job(place, text, allow=allow))
        raise SavepointError(
            "UNKNOWN_SAVEPOINT",
            f"{place} has neither a savepoint nor a job {text!r}.",
            hint="List them: millpond savepoint list, millpond tables.",
            savepoint=text,
        ) from error
    except RequestError:  # no savepoint can have this name
        if is_job:
            return Source(find_job(place, text, allow=allow))
        raise
    if is_job:
        raise RequestError(
            "INVALID_REQUEST",
            f"{place} has a savepoint and a job {text!r}.",
            hint=f"Write savepoint:{text} or job:{text}.",
        )
    return source_of_savepoint(saved)


def source_of_savepoint(savepoint: Savepoint) -> Source:
    """Where a savepoint is read from."""
    manifest, checkpoint = savepoint.manifest, savepoint.checkpoint
    return Source(JobFolder(manifest.job, savepoint.storage, checkpoint.uri, checkpoint), savepoint, manifest.batch)


def _has_job(place: str | Path, job: str) -> bool:
    try:
        found = read_catalogue(place)
    except CheckpointError as error:  # savepoints outlive the checkpoint that they were made of
        if error.condition != "NO_CHECKPOINT":
            raise
        return False
    return job in found.broken or any(folder.job == job for folder in found.jobs)

"""What is known of a job's state: its log, operators, sizes, rows and growth, from the checkpoint alone.

Each part is bounded in time, and a part that can't be read is named and left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from millpond.catalogue import JobFolder
from millpond.checkpoint.log import CommittedBatch, committed_batches, newest_committed, read_batch
from millpond.checkpoint.operators import read_each_operator, watermark_delays
from millpond.checkpoint.position import Batch
from millpond.checkpoint.real_time import refuse_real_time
from millpond.checkpoint.state import StateReader, change_path, partitions_of
from millpond.errors import MillpondError
from millpond.operate.doctor.advice import Unseen
from millpond.operate.doctor.growth import Growth, growth_in_batches
from millpond.operate.doctor.rows import StoreRows, read_rows
from millpond.operate.measure import JobMeter
from millpond.operate.sample import OperatorSize, Sample
from millpond.operate.sample_log import samples_of
from millpond.schema.store import StoreSchema
from millpond.settings import DoctorSettings

_SETTINGS = DoctorSettings()
_TIMED_BATCHES = 20
_LOOK_BACK_SECONDS = 7 * 86_400
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """One store: its columns, the rows that were read, and how they came and went."""

    store: StoreSchema
    rows: StoreRows | None
    growth: Growth | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """What is known of a job's state at its newest committed batch.

    reader:     of its checkpoint
    batches:    the newest ones, oldest first
    committed:  all that the log still has, ascending
    delays:     operator -> the delays of watermarks that its schemas name, milliseconds; None if they
                can't be read
    sizes:      operator -> the sizes of its files
    written_ms: operator -> the time between the first and the last change file of the newest batch; an
                operator whose files have other times, or are in a bucket, is left out
    samples:    of the last days, oldest first
    """

    job: str
    reader: StateReader
    batch: CommittedBatch
    batches: tuple[CommittedBatch, ...]
    committed: tuple[Batch, ...]
    delays: dict[int, set[int]] | None
    stores: tuple[StoreFacts, ...]
    sizes: dict[int, OperatorSize]
    checkpoint_bytes: int | None
    written_ms: dict[int, float]
    samples: tuple[Sample, ...]

    @property
    def operators(self) -> dict[int, list[StoreFacts]]:
        """Operator -> its stores."""
        found: dict[int, list[StoreFacts]] = {}
        for facts in self.stores:
            found.setdefault(facts.store.operator, []).append(facts)
        return found

    @property
    def batch_seconds(self) -> list[float]:
        """How long each of the newest batches took, from its plan to its commit, as far as that is known."""
        return [batch.took_seconds for batch in self.batches if batch.took_seconds is not None]

    @property
    def retained_seconds(self) -> float:
        """From the plan of the oldest batch among `batches` to that of the newest, for as many as the log has."""
        first, last = self.batches[0], self.batches[-1]
        steps = last.batch - first.batch
        each = (last.started_ms - first.started_ms) / 1000 / steps if steps else 0.0
        return each * (self.committed[-1] - self.committed[0])


def read_state(folder: JobFolder, unseen: Unseen) -> StateFacts:
    """What is known of a job's state.

    unseen:  gets a sentence for each part that can't be read
    Raises:  NO_COMMITTED_BATCH; what an unreadable log raises; UNSUPPORTED for real-time mode.
    """
    storage = folder.open_checkpoint()
    reader, newest = StateReader(storage), newest_committed(storage)
    batch = read_batch(storage, newest)
    refuse_real_time(storage, batch)
    committed = committed_batches(storage)

    def attempt(part: str, read: Callable[[], _Read], tell: Callable[[str], None] = unseen.note) -> _Read | None:
        try:
            return read()
        except MillpondError as error:
            tell(f"{folder.job}: {part} can't be read: [{error.condition}] {error.message}")
            return None

    earlier = [attempt(f"batch {n}", partial(read_batch, storage, n)) for n in committed[-_TIMED_BATCHES:-1]]
    known, unread = attempt("the operators", lambda: read_each_operator(storage, newest), unseen.miss) or ([], [])
    for store in unread:
        unseen.miss(f"{folder.job}: operator {store.operator} can't be read: [{store.error.condition}] {store.error.message}")
    rows: list[StoreRows | None] = []
    until = time.monotonic() + _SETTINGS.rows_seconds
    for number, schema in enumerate(known):
        now = time.monotonic()
        share = now + max(0.0, until - now) / (len(known) - number)
        rows.append(attempt(name_of(schema), partial(read_rows, reader, batch, schema, share), unseen.miss))
    until = time.monotonic() + _SETTINGS.growth_seconds
    growths = [None if found is None else growth_in_batches(reader, committed, batch, found, until) for found in rows]
    for found in rows:
        if found is not None and not found.is_whole:
            unseen.note(f"{folder.job}: {name_of(found.store)}: {found.words} were read, so its hot keys aren't known.")
    sample = attempt("the sizes of files", lambda: JobMeter(folder).look())
    kept = attempt("the samples", lambda: samples_of(folder, int((time.time() - _LOOK_BACK_SECONDS) * 1000))) or []
    return StateFacts(
        job=folder.job,
        reader=reader,
        batch=batch,
        batches=(*(found for found in earlier if found is not None), batch),
        committed=tuple(committed),
        delays=attempt("the watermarks", lambda: watermark_delays(storage, newest)),
        stores=tuple(StoreFacts(store=s, rows=r, growth=g) for s, r, g in zip(known, rows, growths, strict=True)),
        sizes={size.operator: size for size in sample.operators} if sample is not None else {},
        checkpoint_bytes=None if sample is None else sample.checkpoint_bytes,
        written_ms=_written_ms(reader, batch, known),
        samples=tuple(kept),
    )


def _written_ms(reader: StateReader, batch: CommittedBatch, known: list[StoreSchema]) -> dict[int, float]:
    if reader.storage.is_remote or batch.committed_ns is None:
        return {}
    times: dict[int, list[int]] = {}
    for schema in known:
        for partition in partitions_of(batch, schema):
            stamp = reader.storage.stamp(change_path(batch, schema, partition))
            if stamp is not None:
                times.setdefault(schema.operator, []).append(stamp.modified_ns)
    return {operator: (max(found) - min(found)) / 1e6 for operator, found in times.items() if len(found) > 1}


def name_of(store: StoreSchema) -> str:
    """A store in words."""
    words = f"operator {store.operator} ({store.operator_name}), store {store.store}"
    return f"{words}, {store.family}" if store.family else words

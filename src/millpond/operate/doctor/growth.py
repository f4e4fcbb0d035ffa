"""How a store's rows come and go: counted in the batches that the log still has, or taken from a job's samples.

1. Read some partitions at the newest batch, at the oldest that can still be read, and halfway.
2. A row is added or removed by its key.  What is counted in these partitions stands for all of them.
3. Growth is said of both halves of that time: a state that fills up and is full then doesn't grow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millpond.checkpoint.bulk.partition import RowChunk
from millpond.checkpoint.log import CommittedBatch, read_batch
from millpond.checkpoint.position import Batch
from millpond.checkpoint.state import StateReader
from millpond.errors import MillpondError
from millpond.native.memory import Memory
from millpond.operate.doctor.rows import StoreRows, bytes_of_key
from millpond.operate.forecast import growth_of
from millpond.operate.sample import Sample
from millpond.schema.store import StoreSchema
from millpond.tables.cold.table_batch import iter_partition

# Fewer batches say nothing.
_FEWEST_BATCHES = 4
_MOST_PARTITIONS = 3
_MOST_ROWS = 300_000
# Fewer new rows are chance.
_FEWEST_ROWS = 1000
# A state is still if it was for an hour.
_STILL_SECONDS = 3600
# The second half must add at least this part of what the first half added.
_GOES_ON = 0.5
_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How the rows of some partitions of a store changed between batches.

    first, batches:  from which batch on, over how many
    seconds:         between the plans of the first and the newest
    partitions:      how many were read
    added, removed:  rows, by key
    added_late:      of these in the second half of the batches
    added_bytes:     of keys and values
    heaviest:        bytes of the heaviest key at the first batch, after each quarter of the batches, and
                     at the newest; None if it wasn't among these partitions, or there are fewer batches
    """

    first: int
    batches: int
    seconds: float
    partitions: int
    added: int
    removed: int
    added_late: int
    added_bytes: int
    heaviest: tuple[int, ...] | None

    @property
    def only_grows(self) -> bool:
        """Whether many rows were added, in both halves about as fast, and none was removed."""
        early = self.added - self.added_late
        return self.removed == 0 and self.added >= _FEWEST_ROWS and early > 0 and self.added_late >= early * _GOES_ON

    @property
    def is_still(self) -> bool:
        """Whether there aren't more rows than an hour or more before."""
        return self.added <= self.removed and self.seconds >= _STILL_SECONDS


def growth_in_batches(
    reader: StateReader, committed: Sequence[Batch], newest: CommittedBatch, rows: StoreRows, until: float
) -> Growth | None:
    """See the module; None if too few batches can be read, or no partition is small enough.

    rows:   those of the newest batch
    until:  by `time.monotonic`; None is returned if it is passed
    """
    partitions = _partitions(rows)
    if len(committed) < _FEWEST_BATCHES or not partitions:
        return None
    for at in (0, len(committed) // 4, len(committed) // 2):
        olds = committed[at:]
        if len(olds) < _FEWEST_BATCHES or time.monotonic() >= until:
            return None
        try:
            first, middle = (read_batch(reader.storage, number) for number in (olds[0], olds[len(olds) // 2]))
            quarters = [olds[len(olds) // 4], olds[len(olds) * 3 // 4]]
            return _compare(reader, (first, middle, newest), quarters, rows, partitions, until)
        except MillpondError as error:
            if error.condition != "FILE_GONE":
                return None
    return None


def _partitions(rows: StoreRows) -> list[int]:
    """The heaviest key's partition first."""
    if not rows.read or rows.rows / rows.read > _MOST_ROWS:
        return []
    first = [rows.heaviest.partition] if rows.heaviest is not None else []
    return [*first, *(p for p in rows.order if p not in first)][:_MOST_PARTITIONS]


def _compare(
    reader: StateReader,
    batches: tuple[CommittedBatch, CommittedBatch, CommittedBatch],
    quarters: list[Batch],
    rows: StoreRows,
    partitions: list[int],
    until: float,
) -> Growth | None:  # 1
    added = added_late = added_bytes = removed = done = 0
    heaviest: tuple[int, ...] | None = None
    for partition in partitions:
        if time.monotonic() >= until:
            break
        states = [list(_chunks(reader, batch, rows.store, partition)) for batch in batches]
        old, middle, new = map(_sizes, states)
        removed += len(old.keys() - new.keys())  # 2
        fresh = new.keys() - old.keys()
        added += len(fresh)
        added_late += len(fresh - middle.keys())
        added_bytes += sum(new[key] for key in fresh)
        if rows.heaviest is not None and rows.heaviest.partition == partition:
            heaviest = _heaviest(reader, rows, partition, states, quarters, batches)
        done += 1
    first_batch, _, newest = batches
    if not done:
        return None
    return Growth(
        first=first_batch.batch,
        batches=newest.batch - first_batch.batch,
        seconds=(newest.started_ms - first_batch.started_ms) / 1000,
        partitions=done,
        added=added,
        removed=removed,
        added_late=added_late,
        added_bytes=added_bytes,
        heaviest=heaviest,
    )


def _heaviest(
    reader: StateReader,
    rows: StoreRows,
    partition: int,
    states: list[list[RowChunk]],
    quarters: list[Batch],
    batches: tuple[CommittedBatch, CommittedBatch, CommittedBatch],
) -> tuple[int, ...] | None:
    """The bytes of the heaviest key, at the five moments of `Growth.heaviest`.

    states:    the partition's, at `batches`
    quarters:  the batches between them
    """
    assert rows.heaviest is not None
    if len({*quarters, *(batch.batch for batch in batches)}) < len(quarters) + len(batches):
        return None
    key = rows.heaviest.key
    first, half, last = (bytes_of_key(rows.store, state, key) for state in states)
    between = [
        bytes_of_key(rows.store, list(_chunks(reader, read_batch(reader.storage, number), rows.store, partition)), key)
        for number in quarters
    ]
    return first, between[0], half, between[1], last


def _chunks(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int) -> Iterator[RowChunk]:
    # Each state has its memory: they are compared.
    yield from iter_partition(reader, batch, store, partition, Memory())


def _sizes(chunks: list[RowChunk]) -> dict[tuple[bytes, int], int]:
    """(key, place in its list) -> bytes of the row."""
    found: dict[tuple[bytes, int], int] = {}
    for chunk in chunks:
        sizes = (chunk.keys.size + chunk.values.size).tolist()
        places = [0] * len(sizes) if chunk.places is None else chunk.places.tolist()
        found.update(zip(zip(chunk.keys.tolist(), places, strict=True), sizes, strict=True))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGrowth:
    """How an operator's files grew, by samples.

    a_day:  bytes
    least:  the lower end of the interval of that (`forecast`)
    seconds: from the first sample to the last
    """

    a_day: float
    least: float
    seconds: float


def growth_in_samples(samples: Sequence[Sample], operator: int) -> FileGrowth | None:
    """How an operator's state files grew; None if that isn't known.

    It is 0 if they didn't grow in both halves of the time, or were as large in its first quarter as
    in its last.

    samples:  oldest first
    """
    points = [
        (sample.at_ms / 1000, float(size.state_bytes))
        for sample in samples
        for size in sample.operators
        if size.operator == operator and sample.sized_ms is not None
    ]
    line = growth_of(points)
    if line is None:
        return None
    first, middle, last = (line.points[at][1] for at in (0, len(line.points) // 2, -1))
    early, late = middle - first, last - middle  # 3
    quarter = max(1, len(points) // 4)
    # What goes up and down, as files do between two snapshots, has been passed.
    is_passed = min(size for _, size in points[-quarter:]) > max(size for _, size in points[:quarter])
    goes_on = is_passed and early > 0 and late >= early * _GOES_ON
    return FileGrowth(
        a_day=line.slope * _DAY if goes_on else 0.0,
        least=(line.slope - line.slope_error) * _DAY if goes_on else 0.0,
        seconds=points[-1][0] - points[0][0],
    )

"""The state of the soak's job after each batch, recomputed in plain Python from the job's own source offsets.

The job counts events by page and window of event time, with a watermark. Only one fact comes from Spark: how many pieces of input
a batch reads. `offsets/N` says where batch N ends: the last file of a folder, or the next record of each partition of a topic.
Piece n of the input is file n, or record n // P of partition n % P.

    late       an event whose window ended by the watermark of the batch before: Spark drops it
    expired    a window that ended by the batch's own watermark: it leaves the state at the end of the batch
    watermark  of the next batch: the newest event so far, less the delay; it never goes back
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from inputs.event_file import write_event_file

WINDOW_MS, DELAY_MS = 5_000, 6_000
PAGES = tuple(f"/p{n}" for n in range(8))
# The event time from one file to the next.
_STEP_MS = 1_500
_BEGIN_MS = 1_772_366_400_000  # 2026-03-01 12:00 UTC

Key = tuple[str, int]
"""(page, begin of the window in milliseconds since 1970)"""


class Values(NamedTuple):
    """The job's row of one page and window; `run` is the number of the job's run, which each event has."""

    hits: int
    bytes: int
    run: int


class Event(NamedTuple):
    """One line of input."""

    time_ms: int
    page: str
    bytes: int


def events_of(seed: int, run: int, number: int) -> list[Event]:
    """The events of one input file: some are behind the watermark, at least one isn't."""
    chance = random.Random(f"{seed}/{run}/{number}")
    now = _BEGIN_MS + number * _STEP_MS
    late = [0, *(chance.choice([0, 500, 2_000, 5_000, 9_000, 16_000]) for _ in range(chance.randint(5, 14)))]
    return [Event(now - ms, chance.choice(PAGES), chance.randrange(10_000)) for ms in late]


def rows_of(seed: int, run: int, number: int) -> list[dict[str, Any]]:
    """The same events as JSON objects."""
    return [
        {"time": dt.datetime.fromtimestamp(e.time_ms / 1000, dt.UTC).isoformat(), "page": e.page, "bytes": e.bytes, "run": run}
        for e in events_of(seed, run, number)
    ]


def write_file(folder: Path, seed: int, run: int, number: int) -> None:
    """Write one input file."""
    write_event_file(folder, number, rows_of(seed, run, number))


@dataclass(frozen=True, slots=True)
class Planned:
    """What `offsets/N` says of a batch.

    offsets:       the end of the source, as Spark writes it
    ends:          how many pieces of each partition are read then; a folder of files has one partition
    watermark_ms:  the batch's watermark
    started_ms:    when it began
    """

    offsets: Any
    ends: tuple[int, ...]
    watermark_ms: int
    started_ms: int

    def pieces_since(self, before: Planned | None) -> Iterator[int]:
        """The numbers of the pieces that this batch reads."""
        for partition, end in enumerate(self.ends):
            for place in range(before.ends[partition] if before else 0, end):
                yield place * len(self.ends) + partition


def parse_offsets(text: str) -> Planned:
    """Read Spark's `offsets/N`: a version, metadata, and one line for the source."""
    _, metadata, source = text.splitlines()
    facts = json.loads(metadata)
    return planned_of(json.loads(source), facts["batchWatermarkMs"], facts["batchTimestampMs"])


def planned_of(offsets: Any, watermark_ms: int, started_ms: int) -> Planned:
    """A batch that ends there: `{"logOffset": 3}`, or `{"topic": {"0": 7, "1": 6}}`."""
    if "logOffset" in offsets:
        ends: tuple[int, ...] = (offsets["logOffset"] + 1,)
    else:
        (partitions,) = offsets.values()
        ends = tuple(partitions[str(number)] for number in range(len(partitions)))
    return Planned(offsets, ends, watermark_ms, started_ms)


@dataclass(slots=True)
class Held:
    """The job's state after a batch; `watermark_ms` is the watermark of the next batch."""

    live: dict[Key, Values]
    watermark_ms: int
    planned: Planned
    expired: dict[Key, Values]  # rows that expired in this batch, with their last values


@dataclass
class JobRun:
    """One run of the job: from its start in an empty checkpoint to the deletion of that checkpoint.

    planned:  batch -> its plan, as Spark wrote it
    held:     batch -> its state, for all batches recomputed so far
    closed:   key -> the batch at which it expired, and its last values
    """

    seed: int
    number: int
    began_ms: int
    planned: dict[int, Planned] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    closed: dict[Key, tuple[int, Values]] = field(default_factory=dict)
    _newest_ms: int = 0

    def try_held(self, batch: int) -> Held | None:
        """The state after a batch; None if the source's offsets up to it aren't known yet."""
        while len(self.held) <= batch:
            if len(self.held) not in self.planned:
                return None
            self._next()
        return self.held[batch]

    def _next(self) -> None:
        batch = len(self.held)
        planned = self.planned[batch]
        before = self.held[-1] if self.held else None
        watermark = before.watermark_ms if before else 0
        if planned.watermark_ms != watermark:
            raise AssertionError(f"run {self.number}, batch {batch}: Spark's watermark is {planned.watermark_ms}, not {watermark}")
        late = before.planned.watermark_ms if before else 0
        live = dict(before.live) if before else {}
        for number in planned.pieces_since(before.planned if before else None):
            for event in events_of(self.seed, self.number, number):
                self._newest_ms = max(self._newest_ms, event.time_ms)
                start = event.time_ms - event.time_ms % WINDOW_MS
                if start + WINDOW_MS <= late:
                    continue
                had = live.get((event.page, start), Values(0, 0, self.number))
                live[event.page, start] = Values(had.hits + 1, had.bytes + event.bytes, self.number)
        expired = {key: values for key, values in live.items() if key[1] + WINDOW_MS <= watermark}
        for key, values in expired.items():
            self.closed[key] = (batch, values)
            del live[key]
        self.held.append(Held(live, max(watermark, self._newest_ms - DELAY_MS), planned, expired))


def values_of(row: dict[str, Any]) -> Values:
    """The values of a row in a reader's log."""
    return Values(row["hits"], row["bytes"], row["run"])

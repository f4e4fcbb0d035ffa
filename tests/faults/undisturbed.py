"""The state and output of a job after each batch if nothing is killed; and all differences from them.

The checkpoint only gives what Spark decides: the input of a batch, the time when it was planned, and its watermark, which is
checked.  Plain Python recomputes everything else, so a batch that was applied twice or not at all makes a difference.
"""

from __future__ import annotations

import datetime as dt
import json
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from faults.fed import Input, Row, Rows, newest

DELAY_MS = 10 * 60 * 1000
Tables = dict[str, Rows]
"""table -> rows in the order of their keys; times are milliseconds since 1970"""


class Planned(NamedTuple):
    """A batch in the log of offsets."""

    batch: int
    started_ms: int = 0
    watermark_ms: int = 0


class Model(ABC):
    """A job's state, recomputed.

    order:      the columns by which the rows of a batch are sorted
    watermark:  whether the job has one, `delay_ms` behind
    sink:       where its output goes: `files` is Spark's file sink, `attempts` keeps each attempt at a batch, None keeps nothing
    unknown:    columns that can't be recomputed; a list without its `index` has no order
    """

    order: tuple[str, ...] = ()
    watermark = False
    delay_ms = DELAY_MS
    sink: str | None = None
    unknown: frozenset[str] = frozenset()

    @abstractmethod
    def take(self, planned: Planned, rows: Rows) -> Rows:
        """Apply a batch; returns the rows that it emits."""

    def newest_ms(self, planned: Planned, rows: Rows) -> int:
        """The newest time of a batch's rows that moves the watermark; 0 if there is none."""
        return max((row["ms"] for row in rows), default=0)

    @abstractmethod
    def tables(self) -> Tables:
        """The rows of each table in the state."""

    def with_expired(self) -> Tables:
        """The tables whose rows expire, expired rows included."""
        return {}

    def tried(self) -> bool:
        """Whether everything has happened that the job is meant to show."""
        return True


class Undisturbed:
    """A job's run, recomputed up to the newest planned batch.

    read:        for each batch, how many pieces of input the job has read by then
    planned, tables, with_expired, emitted:  one of each batch
    watermarks:  for each batch, the watermarks that it may leave to the next
    """

    def __init__(self, checkpoint: Path, inputs: list[Input], model: Model) -> None:
        self.checkpoint, self.model = checkpoint, model
        self._inputs = inputs
        self._names: list[set[str]] = [set() for _ in inputs]
        self.read: list[int] = []
        self.planned: list[Planned] = []
        self.watermarks: list[set[int]] = []
        self.tables: list[Tables] = []
        self.with_expired: list[Tables] = []
        self.emitted: list[Rows] = []

    @property
    def committed(self) -> int:
        """The newest batch that the job has committed, -1 where there is none."""
        return newest(self.checkpoint / "commits")

    def go_on(self) -> None:
        """Recompute the batches that were planned since the last call."""
        for batch in range(len(self.planned), newest(self.checkpoint / "offsets") + 1):
            _, facts, *lines = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
            ends, rows = [None if line == "-" else json.loads(line) for line in lines], []
            for source, names in zip(self._inputs, self._names, strict=True):
                new = set(source.read(self.checkpoint, ends)) - names
                names |= new
                rows += [row for name in sorted(new) for row in source.rows[name]]
            self.read.append(sum(map(len, self._names)))
            said = json.loads(facts)
            self.take(Planned(batch, said["batchTimestampMs"], said["batchWatermarkMs"]), rows)

    def take(self, planned: Planned, rows: Rows) -> None:
        """Recompute the next batch.

        If the file sink already has a batch's rows, Spark doesn't run the batch again after a kill.  Then it sees no times of
        that batch, and the watermark stays.
        """
        model, now, may_be = self.model, planned.watermark_ms, self.watermarks[-1] if self.watermarks else {0}
        assert now in may_be, f"batch {planned.batch} of {self.checkpoint}: the watermark is {now}, and none of {may_be}"
        rows = sorted(rows, key=lambda row: [row[name] for name in model.order])
        newest_ms = model.newest_ms(planned, rows) if model.watermark else 0
        self.watermarks.append({max(now, newest_ms - model.delay_ms), *([now] if model.sink == "files" else [])})
        self.planned.append(planned)
        self.emitted.append(model.take(planned, rows))
        self.tables.append(model.tables())
        self.with_expired.append(model.with_expired())


@dataclass(frozen=True, slots=True)
class Look:
    """A table as a reader saw it.

    began:    the batch at which the replica was built; it knows no rows that expired before
    at_ms:    rows that expire by this time aren't shown; None if no time counts
    expired:  whether the look includes expired rows, each row with `final`
    """

    batch: int
    table: str
    rows: Rows
    began: int = 0
    at_ms: int | None = None
    expired: bool = False


@dataclass
class Seen:
    """What a reader saw of a job.

    attempts:  batch -> the rows that each attempt at it emitted
    """

    looks: list[Look] = field(default_factory=list)
    attempts: dict[int, list[Rows]] = field(default_factory=dict)
    committed: int = -1


def differences(run: Undisturbed, seen: Seen) -> list[str]:
    """All differences between what was seen and the undisturbed run."""
    model, found = run.model, []

    def compare(where: str, rows: Rows, expected: Rows, *, ordered: bool) -> None:
        have, want = ([{k: v for k, v in row.items() if k not in model.unknown} for row in some] for some in (rows, expected))
        if have != want:
            a, b = (Counter(str(sorted(row.items())) for row in some) for some in (have, want))
            if ordered or a != b:
                extra, missing = (list((x - y).elements())[:3] for x, y in ((a, b), (b, a)))
                found.append(f"{where}: {len(have)} rows for {len(want)}; too many: {extra}; missing: {missing}")

    for look in seen.looks:
        expected = _expected(run, look)
        compare(f"batch {look.batch}, {look.table}", look.rows, expected, ordered="index" not in model.unknown)
    if model.sink is not None:
        lost = set(range(seen.committed + 1)) - set(seen.attempts)
        found += [f"batch {batch} never came to the sink" for batch in sorted(lost)]
    for batch, attempts in seen.attempts.items():
        for rows in attempts:
            compare(f"batch {batch}, the sink", rows, run.emitted[batch], ordered=False)
    return found


def _expected(run: Undisturbed, look: Look) -> Rows:
    tables, at_ms = run.tables[look.batch], look.at_ms
    live = [row for row in tables[look.table] if at_ms is None or row["expires_at"] is None or row["expires_at"] > at_ms]
    if not look.expired:
        return live
    begin = run.tables[look.began][look.table]
    unknown = [row for row in run.with_expired[look.began][look.table] if row not in begin]
    rows = [row for row in run.with_expired[look.batch][look.table] if row not in unknown]
    return [{**row, "final": row not in live} for row in rows]


def plain(row: Any) -> Row:
    """A row with times as milliseconds, and sets in order."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):  # a file has times without a zone, in UTC
        return round((value if value.tzinfo else value.replace(tzinfo=dt.UTC)).timestamp() * 1000)
    return sorted(value) if isinstance(value, list) else value


def by(column: str, rows: Rows) -> dict[str, Rows]:
    """Rows by the value of a column."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return found


def in_order(rows: dict[Any, Row]) -> Rows:
    """The rows, sorted by their keys."""
    return [row for _, row in sorted(rows.items())]

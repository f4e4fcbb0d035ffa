"""What a job would hold and tell after each of its batches if nothing were killed, and what differs from it.

Only what Spark decides is taken from the checkpoint: which input a batch has, when it was planned, and its watermark, which is held
against what it must be.  All else is recomputed in plain Python: a batch that was applied twice or not at all differs.
"""

from __future__ import annotations

import datetime as dt
import json
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from faults.fed import Input, Row, Rows, newest, sink_rows

DELAY_MS = 10 * 60 * 1000
Tables = dict[str, Rows]
"""table -> rows in the order of their keys; times are milliseconds since 1970"""


class Planned(NamedTuple):
    """What the log of offsets says of a batch."""

    batch: int
    started_ms: int = 0
    watermark_ms: int = 0


class Model(ABC):
    """A job's state.

    order:      columns that put the rows of a batch in order
    watermark:  whether the job has one, DELAY_MS behind
    sink:       what keeps what it tells: `files` is Spark's file sink; `attempts` keeps each attempt at a batch; None keeps nothing
    unknown:    columns that can't be recomputed; without `index` a list has no order
    """

    order: tuple[str, ...] = ()
    watermark = False
    sink: str | None = None
    unknown: frozenset[str] = frozenset()

    @abstractmethod
    def take(self, planned: Planned, rows: Rows) -> Rows:
        """Go through a batch; what it tells."""

    @abstractmethod
    def tables(self) -> Tables:
        """What is in the state."""

    def with_expired(self) -> Tables:
        """The tables whose rows expire, with those that have expired."""
        return {}

    def tried(self) -> bool:
        """Whether all has happened that the job is there to show."""
        return True


class Undisturbed:
    """A job's run, batch by batch as far as they were planned.

    read:        how many pieces of input the job has read up to each batch
    planned, tables, with_expired, emitted:  of each batch
    watermarks:  that each batch may leave to the next
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
        """Recompute the batches that were planned since."""
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

        A batch whose rows the file sink has already isn't run once more after a kill: Spark sees no time of it then, and the
        watermark stays.
        """
        model, now, may_be = self.model, planned.watermark_ms, self.watermarks[-1] if self.watermarks else {0}
        assert now in may_be, f"batch {planned.batch} of {self.checkpoint}: the watermark is {now}, and none of {may_be}"
        rows = sorted(rows, key=lambda row: [row[name] for name in model.order])
        newest_ms = max((row["ms"] for row in rows), default=0) if model.watermark else 0
        self.watermarks.append({max(now, newest_ms - DELAY_MS), *([now] if model.sink == "files" else [])})
        self.planned.append(planned)
        self.emitted.append(model.take(planned, rows))
        self.tables.append(model.tables())
        self.with_expired.append(model.with_expired())


@dataclass(frozen=True, slots=True)
class Look:
    """A table as a reader saw it.

    began:    the batch that the replica was built of: what had expired before isn't known to it
    at_ms:    the time by which rows were shown or not; None where no time counts
    expired:  whether expired rows were shown too, each with `final`
    """

    batch: int
    table: str
    rows: Rows
    began: int = 0
    at_ms: int | None = None
    expired: bool = False


@dataclass
class Seen:
    """What was seen of a job.

    attempts:  batch -> what each attempt at it emissions
    """

    looks: list[Look] = field(default_factory=list)
    attempts: dict[int, list[Rows]] = field(default_factory=dict)
    committed: int = -1


def differences(run: Undisturbed, seen: Seen) -> list[str]:
    """What isn't as the undisturbed run has it."""
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
    live = [row for row in tables[look.table] if at_ms is None or row["expires_at"] > at_ms]
    if not look.expired:
        return live
    begin = run.tables[look.began][look.table]
    unknown = [row for row in run.with_expired[look.began][look.table] if row not in begin]
    rows = [row for row in run.with_expired[look.batch][look.table] if row not in unknown]
    return [{**row, "final": row not in live} for row in rows]


def sunk(run: Undisturbed, output: Path, committed: int) -> dict[int, list[Rows]]:
    """What a job's sink got: batch -> of each attempt."""
    found: dict[int, list[Rows]] = {}
    if run.model.sink == "files":
        found = {batch: [[]] for batch in range(committed + 1)}
        for batch, row in sink_rows(output):
            found.setdefault(batch, [[]])[0].append(plain(row))
    for path in output.glob("*.json") if run.model.sink == "attempts" else ():
        found.setdefault(int(path.name.partition("-")[0]), []).append(json.loads(path.read_text()))
    return found


def plain(row: Any) -> Row:
    """A row with times as milliseconds, and sets in order."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):  # of a file without a zone: in UTC
        return round((value if value.tzinfo else value.replace(tzinfo=dt.UTC)).timestamp() * 1000)
    return sorted(value) if isinstance(value, list) else value


def by(column: str, rows: Rows) -> dict[str, Rows]:
    """The rows of each value of a column."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return found


def in_order(rows: dict[Any, Row]) -> Rows:
    """The rows by their keys."""
    return [row for _, row in sorted(rows.items())]

"""What differs between two versions that have read the same input.

1. Find the newest batches of both that end at the same offsets.
2. Compare all rows of the two tables by key (`tables/diff/`).
3. The change of a value is relative: the difference by the greater of the two, so 0 is no change,
   and 1 is from nothing or to nothing.  Percentiles are over all rows that both versions have.
4. The keys that differ most are kept in a heap.  Percentiles are exact for up to a million changed
   values of a column, and beyond that of a random sample of a million.
"""

from __future__ import annotations

import heapq
import math
import random
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from millpond.errors import MillpondError, ReplicaError
from millpond.schema.definition.resolutions import RESOLUTION
from millpond.storage import open_storage
from millpond.tables.diff.compare import Counts, RowDiff
from millpond.tables.diff.read import Progress, TableDiff, open_diff
from millpond.tables.diff.sides import DiffSide
from millpond.tables.versions.input import equal_batches
from millpond.tables.versions.listing import find_name, find_version
from millpond.versions import job_name

KEYS = 10
_SAMPLE = 1_000_000
_PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """How much a column of numbers changes, over all rows that both versions have.

    column:    its name
    changed:   in how many rows
    p50, p90, p99, most:  relative changes: for 99 of 100 rows it is at most p99
    is_exact:  whether all changes were counted, and not a sample of them
    """

    column: str
    changed: int
    p50: float
    p90: float
    p99: float
    most: float
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """A row that both versions have, and that differs.

    key:       the key's columns
    old, new:  the columns that differ, on the left and on the right
    change:    the greatest relative change of its columns
    """

    key: dict[str, Any]
    old: dict[str, Any]
    new: dict[str, Any]
    change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDiff:
    """What differs between two versions at the same source offsets.

    name, left_version, right_version:  what was compared
    left, right:  the batch of each
    table:        counts of all rows, and which columns were compared
    differ:       by resolution, the rows that were added, removed or changed; by None, those of a
                  table without resolutions
    columns:      of numbers
    most:         the rows that differ most, greatest change first
    added, removed:  some of the rows that one side lacks, by their keys
    """

    name: str
    left_version: int
    right_version: int
    left: DiffSide
    right: DiffSide
    table: TableDiff
    differ: dict[str | None, Counts]
    columns: tuple[ColumnChange, ...]
    most: tuple[KeyChange, ...]
    added: tuple[dict[str, Any], ...]
    removed: tuple[dict[str, Any], ...]

    @property
    def share(self) -> float:
        """The rows that differ, as a part of all rows."""
        counts = self.table.counts
        return counts.differ / max(1, counts.differ + counts.same)


def diff_versions(
    place: str | Path,
    name: str,
    left: int,
    right: int,
    *,
    keys: int = KEYS,
    allow: Iterable[str | Path] = (),
    progress: Progress | None = None,
) -> VersionDiff:
    """Compare two versions of a name at the newest batches that have read the same input.

    keys:      how many of the rows that differ most to give back
    allow:     places outside of a pond where its checkpoints may lie, as for `open`
    progress:  called with the number of rows read so far, of both sides
    Raises:    UNKNOWN_VERSION; NOT_ALIGNED if no batches of the two have read the same; KEYS_DIFFER
               if their keys are others; what reading the state raises.
    """
    find_name(open_storage(place), name)
    batches = equal_batches(*(find_version(place, name, n, allow).open_checkpoint() for n in (left, right)))
    if batches is None:
        raise not_aligned(name, left, right)
    jobs = [job_name(name, n) for n in (left, right)]
    sides = [f"job:{job}@{batch}" for job, batch in zip(jobs, batches, strict=True)]
    with open_diff(
        place, *sides, tables=[jobs[0]], allow=allow, renamed={jobs[0]: jobs[1]}, one_table=True, progress=progress
    ) as reading:
        (table,) = reading.tables
        summary = _Summary(keys)
        for row in table.differences():
            summary.add(row)
        result = table.result()
        return VersionDiff(
            name=name,
            left_version=left,
            right_version=right,
            left=reading.left,
            right=reading.right,
            table=result,
            differ=dict(sorted(summary.differ.items(), key=lambda entry: str(entry[0]))),
            columns=summary.columns(result),
            most=summary.most(),
            added=tuple(summary.only["added"]),
            removed=tuple(summary.only["removed"]),
        )


def not_aligned(name: str, left: int, right: int) -> ReplicaError:
    """No batches of two versions have read the same input."""
    jobs = [job_name(name, n) for n in (left, right)]
    return ReplicaError(
        "NOT_ALIGNED",
        f"No batches of {jobs[0]} and {jobs[1]} that Spark still has end at the same offsets.",
        hint=f"Stop the one that has read less, let its next batch end where the other ends (millpond versions align … {name} "
        "VERSION --yes), and start it again; or let both read to the end of the input.",
        table=name,
    )


class _Changes:
    """The relative changes of one column."""

    def __init__(self) -> None:
        self.seen = 0
        self.most = 0.0
        self.kept = array("d")
        self._random = random.Random(0)  # noqa: S311 - it chooses a sample

    def add(self, change: float) -> None:
        self.seen += 1
        self.most = max(self.most, change)
        if len(self.kept) < _SAMPLE:
            self.kept.append(change)
        elif (place := self._random.randrange(self.seen)) < _SAMPLE:
            self.kept[place] = change

    def percentiles(self, rows: int) -> list[float]:
        """The nearest ranks among all rows; those that aren't changed come first."""
        ordered = sorted(self.kept)
        found = []
        for percent in _PERCENTS:
            rank = math.ceil(rows * percent / 100) - (rows - self.seen)
            found.append(0.0 if rank <= 0 else ordered[min(len(ordered), math.ceil(rank * len(ordered) / self.seen)) - 1])
        return found


class _Summary:
    """Takes rows that differ one by one, in bounded memory."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._heap: list[tuple[float, int, KeyChange]] = []
        self._changes: dict[str, _Changes] = {}
        self._number = 0
        self.differ: dict[str | None, Counts] = {}
        self.only: dict[str, list[dict[str, Any]]] = {"added": [], "removed": []}

    def add(self, row: RowDiff) -> None:
        counts = self.differ.setdefault(row.key.get(RESOLUTION), Counts())
        setattr(counts, row.kind, getattr(counts, row.kind) + 1)
        if row.old is None or row.new is None:
            only = self.only[row.kind]
            if len(only) < self._keys:
                only.append(dict(row.key))
            return
        greatest = 0.0
        for column in row.columns:
            old, new = _value(row.old, column), _value(row.new, column)
            change = relative_change(old, new)
            if change is not None:
                self._changes.setdefault(column, _Changes()).add(change)
            greatest = max(greatest, 1.0 if change is None else change)
        self._number += 1
        if self._keys and (len(self._heap) < self._keys or greatest > self._heap[0][0]):
            old_values, new_values = ({c: _value(side, c) for c in row.columns} for side in (row.old, row.new))
            found = KeyChange(key=dict(row.key), old=old_values, new=new_values, change=greatest)
            # Of equal changes, the first ones stay.
            heapq.heappush(self._heap, (greatest, -self._number, found))
            if len(self._heap) > self._keys:
                heapq.heappop(self._heap)

    def columns(self, table: TableDiff) -> tuple[ColumnChange, ...]:
        """In the order of the table."""
        rows = table.counts.changed + table.counts.same
        found = []
        for column in table.columns:
            changes = self._changes.get(column)
            if changes is not None:
                p50, p90, p99 = changes.percentiles(rows)
                exact = changes.seen == len(changes.kept)
                found.append(
                    ColumnChange(column=column, changed=changes.seen, p50=p50, p90=p90, p99=p99, most=changes.most, is_exact=exact)
                )
        return tuple(found)

    def most(self) -> tuple[KeyChange, ...]:
        return tuple(found for _, _, found in sorted(self._heap, reverse=True, key=lambda entry: entry[:2]))


def relative_change(old: Any, new: Any) -> float | None:
    """The difference of two numbers by the greater of the two, from 0 to 2; None if one isn't a number.

    It is above 1 if the sign changes.  NULL to a number, and what isn't finite, is 1.
    """
    numbers = [isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in (old, new)]
    if not any(numbers) or not all(is_number or value is None for is_number, value in zip(numbers, (old, new), strict=True)):
        return None
    if old is None or new is None:
        return 1.0
    try:
        before, now = float(old), float(new)
    except OverflowError:
        return 1.0
    if not (math.isfinite(before) and math.isfinite(now)):
        return 0.0 if before == now or (math.isnan(before) and math.isnan(now)) else 1.0
    greater = max(abs(before), abs(now))
    # Divided first, so that the difference of two large numbers is finite.
    return 0.0 if greater == 0 else abs(now / greater - before / greater)


def _value(side: dict[str, Any], column: str) -> Any:
    """A value; the error of one that can't be computed, as text."""
    try:
        return side[column]
    except MillpondError as error:
        return str(error)

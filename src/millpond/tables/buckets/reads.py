"""Totals and series of a table of buckets (`reading`), all of one batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from millpond.errors import RequestError
from millpond.schema.definition.resolutions import OF_BUCKETS
from millpond.schema.definition.table import TableDefinition
from millpond.tables.answer import Cut
from millpond.tables.buckets.answer import Series, Total
from millpond.tables.buckets.reading import NO_SPAN, BucketReading, Merged, When, check_resolutions
from millpond.tables.failed import checked
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.shards import check_whole
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.keys import KeyReader
from millpond.tables.scan.open_read import OpenRead


class BucketReads(ABC):
    """The reads of a table of buckets.  `Table` is the only subclass."""

    definition: TableDefinition
    _keys: KeyReader

    @abstractmethod
    def begin(self, bounds: Bounds | None = None, *, is_checked: bool = False) -> OpenRead:
        """Begin a read, which the caller ends."""

    @abstractmethod
    def deadline(self) -> Deadline:
        """When a read that begins now must end."""

    def total(
        self, key: Any = None, /, *, since: When = None, until: When = None, bounds: Bounds | None = None, **columns: Any
    ) -> Total:
        """One row for a group: its buckets from `since` on and before `until`, merged.

        It uses the longest buckets that fit.  If the span's ends aren't ends of buckets, it becomes
        longer, up to the ends of the shortest buckets that are kept there: the answer says which
        span it is of, and which resolutions it used.  Name every column of the key but
        `resolution`, `bucket_start`, `expires_at` and `dead_letter`.

        since, until:  aware datetimes, ISO texts, or None for all buckets that are kept
        Raises:  INVALID_REQUEST if the table has no resolutions; HISTORY_GONE if all buckets at
                 `since` have expired; INVALID_RANGE, KEY_MISSING; as `scan`.
        """
        with self.begin(bounds) as read:
            check_whole(read.view, read.binding)
            group = self._group(key, columns)
            reading = BucketReading(read, self._keys, self.deadline(), since, until)
            found = reading.group(group).total()
            return Total.of((), read.cut, NO_SPAN) if found is None else _shown(reading, found, read.cut)

    def series(
        self,
        key: Any = None,
        /,
        *,
        step: str,
        since: When = None,
        until: When = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Series:
        """A row for each step of a span, `bucket_start` among its columns, as `total` of that step.

        Steps without events have no row.  The span begins and ends with a step.

        step:    the length of a step: one of the table's resolutions, or a longer one
        Raises:  as `total`; INVALID_REQUEST if no resolution is as short as a step.
        """
        with self.begin(bounds) as read:
            check_whole(read.view, read.binding)
            group = self._group(key, columns)
            reading = BucketReading(read, self._keys, self.deadline(), since, until, step)
            found = reading.group(group).series()
            rows = (_shown(reading, each, read.cut) for each in found.steps)
            return Series.of(rows, read.cut, found.span)

    def _group(self, key: Any, columns: dict[str, Any]) -> dict[str, Any]:
        """The group's columns in stored form.

        Raises:  INVALID_REQUEST, KEY_MISSING, …
        """
        definition = self.definition
        check_resolutions(definition)
        given = self._keys.stored(self._keys.given(key, columns))
        wanted = [c.name for c in definition.key if c.name not in OF_BUCKETS]
        wrong = [name for name in given if name not in wanted]
        missing = [name for name in wanted if name not in given]
        if wrong or missing:
            raise RequestError(
                "KEY_MISSING",
                f"A total of {definition.table} needs the columns {', '.join(wanted) or 'none'} and no others.",
                hint="Name each of them once; the buckets are chosen by since and until.",
                table=definition.table,
                missing=missing,
            )
        return given


def _shown(reading: BucketReading, found: Merged, cut: Cut) -> Total:
    """Raises the error of a value that can't be computed."""
    values = {name: checked(value) for name, value in found.values.items()}
    estimates = reading.estimates(found.key, found.buffers) if found.buffers else {}
    return Total.of(values, cut, found.span, estimates)

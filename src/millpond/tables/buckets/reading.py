"""Buckets of several resolutions, merged: what totals and series are made of.

1. Find the buckets that make up the span (`cover`), by the watermark of the batch: a bucket that
   has expired or is hidden is never used, even if Spark hasn't removed it yet.
2. Read their rows (`rows`).
3. Merge their buffers, function by function, as Spark merges partial aggregates, and only then
   compute the values: an average of averages would be wrong.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from millpond.errors import ReplicaError, RequestError
from millpond.replica.row_stamp import without_stamp
from millpond.scalar.time.zones import parse_zone
from millpond.schema.convert import to_python
from millpond.schema.definition.default_table import TIMESTAMP
from millpond.schema.definition.resolutions import BUCKET, OF_BUCKETS, Resolution, Resolutions, parse_each
from millpond.schema.definition.table import TableDefinition
from millpond.schema.moment import time_micros
from millpond.tables.buckets.answer import Span, Used
from millpond.tables.buckets.cover import Cover
from millpond.tables.buckets.rows import BucketRows, Group, GroupRows, Row
from millpond.tables.finish.estimates import compile_estimates
from millpond.tables.finish.merge_rows import compile_shares
from millpond.tables.kept.calendar import Calendar
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import Span as KeySpan
from millpond.tables.scan.keys import KeyReader
from millpond.tables.scan.open_read import OpenRead

When = dt.datetime | str | None
NO_SPAN = Span(None, None, ())
_show_time = to_python(TIMESTAMP)


class Merged(NamedTuple):
    """The merged buckets of a group: of a span, or of one step of it.

    values:     by column; some may be `FailedValue`
    span:       of a step without `used`
    key, buffers: of the merged row, for `BucketReading.estimates`
    """

    values: dict[str, Any]
    span: Span
    key: Row
    buffers: Row


class Steps(NamedTuple):
    """The steps of a span in which a group has events, in the order of time."""

    steps: list[Merged]
    span: Span


class BucketReading:
    """One read of the buckets of a table, in a span of time.

    estimates:  how exact the columns of a merged row are
    """

    def __init__(
        self,
        read: OpenRead,
        keys: KeyReader,
        deadline: Deadline,
        since: When = None,
        until: When = None,
        step: str | None = None,
    ) -> None:
        """A read of buckets from `since` on and before `until`, None for all that are kept.

        step:    the length of the steps of a series

        Raises:  INVALID_REQUEST, WRONG_TYPE, INVALID_RANGE; HISTORY_GONE if all buckets at `since` have expired.
        """
        definition = self.definition = read.binding.definition
        resolutions = check_resolutions(definition) if read.hidden is None else read.hidden.resolutions
        self.binding = read.binding
        self.rows = BucketRows(read, keys, deadline)
        zone = parse_zone(resolutions.zone)
        each = resolutions.each if step is None else _not_longer(resolutions, step, definition.table)
        self.cover = Cover(each, zone, self.rows.watermark)
        self.each = {str(r): Calendar(r, zone) for r in each}
        self.step = None if step is None else Calendar(parse_each([(step, None)])[0], zone)
        self.merge = compile_shares(definition.table, resolutions.merges, self.binding.schema.value)
        self.estimates = compile_estimates(definition)
        self.since = None if since is None else time_micros(since)
        self.until = None if until is None else time_micros(until)
        if self.since is not None:
            if self.until is not None and self.until <= self.since:
                raise self._empty(self.since, self.until)
            self.start(self.since)

    def group(self, group: Group) -> GroupReading:
        """The buckets of one group."""
        return GroupReading(self, group, self.rows.group(group))

    def groups(self, spans: Iterable[KeySpan]) -> Iterator[GroupReading]:
        """The groups that have rows in spans of whole groups: see `BucketRows.groups`."""
        for group, rows in self.rows.groups(spans):
            yield GroupReading(self, group, rows)

    def start(self, first: int) -> int:
        """Where the buckets begin that have this instant: in a series, those of its step.  Raises HISTORY_GONE."""
        wanted = first if self.step is None else self.step.start(first)
        start = self.cover.down(wanted)
        if start is None or (self.step is not None and start != wanted):
            raise self.gone(wanted)
        return start

    def _empty(self, first: int, last: int) -> RequestError:
        return RequestError(
            "INVALID_RANGE",
            f"The span of {self.definition.table} ends at {_show_time(last)}, not after its start {_show_time(first)}.",
            hint="Give `since` and a later `until`.",
            table=self.definition.table,
        )

    def gone(self, first: int) -> ReplicaError:
        """The error for an instant whose buckets have expired."""
        kept = self.cover.kept_from
        return ReplicaError(
            "HISTORY_GONE",
            f"Buckets of {self.definition.table} that have {_show_time(first)} have expired.",
            hint="Leave `since` out for all that is kept." if kept is None else f"Ask from {_show_time(kept)} on.",
            table=self.definition.table,
        )


class GroupReading:
    """The buckets of one group in such a read."""

    def __init__(self, reading: BucketReading, group: Group, rows: GroupRows) -> None:
        """A group, and its rows."""
        self._reading, self._group, self._rows = reading, group, rows

    def total(self) -> Merged | None:
        """One row, without values if the group has no event in the span; None if it has no bucket."""
        span, used = self._span(), list[Used]()
        if span is None:
            return None
        rows = [row for _, row in self._read(span, used)]
        return self._merged(rows, None, _shown(span, used))

    def series(self) -> Steps:
        """A row for each step."""
        span, used = self._span(), list[Used]()
        if span is None:
            return Steps([], NO_SPAN)
        steps = list(self._steps(span, used))
        return Steps(steps, _shown(span, used))

    def steps(self) -> Iterator[Merged]:
        """The same rows one by one."""
        span = self._span()
        return iter(()) if span is None else self._steps(span, [])

    def _steps(self, span: tuple[int, int], used: list[Used]) -> Iterator[Merged]:
        step = self._reading.step
        assert step is not None, "a series has steps"
        for start, rows in groupby(self._read(span, used), key=lambda found: step.start(found[0])):
            yield self._merged([row for _, row in rows], start, _shown((start, step.end(start)), []))

    def _span(self) -> tuple[int, int] | None:
        """Start and end of the buckets to read; None if the group has none.  Raises HISTORY_GONE."""
        reading = self._reading
        first = self._first() if reading.since is None else reading.since
        last = self._last() if reading.until is None else reading.until
        if first is None or last is None or last <= first:
            return None
        if reading.step is not None:
            first, last = reading.step.start(first), reading.step.up(last)
            kept = reading.cover.kept_from
            if reading.since is None and kept is not None and first < kept:
                first = reading.step.up(kept)
        start, end = reading.start(first), reading.cover.up(last)
        if end is None:
            raise reading.gone(first)
        return (start, end) if start < end else None

    def _first(self) -> int | None:
        starts = [next((start for start, _ in self._rows.iterate(name, None, None)), None) for name in self._reading.each]
        return min((start for start in starts if start is not None), default=None)

    def _last(self) -> int | None:
        ends = []
        for name, calendar in self._reading.each.items():
            start = next((start for start, _ in self._rows.iterate(name, None, None, reverse=True)), None)
            ends += [] if start is None else [calendar.end(start)]
        return max(ends, default=None)

    def _read(self, span: tuple[int, int], used: list[Used]) -> Iterator[tuple[int, Row]]:
        """The start and the buffers of each bucket of a span, in the order of time; adds to `used` what it has read."""
        decode_value = self._reading.binding.decode_value
        for piece in self._reading.cover.pieces(*span):
            count = 0
            for start, stored in self._rows.iterate(str(piece.resolution), piece.start, piece.end):
                count += 1
                yield start, decode_value(without_stamp(stored))
            used.append(Used(str(piece.resolution), _show_time(piece.start), _show_time(piece.end), count))

    def _merged(self, rows: list[Row], start: int | None, span: Span) -> Merged:
        """Several buckets as one; with a start, that of a step, it is a column too."""
        reading, columns = self._reading, self._reading.rows.columns
        key: list[Any] = [None] * len(reading.definition.key_fields)
        for name, value in self._group.items():
            key[columns[name]] = value
        key[columns[BUCKET]] = start
        if not rows:
            return Merged({}, span, tuple(key), ())
        buffers = reading.merge(rows)
        finished = reading.binding.finish(tuple(key), buffers) or {}
        left_out = set(OF_BUCKETS) - ({BUCKET} if start is not None else set())
        values = {name: value for name, value in finished.items() if name not in left_out}
        return Merged(values, span, tuple(key), buffers)


def check_resolutions(definition: TableDefinition) -> Resolutions:
    """The buckets of a table.  Raises INVALID_REQUEST if its rows aren't buckets."""
    if definition.resolutions is None:
        raise RequestError(
            "INVALID_REQUEST",
            f"{definition.table} has no resolutions, so it has no totals of spans of time.",
            hint="Declare it with millpond.Aggregate, or scan its rows and add them up.",
            table=definition.table,
        )
    return definition.resolutions


def _not_longer(resolutions: Resolutions, step: str, table: str) -> tuple[Resolution, ...]:
    """The resolutions that a step consists of.  Raises INVALID_REQUEST."""
    try:
        (wanted,) = parse_each([(step, None)])
        each = tuple(r for r in resolutions.each if r.most_seconds <= wanted.most_seconds)
        if not each:
            raise ValueError(f"the shortest buckets are of {resolutions.each[0]}")
        parse_each([(name, None) for name in {str(wanted), *map(str, each)}])
    except ValueError as wrong:
        raise RequestError(
            "INVALID_REQUEST",
            f"A series of {table} can't have steps of {step!r:.40}: {wrong}.",
            hint=f"Use one of its resolutions: {', '.join(map(str, resolutions.each))}.",
            table=table,
        ) from None
    return each


def _shown(span: tuple[int, int], used: Sequence[Used]) -> Span:
    return Span(_show_time(span[0]), _show_time(span[1]), tuple(used))

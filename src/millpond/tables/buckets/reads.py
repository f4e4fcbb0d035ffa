"""Totals and series of a table of buckets: buckets of several resolutions, merged, all of one batch.

1. Find the buckets that make up the span (`cover`), by the watermark of the batch: a bucket that
   has expired or is hidden is never used, even if Spark hasn't removed it yet.
2. Read their rows, a range for each resolution.
3. Merge their buffers, function by function, as Spark merges partial aggregates, and only then
   compute the values: an average of averages would be wrong.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from millpond.errors import ReplicaError, RequestError
from millpond.replica.row_stamp import without_stamp
from millpond.replica.scan import iter_range
from millpond.scalar.time.zones import parse_zone
from millpond.schema.convert import to_python
from millpond.schema.definition.default_table import TIMESTAMP
from millpond.schema.definition.resolutions import (
    BUCKET,
    EXPIRES,
    LETTER,
    OF_BUCKETS,
    RESOLUTION,
    Resolution,
    Resolutions,
    parse_each,
)
from millpond.schema.definition.table import TableDefinition
from millpond.schema.moment import time_micros
from millpond.tables.buckets import answer as buckets
from millpond.tables.buckets.answer import Series, Total, Used
from millpond.tables.buckets.cover import Cover, Piece
from millpond.tables.failed import checked
from millpond.tables.finish.estimates import Estimate, compile_estimates
from millpond.tables.finish.merge_rows import compile_shares
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.shards import check_whole
from millpond.tables.kept.calendar import Calendar
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import Span, range_span
from millpond.tables.scan.keys import KeyReader
from millpond.tables.scan.open_read import OpenRead

Row = tuple[Any, ...]
When = dt.datetime | str | None
_show_time = to_python(TIMESTAMP)
_NO_SPAN = buckets.Span(None, None, ())


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
            reading = _Reading(read, self.definition, self._keys, self._group(key, columns), self.deadline())
            span = reading.span(since, until)
            if span is None:
                return Total.of((), read.cut, _NO_SPAN)
            rows, used = reading.rows(reading.cover.pieces(*span))
            values, estimates = reading.merged([row for _, row in rows]) if rows else ({}, {})
            return Total.of(values, read.cut, _span(*span, used), estimates)

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
            reading = _Reading(read, self.definition, self._keys, self._group(key, columns), self.deadline(), step)
            span = reading.span(since, until)
            if span is None:
                return Series.of((), read.cut, _NO_SPAN)
            found, used = reading.rows(reading.cover.pieces(*span))
            steps: dict[int, list[Row]] = {}
            for start, row in found:
                steps.setdefault(reading.step_of(start), []).append(row)
            rows = []
            for start, each in steps.items():
                values, estimates = reading.merged(each, start)
                rows.append(Total.of(values, read.cut, _span(start, reading.end_of_step(start), []), estimates))
            return Series.of(rows, read.cut, _span(*span, used))

    def _group(self, key: Any, columns: dict[str, Any]) -> dict[str, Any]:
        """The group's columns in stored form.

        Raises:  INVALID_REQUEST, KEY_MISSING, …
        """
        definition = self.definition
        if definition.resolutions is None:
            raise RequestError(
                "INVALID_REQUEST",
                f"{definition.table} has no resolutions, so it has no totals of spans of time.",
                hint="Declare it with millpond.Aggregate, or scan its rows and add them up.",
                table=definition.table,
            )
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


class _Reading:
    """One read of the buckets of a group."""

    def __init__(
        self,
        read: OpenRead,
        definition: TableDefinition,
        keys: KeyReader,
        group: dict[str, Any],
        deadline: Deadline,
        step: str | None = None,
    ) -> None:
        resolutions = definition.resolutions if read.hidden is None else read.hidden.resolutions
        assert resolutions is not None, "the caller has checked it"
        self._hides = None if read.hidden is None else read.hidden.hides
        self._binding, self._rows, self._deadline = read.binding, read.stored(), deadline
        self._definition, self._order, self._group = definition, keys.order, group
        self._columns = {c.name: c.index for c in definition.key}
        zone = parse_zone(resolutions.zone)
        each = resolutions.each if step is None else _not_longer(resolutions, step, definition.table)
        watermark_ms = read.cut.position.watermark_ms
        self._watermark = None if watermark_ms is None else watermark_ms * 1000
        self.cover = Cover(each, zone, self._watermark)
        self._each = {str(r): Calendar(r, zone) for r in each}
        self._step = None if step is None else Calendar(parse_each([(step, None)])[0], zone)
        self._merge = compile_shares(definition.table, resolutions.merges, self._binding.schema.value)
        self._estimates = compile_estimates(definition)

    def span(self, since: When, until: When) -> tuple[int, int] | None:
        """Start and end of the buckets to read; None if the group has none.

        Raises:  INVALID_RANGE, HISTORY_GONE, WRONG_TYPE.
        """
        first = self._first() if since is None else time_micros(since)
        last = self._last() if until is None else time_micros(until)
        if first is None or last is None:
            return None
        if last <= first:
            if since is None or until is None:
                return None
            raise RequestError(
                "INVALID_RANGE",
                f"The span of {self._definition.table} ends at {_show_time(last)}, not after its start {_show_time(first)}.",
                hint="Give `since` and a later `until`.",
                table=self._definition.table,
            )
        if self._step is not None:
            first, last = self._step.start(first), self._step.up(last)
            kept = self.cover.kept_from
            if since is None and kept is not None and first < kept:
                first = self._step.up(kept)
        start, end = self.cover.down(first), self.cover.up(last)
        if start is None or end is None or (self._step is not None and start != first):
            raise self._gone(first)
        return (start, end) if start < end else None

    def rows(self, pieces: Iterable[Piece]) -> tuple[list[tuple[int, Row]], list[Used]]:
        """The start and the buffers of each bucket, and how many there are of each piece."""
        found: list[tuple[int, Row]] = []
        used = []
        for piece in pieces:
            before = len(found)
            found += self._iterate(str(piece.resolution), piece.start, piece.end)
            used.append(Used(str(piece.resolution), _show_time(piece.start), _show_time(piece.end), len(found) - before))
        return found, used

    def merged(self, rows: list[Row], start: int | None = None) -> tuple[dict[str, Any], dict[str, Estimate]]:
        """The columns of several buckets as one, and how exact they are.

        With a start, that of a step, it is a column too.

        Raises:  the error of a value that can't be computed.
        """
        key: list[Any] = [None] * len(self._definition.key_fields)
        for name, value in self._group.items():
            key[self._columns[name]] = value
        key[self._columns[BUCKET]] = start
        buffers = self._merge(rows)
        finished = self._binding.finish(tuple(key), buffers) or {}
        left_out = set(OF_BUCKETS) - ({BUCKET} if start is not None else set())
        values = {name: checked(value) for name, value in finished.items() if name not in left_out}
        return values, self._estimates(tuple(key), buffers)

    def step_of(self, start: int) -> int:
        """The start of the step that has a bucket."""
        assert self._step is not None, "a series has steps"
        return self._step.start(start)

    def end_of_step(self, start: int) -> int:
        """The end of the step that begins here."""
        assert self._step is not None, "a series has steps"
        return self._step.end(start)

    def _first(self) -> int | None:
        starts = [next((start for start, _ in self._iterate(name, None, None)), None) for name in self._each]
        return min((start for start in starts if start is not None), default=None)

    def _last(self) -> int | None:
        ends = []
        for name, calendar in self._each.items():
            start = next((start for start, _ in self._iterate(name, None, None, reverse=True)), None)
            ends += [] if start is None else [calendar.end(start)]
        return max(ends, default=None)

    def _iterate(self, resolution: str, start: int | None, end: int | None, *, reverse: bool = False) -> Iterator[tuple[int, Row]]:
        """Start and buffers of the buckets that haven't expired, from `start` on and before `end`."""
        no_letter = {LETTER: None} if LETTER in self._columns else {}
        span = self._range({**self._group, RESOLUTION: resolution, **no_letter}, start, end)
        decode_key, decode_value = self._binding.codec.decode, self._binding.decode_value
        bucket, expires, watermark = self._columns[BUCKET], self._columns[EXPIRES], self._watermark
        pairs = iter_range(self._rows, self._binding.table, *span.keys, reverse=reverse)
        for ordered, stored in self._deadline.watch(pairs):
            key = decode_key(ordered)
            is_kept = watermark is None or key[expires] is None or key[expires] > watermark
            if (ordered, 0) in span and is_kept and not (self._hides is not None and self._hides(key)):
                yield key[bucket], decode_value(without_stamp(stored))

    def _range(self, prefix: dict[str, Any], start: int | None, end: int | None) -> Span:
        limits = [None if limit is None else {BUCKET: limit} for limit in (start, end)]
        return range_span(self._definition, self._binding.codec, self._order, prefix, *limits)

    def _gone(self, first: int) -> ReplicaError:
        kept = self.cover.kept_from
        return ReplicaError(
            "HISTORY_GONE",
            f"Buckets of {self._definition.table} that have {_show_time(first)} have expired.",
            hint="Leave `since` out for all that is kept." if kept is None else f"Ask from {_show_time(kept)} on.",
            table=self._definition.table,
        )


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


def _span(start: int, end: int, used: list[Used]) -> buckets.Span:
    return buckets.Span(_show_time(start), _show_time(end), tuple(used))

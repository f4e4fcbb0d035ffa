"""The rows of groups of buckets: a group's ranges one by one, or all groups with their rows.

The rows of a group lie together in key order, by resolution and then by time.  Columns of the group
that are times themselves come behind these, so the groups of equal first columns lie mixed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from millpond.replica.scan import iter_range
from millpond.schema.definition.resolutions import BUCKET, EXPIRES, LETTER, OF_BUCKETS, RESOLUTION
from millpond.tables.scan.binding import StoredElsewhere
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import Span as KeySpan
from millpond.tables.scan.key_range import prefix_span, range_span
from millpond.tables.scan.keys import KeyReader
from millpond.tables.scan.open_read import OpenRead

Row = tuple[Any, ...]
Group = dict[str, Any]
"""the group's columns in stored form"""
Pair = tuple[bytes, bytes]
"""an ordered key, and what is stored under it"""
Bucket = tuple[int, bytes]
"""the start of a bucket, and what is stored"""
# Rows that are kept in memory to be read in parts.  More than a few are found faster by seeking, unless groups lie mixed, or
# the rows are those of other machines.
_FEW_BYTES, _MOST_BYTES = 1 << 14, 64 << 20
_MOST_PLACES = 1 << 16


class GroupRows(Protocol):
    """The buckets of one group that haven't expired."""

    def iterate(self, resolution: str, start: int | None, end: int | None, *, reverse: bool = False) -> Iterator[Bucket]:
        """Those of a resolution from `start` on and before `end`, in the order of time or against it; None for no end."""


class _Place(NamedTuple):
    """What the key says of a row, behind the first columns of its group.

    more:        the group's other columns
    name:        these as a text, since NaN equals NaN
    resolution:  "" if the row isn't a bucket, or has expired
    """

    more: Group
    name: str
    resolution: str
    bucket: int


class BucketRows:
    """The rows of all groups of a table in one read."""

    def __init__(self, read: OpenRead, keys: KeyReader, deadline: Deadline) -> None:
        """Rows of a read, which ends with it, and by a deadline."""
        self.binding, self.definition = read.binding, read.binding.definition
        self._rows, self._order, self._deadline = read.stored(), keys.order, deadline
        self.columns = {c.name: c.index for c in self.definition.key}
        watermark_ms = read.cut.position.watermark_ms
        self.watermark = None if watermark_ms is None else watermark_ms * 1000
        self._hides = None if read.hidden is None else read.hidden.hides
        leading = next(place for place, name in enumerate(self._order) if name in OF_BUCKETS)
        self._leading = self._order[:leading]
        self._more = [name for name in self._order[leading:] if name not in OF_BUCKETS]
        is_slow = bool(self._more) or isinstance(read.view.rows, StoredElsewhere)
        self._most_bytes = _MOST_BYTES if is_slow else _FEW_BYTES
        self._places: dict[bytes, _Place] = {}

    def group(self, group: Group) -> GroupRows:
        """The rows of one group."""
        return _RowsByRange(self, group)

    def groups(self, spans: Iterable[KeySpan]) -> Iterator[tuple[Group, GroupRows]]:
        """The groups that have rows in spans of whole groups, in key order as far as their columns come first in it.

        1. Take the next rows that agree in the columns that come before those of buckets.
        2. If they aren't too many, sort them into their groups in memory.
        3. Otherwise look for the groups in these rows, and read each group's for itself.
        """
        for span in spans:
            low, high = span.keys
            rows = self.between(low, high)
            found = next(rows, None)
            while found is not None:
                key = self.binding.codec.decode(found[0])
                leading = {name: key[self.columns[name]] for name in self._leading}
                begin, end = prefix_span(self.definition, self.binding.codec, leading).keys
                some, size = list[Pair](), 0
                while found is not None and (end is None or found[0] < end):
                    if size >= self._most_bytes:
                        break
                    some.append(found)
                    size += len(found[0]) + len(found[1])
                    found = next(rows, None)
                else:
                    yield from self._in_memory(leading, len(begin), some)  # 2
                    continue
                some.clear()
                yield from self._by_range(leading, begin, end)  # 3
                if end is None:
                    return
                rows = self.between(end, high)
                found = next(rows, None)

    def between(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[Pair]:
        """The rows from a key on and below another one."""
        return self._deadline.watch(iter_range(self._rows, self.binding.table, low, high, reverse=reverse))

    def range(self, group: Group, resolution: str, start: int | None, end: int | None) -> KeySpan:
        """The buckets of a group from `start` on and before `end`."""
        prefix = {**group, RESOLUTION: resolution, **({LETTER: None} if LETTER in self.columns else {})}
        limits = [None if limit is None else {BUCKET: limit} for limit in (start, end)]
        return range_span(self.definition, self.binding.codec, self._order, prefix, *limits)

    def is_seen(self, key: Row) -> bool:
        """Whether readers see a bucket: Spark removes expired ones later."""
        expires = key[self.columns[EXPIRES]]
        is_over = self.watermark is not None and expires is not None and expires <= self.watermark
        return not is_over and not (self._hides is not None and self._hides(key))

    def _in_memory(self, leading: Group, prefix: int, some: list[Pair]) -> Iterator[tuple[Group, GroupRows]]:
        groups: dict[str, tuple[Group, dict[str, list[Bucket]]]] = {}
        for ordered, stored in some:
            place = self._place(ordered, ordered[prefix:])
            if place.name not in groups:
                groups[place.name] = {**leading, **place.more}, {}
            if place.resolution:
                groups[place.name][1].setdefault(place.resolution, []).append((place.bucket, stored))
        for group, buckets in groups.values():
            yield group, _RowsInMemory(buckets)

    def _place(self, ordered: bytes, rest: bytes) -> _Place:
        """What a key says, whose bytes behind the first columns are `rest`: most groups have the same ones."""
        found = self._places.get(rest)
        if found is None:
            key = self.binding.codec.decode(ordered)
            more = {name: key[self.columns[name]] for name in self._more}
            is_bucket = (LETTER not in self.columns or key[self.columns[LETTER]] is None) and self.is_seen(key)
            resolution, bucket = (key[self.columns[name]] for name in (RESOLUTION, BUCKET))
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            found = self._places[rest] = _Place(more, repr(tuple(more.values())), resolution if is_bucket else "", bucket or 0)
        return found

    def _by_range(self, leading: Group, low: bytes, high: bytes | None) -> Iterator[tuple[Group, GroupRows]]:
        if not self._more:
            yield leading, self.group(leading)
            return
        seen = set[str]()
        for ordered, _ in self.between(low, high):
            key = self.binding.codec.decode(ordered)
            more = {name: key[self.columns[name]] for name in self._more}
            name = repr(tuple(more.values()))
            if name not in seen:
                seen.add(name)
                group = {**leading, **more}
                yield group, self.group(group)


class _RowsByRange:
    """See `GroupRows`: each resolution is a range of the key."""

    def __init__(self, rows: BucketRows, group: Group) -> None:
        self._all, self._group = rows, group

    def iterate(self, resolution: str, start: int | None, end: int | None, *, reverse: bool = False) -> Iterator[Bucket]:
        """See `GroupRows`."""
        span = self._all.range(self._group, resolution, start, end)
        decode, place = self._all.binding.codec.decode, self._all.columns[BUCKET]
        for ordered, stored in self._all.between(*span.keys, reverse=reverse):
            key = decode(ordered)
            if (ordered, 0) in span and self._all.is_seen(key):
                yield key[place], stored


class _RowsInMemory:
    """See `GroupRows`: lists that are sorted by time."""

    def __init__(self, buckets: dict[str, list[Bucket]]) -> None:
        self._buckets = buckets

    def iterate(self, resolution: str, start: int | None, end: int | None, *, reverse: bool = False) -> Iterator[Bucket]:
        """See `GroupRows`."""
        its = self._buckets.get(resolution, [])
        first = 0 if start is None else bisect_left(its, (start, b""))
        last = len(its) if end is None else bisect_left(its, (end, b""))
        return iter(its[first:last][::-1] if reverse else its[first:last])

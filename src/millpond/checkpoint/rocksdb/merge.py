"""Merges sorted runs of RocksDB's entries: the newest version of each key, with deletes and merges resolved.

1. Every run has a window of entries in memory, with at least two different keys while it has more.
2. Take the smallest last key of the runs that have more.  No run can still bring an entry below it,
   so take the entries below it from all runs and sort them by key, newest first.
3. For each key: a put is its value, a delete removes it, and merges are appended to the put below
   them.

A key nearly always has one version; then the only work is to compare it with the next key.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import compress, count, islice
from operator import eq, le
from typing import cast

from millpond.checkpoint.files.codecs import corrupt
from millpond.checkpoint.rocksdb.blocks import DELETION, MERGE, SINGLE_DELETION, VALUE, Entries

Row = tuple[bytes, bytes | None]
"""(key, value); None for a key whose newest version is a delete"""
_DELETES = frozenset({DELETION, SINGLE_DELETION})
# If at most one in so many entries is new, inserting them one by one beats a sort.
_SPARSE = 8


def iter_merged(runs: Iterable[Iterator[Entries]], delimiter: bytes) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
    """Keys in order with their values, None if deleted, in chunks.

    runs:       each in key order, as `SstFile.iter_entries` gives it
    delimiter:  between the operands of a merge
    Raises:     CORRUPT_FILE if a run isn't in order, or two versions of a key have one sequence
                number.
    Source:     MergingIterator, MergeHelper, StringAppendOperator, RocksDB 9.8; property tests
                against RocksDB itself.
    """
    for entries in iter_versions(runs):
        yield resolve_all(entries, delimiter)  # 3


def iter_versions(runs: Iterable[Iterator[Entries]]) -> Iterator[Entries]:
    """The entries of all runs in key order, in chunks with all versions of their keys, in any order."""
    active = [_EntryRun(run) for run in runs]
    while active:
        for run in active:  # 1
            run.fill()
        bound = min((run.keys[-1] for run in active if run.more), default=None)  # 2
        parts = [part for run in active if (part := run.take(bound)).keys]
        if parts:
            yield _sorted(parts)
        active = [run for run in active if run.more or run.keys]


def resolve(versions: list[tuple[int, bytes]], delimiter: bytes) -> bytes | None:
    """The value of one key, from (tag, value) of its versions, newest first; None if it is deleted.

    Raises:  CORRUPT_FILE if two have one sequence number.
    """
    operands: list[bytes] = []
    before = None
    for tag, value in versions:
        if before is not None and tag >> 8 >= before:
            raise corrupt("two versions of a key have one sequence number", 0)
        before = tag >> 8
        kind = tag & 0xFF
        if kind == MERGE:
            operands.append(value)
            continue
        if kind == VALUE:
            operands.append(value)
        break
    return delimiter.join(reversed(operands)) if operands else None


def resolve_all(entries: Entries, delimiter: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """Each key once, with the value of all its versions."""
    keys, tags, values = entries
    found = cast("list[bytes | None]", values)
    kinds = tags.tobytes()[:: tags.itemsize] if sys.byteorder == "little" else bytes(tag & 0xFF for tag in tags)
    if DELETION in kinds or SINGLE_DELETION in kinds:
        found = [None if kind in _DELETES else value for kind, value in zip(kinds, values, strict=True)]
    repeats = list(compress(count(1), map(eq, keys, islice(keys, 1, None))))
    if not repeats:
        return keys, found
    if found is values:
        found = list(values)
    # The first entry of each key stays, with the value of all versions.
    kept = bytearray(b"\x01") * len(keys)
    at = 0
    while at < len(repeats):
        first, end = repeats[at] - 1, repeats[at]
        while at < len(repeats) and repeats[at] == end:
            kept[end] = 0
            at, end = at + 1, end + 1
        newest = first if tags[first] > tags[first + 1] else first + 1
        if end == first + 2 and kinds[newest] == VALUE and tags[first] >> 8 != tags[first + 1] >> 8:
            found[first] = values[newest]
        else:
            versions = sorted(zip(tags[first:end], values[first:end], strict=True), key=_tag, reverse=True)
            found[first] = resolve(versions, delimiter)
    return list(compress(keys, kept)), list(compress(found, kept))


def without_deleted(keys: list[bytes], values: list[bytes | None]) -> tuple[list[bytes], list[bytes]]:
    """The keys with a value, and their values."""
    if None not in values:
        return keys, cast("list[bytes]", values)
    kept = [value is not None for value in values]
    return list(compress(keys, kept)), cast("list[bytes]", list(compress(values, kept)))


class _EntryRun:
    """A sorted run, with a window of it in memory."""

    def __init__(self, windows: Iterator[Entries]) -> None:
        self._windows = windows
        self._last = b""
        self.more = True
        self.keys: list[bytes] = []
        self.tags = array("Q")
        self.values: list[bytes] = []

    def fill(self) -> None:
        """Read on until the window has at least two different keys, or all that is left."""
        while self.more and (not self.keys or self.keys[0] == self.keys[-1]):
            window = next(self._windows, None)
            if window is None:
                self.more = False
                return
            keys = window.keys
            if not keys:
                continue
            if not all(map(le, keys, islice(keys, 1, None))) or keys[0] < self._last:
                raise corrupt("the keys of an SST aren't in order", 0)
            self._last = keys[-1]
            self.keys = self.keys + keys if self.keys else keys
            self.tags = self.tags + window.tags if self.tags else window.tags
            self.values = self.values + window.values if self.values else window.values

    def take(self, bound: bytes | None) -> Entries:
        """Take the entries below a key out of the window; None for all."""
        at = len(self.keys) if bound is None else bisect_left(self.keys, bound)
        taken = Entries(self.keys[:at], self.tags[:at], self.values[:at])
        self.keys, self.tags, self.values = self.keys[at:], self.tags[at:], self.values[at:]
        return taken


def _sorted(parts: list[Entries]) -> Entries:
    """The entries of all parts by key; those of one key stay next to each other."""
    if len(parts) == 1:
        return parts[0]
    parts = sorted(parts, key=_length)
    most = parts.pop()
    rest = parts[0] if len(parts) == 1 else _sorted_by_python(parts)
    return _spliced(rest, most) if len(rest.keys) * _SPARSE < len(most.keys) else _sorted_by_python([rest, most])


def _sorted_by_python(parts: list[Entries]) -> Entries:
    """Python's sort finds the sorted parts by itself and merges them."""
    keys = [key for part in parts for key in part.keys]
    values = [value for part in parts for value in part.values]
    tags = array("Q")
    for part in parts:
        tags += part.tags
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return Entries(
        list(map(keys.__getitem__, order)), array("Q", map(tags.__getitem__, order)), list(map(values.__getitem__, order))
    )


def _spliced(few: Entries, many: Entries) -> Entries:
    """Insert the few into the many, each by bisection; the entries in between are copied."""
    out = Entries([], array("Q"), [])
    begin = 0
    for key, tag, value in zip(*few, strict=True):
        end = bisect_left(many.keys, key, begin)
        out.keys.extend(many.keys[begin:end])
        out.tags.extend(many.tags[begin:end])
        out.values.extend(many.values[begin:end])
        out.keys.append(key)
        out.tags.append(tag)
        out.values.append(value)
        begin = end
    out.keys.extend(many.keys[begin:])
    out.tags.extend(many.tags[begin:])
    out.values.extend(many.values[begin:])
    return out


def _length(part: Entries) -> int:
    return len(part.keys)


def _tag(version: tuple[int, bytes]) -> int:
    return version[0]

"""Merges windows of sorted runs by the compiled library, without copying the entries out.

The steps and the rules are those of `merge`; deleted keys are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millpond.checkpoint.files.codecs import corrupt
from millpond.checkpoint.rocksdb.blocks import Window, unknown
from millpond.checkpoint.rows.columns import Spans
from millpond.errors import CheckpointError
from millpond.native.calls import (
    NOT_IN_ORDER,
    ONE_SEQUENCE_NUMBER,
    UNKNOWN_KIND,
    MergedPart,
    NotMerged,
    lower_bound,
    merge_runs,
)

_AHEAD = 2


def iter_merged_windows(runs: Iterable[Iterator[Window]], delimiter: bytes) -> Iterator[tuple[Spans, Spans]]:
    """Keys in order with their values, in chunks.  As `merge.iter_merged`."""
    for parts in iter_parts(runs):
        try:
            keys, values = merge_runs(parts, delimiter)
        except NotMerged as refused:
            raise _error(refused.reason) from refused
        yield Spans(*keys), Spans(*values)


def iter_parts(runs: Iterable[Iterator[Window]]) -> Iterator[list[MergedPart]]:
    """Groups of parts to merge at a time, in order, with all versions of their keys.

    Raises as `iter_merged_windows`.
    """
    active = [_WindowRun(run) for run in runs]
    while active:
        for run in active:
            run.fill()
        bound = min((run.last for run in active if run.more), default=None)
        parts = [part for run in active for part in run.take(bound)]
        if parts:
            yield parts
        active = [run for run in active if run.more or run.ahead]


def merge_windows(windows: Iterable[Window], delimiter: bytes) -> tuple[Spans, Spans]:
    """The same for all entries at once, of any runs."""
    parts: list[MergedPart] = [(w.keys, w.tags, w.values, 0, len(w.tags)) for w in windows]
    try:
        keys, values = merge_runs(parts, delimiter)
    except NotMerged as refused:
        raise _error(refused.reason) from refused
    return Spans(*keys), Spans(*values)


class _WindowRun:
    """A sorted run with some windows in memory; to a merge, the rest of a window is a run of its own."""

    def __init__(self, windows: Iterator[Window]) -> None:
        self._windows = windows
        self.ahead: list[tuple[Window, int]] = []
        self.more = True
        self.last = b""

    def fill(self) -> None:
        """Read at least two windows and two different keys, or all that is left.

        Then each merge takes a window of every run.
        """
        while self.more and (len(self.ahead) < _AHEAD or _key(*self.ahead[0]) == self.last):
            window = next(self._windows, None)
            if window is None:
                self.more = False
            elif len(window.tags):
                if _key(window, 0) < self.last:
                    raise _error(NOT_IN_ORDER)
                self.last = _key(window, -1)
                self.ahead.append((window, 0))
        # Otherwise no entry would ever lie below a bound, and the merge would never end.
        if self.more and _key(*self.ahead[0]) > self.last:
            raise _error(NOT_IN_ORDER)

    def take(self, bound: bytes | None) -> list[MergedPart]:
        """Give the entries below a key away; None: all of them."""
        taken: list[MergedPart] = []
        left = []
        for window, first in self.ahead:
            keys, tags, values = window
            end = len(tags) if bound is None else lower_bound(keys, first, bound)
            if first < end:
                taken.append((keys, tags, values, first, end))
            if end < len(tags):
                left.append((window, end))
        self.ahead = left
        return taken


def _key(window: Window, at: int) -> bytes:
    data, begin, size = window.keys
    first = int(begin[at])
    return bytes(data[first : first + int(size[at])])


def _error(reason: int) -> CheckpointError:
    """A new error each time, since a raised exception keeps its stack in memory."""
    if reason == UNKNOWN_KIND:
        return unknown("it holds entries of other kinds than puts, deletes and merges")
    if reason == ONE_SEQUENCE_NUMBER:
        return corrupt("two versions of a key have one sequence number", 0)
    assert reason == NOT_IN_ORDER, reason
    return corrupt("the keys of an SST aren't in order", 0)

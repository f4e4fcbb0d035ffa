"""Every version of a row, or of the rows of a span of keys, between two batches."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

from millpond.replica.backends.base import Snapshot
from millpond.replica.history.as_of import NumberedChange, SnapshotAsOf, iter_versions_between, position_at, whole_key
from millpond.replica.history.delete_cause import Kind
from millpond.replica.keys.codec import join_value, store_key
from millpond.replica.row_stamp import changed_batch
from millpond.replica.scan import iter_range
from millpond.tables.answer import Answer, Cut
from millpond.tables.history.changes import RowReader, Values, row_reader
from millpond.tables.job.as_of import rows_as_of
from millpond.tables.scan.binding import Binding, iter_changes, store_number
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.open_read import OpenRead


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What a row was from one batch until another.

    row:          by column name
    kind:         how the version came about: insert, update; expire for the last values of an
                  expired row; None if that was before the batches asked for
    batch:        the batch that made the version; None if that was before the replica was built
    until_batch:  the batch that ended the version; None if it is still current
    committed_ms, until_ms:  when these two batches were committed; None if that isn't known
    """

    row: Values
    kind: Kind | None
    batch: int | None
    until_batch: int | None
    committed_ms: int | None
    until_ms: int | None


class Versions(list[Version], Answer):
    """Versions by key, then by batch.

    more:  whether the limit cut off further ones
    """

    def __init__(self, versions: Iterable[Version], cut: Cut, *, more: bool = False) -> None:
        super().__init__(versions)
        self.cut = cut
        self.more = more


_Row = tuple[bytes | None, list[NumberedChange]]
"""(the stored row, None if there was none; its changes since)"""


def read_versions(read: OpenRead, span: Span, first: int, last: int, limit: int | None, deadline: Deadline) -> Versions:
    """The versions of the rows of a span that were current at some batch from `first` to `last`.

    Raises:  READ_TOO_LONG; HISTORY_GONE if `first` is no longer kept.
    """
    by_key = _by_key(read, span, first, deadline)
    rows, committed = row_reader(read.binding), _Clock(read.view.rows)
    out: list[Version] = []
    for ordered in deadline.watch(sorted(by_key)):
        base, changes = by_key[ordered]
        visible = [change for change in changes if change[0] <= last]
        for version in _versions(store_key(ordered), base, visible, rows, committed):
            if limit is not None and len(out) == limit:
                return Versions(out, read.cut, more=True)
            out.append(version)
    return Versions(out, read.cut)


def _by_key(read: OpenRead, span: Span, first: int, deadline: Deadline) -> dict[bytes, _Row]:
    """The rows of a span at a batch, and their changes after it, by ordered key."""
    view, binding, (low, high) = read.view, read.binding, span.keys
    earlier = rows_as_of(view, binding.table, binding.definition.table, first)
    if binding.parts is not None:
        changed = _changed(iter_changes(view, binding, first + 1), span, deadline)
        rows = _rows(binding.rows(*earlier), binding, span, deadline)
        return rows | {ordered: (rows.get(ordered, (None, []))[0], changes) for ordered, changes in changed.items()}
    if low or high is not None:  # a part of the keys: read nothing else
        found = iter_versions_between(view.rows, store_number(view, binding), low, high, first=first + 1)
    else:
        found = iter_changes(view, binding, first + 1)
    changed = _changed(found, span, deadline)
    # A row without a change since then is as it is now. The first change of any other row has the
    # row before it.
    now = view.rows.newest if isinstance(view.rows, SnapshotAsOf) else view.rows
    rows = _rows(now, binding, span, deadline, but=changed)
    return rows | {ordered: (changes[0][2].old, changes) for ordered, changes in changed.items()}


def _changed(found: Iterable[NumberedChange], span: Span, deadline: Deadline) -> dict[bytes, list[NumberedChange]]:
    """The changes of a span, by ordered key."""
    low, high = span.keys
    out: dict[bytes, list[NumberedChange]] = {}
    for change in deadline.watch(found):
        ordered = whole_key(change[2])
        if low <= ordered and (high is None or ordered < high):
            out.setdefault(ordered, []).append(change)
    return out


def _rows(snapshot: Snapshot, binding: Binding, span: Span, deadline: Deadline, *, but: Container[bytes] = ()) -> dict[bytes, _Row]:
    """The rows of a span, by ordered key, without changes; `but` names keys to leave out."""
    found = deadline.watch(iter_range(snapshot, binding.table, *span.keys))
    return {ordered: (join_value(ordered, row), []) for ordered, row in found if ordered not in but}


def _versions(
    stored_key: bytes, base: bytes | None, changes: list[NumberedChange], rows: RowReader, committed: _Clock
) -> Iterator[Version]:
    """The versions of one key; versions of elements come from those of their list."""
    begun: list[tuple[int | None, Kind | None, bytes | None]] = []
    if base is not None:
        begun.append((changed_batch(base), None, base))
    begun += [(batch, change.kind, change.new) for batch, _, change in changes]
    for number, (batch, kind, stored) in enumerate(begun):
        until = begun[number + 1][0] if number + 1 < len(begun) else None
        for row in rows(stored_key, stored):
            if row is not None:
                yield Version(
                    row=row,
                    kind=kind,
                    batch=batch,
                    until_batch=until,
                    committed_ms=committed(batch),
                    until_ms=committed(until),
                )


class _Clock:
    """When batches were committed, in milliseconds."""

    def __init__(self, rows: Snapshot) -> None:
        self._rows = rows
        self._known: dict[int, int | None] = {}

    def __call__(self, batch: int | None) -> int | None:
        if batch is None:
            return None
        if batch not in self._known:
            record = position_at(self._rows, batch)
            self._known[batch] = None if record is None else record.committed_ms
        return self._known[batch]

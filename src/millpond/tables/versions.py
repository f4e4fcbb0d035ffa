"""Every version of a row, or of the rows of a stretch of keys, between two batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from millpond.errors import CheckpointError
from millpond.replica.backend import Snapshot
from millpond.replica.cause import Kind
from millpond.replica.history import NumberedChange, iter_versions, position_at, whole_key
from millpond.replica.ordered import join_value, store_key
from millpond.replica.replica import View
from millpond.replica.scan import after_prefix, iter_range
from millpond.replica.stamp import changed_batch
from millpond.tables.answer import Answer, Cut
from millpond.tables.binding import Binding, iter_changes, store_number
from millpond.tables.changes import RowReader, Values, row_reader
from millpond.tables.earlier import as_of
from millpond.tables.spans import Span


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What a row was from one batch until another.

    row:          by column name
    kind:         what made it: insert, update; expire where it is the row in the end; None where that was before what is asked for
    batch:        since this batch; None where that was before the replica was built
    until_batch:  the batch that changed or deleted it; None where it is so still
    committed_ms, until_ms:  when these were committed, None where that isn't known
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


def read_versions(view: View, cut: Cut, binding: Binding, span: Span, first: int, last: int, limit: int | None) -> Versions:
    """The versions of the rows of a span that held at some batch from `first` to `last`.

    Raises:  HISTORY_GONE where `first` isn't kept any more.
    """
    low, high = span.keys
    earlier = as_of(view, binding.table, binding.definition.table, first)
    by_key: dict[bytes, tuple[bytes | None, list[NumberedChange]]] = {
        ordered: (join_value(ordered, row), []) for ordered, row in iter_range(binding.rows(earlier), binding.table, low, high)
    }
    for change in _changes(view, binding, low, high, first + 1):
        if change[0] > last:
            break
        by_key.setdefault(whole_key(change[2]), (None, []))[1].append(change)
    rows, committed = row_reader(binding), _Clock(view.rows)
    out: list[Version] = []
    for ordered in sorted(by_key):
        for version in _versions(store_key(ordered), *by_key[ordered], rows, committed):
            if limit is not None and len(out) == limit:
                return Versions(out, cut, more=True)
            out.append(version)
    return Versions(out, cut)


def _changes(view: View, binding: Binding, low: bytes, high: bytes | None, first: int) -> Iterator[NumberedChange]:
    """The changes of keys from `low` on and below `high`, by batch."""
    if binding.parts is None and high is not None and high == after_prefix(low) and _is_whole(binding, low):
        return iter_versions(view.rows, store_number(view, binding), store_key(low), first=first)
    found = iter_changes(view, binding, first)
    return (c for c in found if low <= whole_key(c[2]) and (high is None or whole_key(c[2]) < high))


def _is_whole(binding: Binding, ordered: bytes) -> bool:
    try:
        binding.codec.decode(ordered)
    except CheckpointError:
        return False
    return True


def _versions(
    stored_key: bytes, base: bytes | None, changes: list[NumberedChange], rows: RowReader, committed: _Clock
) -> Iterator[Version]:
    """The versions of one key; those of a list are told by what the list was."""
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

"""What happened to the rows of a table, batch by batch, and where to go on.

    token   (lineage, store, batch, number): everything up to that change was seen

A read with a token continues without loss or repetition as long as the changes after it are kept,
over restarts of the reader and builds of the replica.  A lineage is one run of the job as one chain
of replicas saw it.  A token of another lineage is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Any

import msgspec

from millpond.checkpoint.encoding import iter_elements
from millpond.errors import ReplicaError, RequestError
from millpond.replica.history.as_of import NumberedChange, check_kept, kept_of
from millpond.replica.history.delete_cause import Kind
from millpond.replica.history.keeper import Change
from millpond.replica.keys.codec import split_value
from millpond.replica.record import KeptRecord
from millpond.replica.replica import View
from millpond.replica.row_stamp import without_stamp
from millpond.tables.answer import Answer, Cut
from millpond.tables.scan.binding import Binding, iter_changes
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.open_read import OpenRead
from millpond.tables.scan.token import pack, unpack

_LAST = 0xFFFFFFFF
# A token tells runs of the job apart; a batch's number doesn't.
START_OVER = "Start over: take a token with changes(), read the table, and go on from that token after the batch of the read."
Values = dict[str, Any]
RowReader = Callable[[bytes, bytes | None], list[Values | None]]
"""(stored key, stored value) -> a row, or one for each element of a list; None if HAVING hides it"""


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """One row's change by one batch.

    kind:         insert, update; delete by the job's own code; expire by a watermark or a TTL;
                  remove if the cause is unknown
    batch:        the batch that made the change
    first_batch:  the same number; or, if older batches were gone before they could be read, the
                  first of these: the change then joins what all of them did
    old, new:     the row before and after, by column name; None if there was none
    final:        of `expire`, the row's last values, if they are known
    repaired:     whether the batch has no events, and repairs rows
    """

    kind: Kind
    batch: int
    first_batch: int
    old: Values | None
    new: Values | None
    final: Values | None = None
    repaired: bool = False

    @property
    def row(self) -> Values:
        """The row after the change, or its last values."""
        return self.new or self.final or self.old or {}


class Changes(list[RowChange], Answer):
    """Changes in order: by batch, within one by key.

    token:  continues after these changes
    more:   whether the limit cut off further changes
    """

    def __init__(self, changes: Iterable[RowChange], cut: Cut, *, token: str, more: bool) -> None:
        super().__init__(changes)
        self.cut = cut
        self.token = token
        self.more = more


class _Token(msgspec.Struct, frozen=True, array_like=True):
    lineage: str
    store: str
    batch: int
    number: int


def read_changes(read: OpenRead, since: str | int | None, limit: int | None, deadline: Deadline) -> Changes:
    """The changes after a token or a batch; from now on if `since` is None.

    limit:   at most so many, but the changes of one batch to one list stay together
    Raises:  READ_TOO_LONG, INVALID_TOKEN, HISTORY_GONE; NOT_UP_TO_BOUND if the batch is still to
             come.
    """
    view, cut, binding = read.view, read.cut, read.binding
    newest = view.record.batch
    if since is None:
        check_history(read)
        return Changes([], cut, token=_write(binding, newest, _LAST), more=False)
    first, place = _place_after(read, since)
    found: list[RowChange] = []
    reached = (newest, _LAST)
    more = False
    decode = _decoder(binding, kept_of(view.record, binding.table))
    for at, place_in_batch, change in deadline.watch(_until_cut(read, first, place)):
        if limit is not None and len(found) >= limit:
            more = True
            break
        found += decode(at, change)
        reached = (at, place_in_batch)
    return Changes(found, cut, token=_write(binding, *(reached if more else (newest, _LAST))), more=more)


def iter_row_changes(read: OpenRead, since: int) -> Iterator[RowChange]:
    """All changes after a batch, in order.  Raises HISTORY_GONE; NOT_UP_TO_BOUND if it is still to come."""
    first, place = _place_after(read, since)
    decode = _decoder(read.binding, kept_of(read.view.record, read.binding.table))
    for at, _, change in _until_cut(read, first, place):
        yield from decode(at, change)


def _until_cut(read: OpenRead, first: int, place: int) -> Iterator[NumberedChange]:
    """The changes from a place on, to the batch of the read: the history of an earlier view goes on after it."""
    newest = read.view.record.batch
    return takewhile(lambda change: change[0] <= newest, iter_changes(read.view, read.binding, first, place))


def check_history(read: OpenRead) -> int:
    """The first batch whose changes are kept.  Raises HISTORY_GONE if there is none."""
    table, first = read.binding.definition.table, kept_of(read.view.record, read.binding.table).history_from
    if first is None:
        raise ReplicaError(
            "HISTORY_GONE",
            f"No history of {table} is kept.",
            hint="Make the job's follower keep it: `millpond serve --history TABLE=…`, or millpond.open(…, retention=…).",
            table=table,
        )
    return first


def _place_after(read: OpenRead, since: str | int) -> tuple[int, int]:
    """The batch and number from which on changes weren't seen.  Raises as `read_changes`."""
    begin, view, binding = check_history(read), read.view, read.binding
    table, store, newest = binding.definition.table, binding.table, view.record.batch
    batch, number = (since, _LAST) if isinstance(since, int) else _parse(since, view, binding)
    try:
        # To go on inside a batch, its changes must be kept. The state before it need not be:
        # batches that are known as one have none.
        if number == _LAST or batch > newest:
            check_kept(view.record, store, batch, table=table)
        elif batch < begin:
            check_kept(view.record, store, batch - 1, table=table)
    except ReplicaError as gone:
        if gone.condition != "HISTORY_GONE":
            raise
        raise ReplicaError(
            "HISTORY_GONE",
            f"Changes of {table} after batch {batch} are no longer kept.",
            hint=START_OVER,
            **gone.context,
        ) from None
    return (batch + 1, 0) if number == _LAST else (batch, number + 1)


def _decoder(binding: Binding, kept: KeptRecord) -> Callable[[int, Change], Iterator[RowChange]]:
    firsts = {last: first for first, last in kept.collapsed}
    rows = row_reader(binding)

    def decode(batch: int, change: Change) -> Iterator[RowChange]:
        first = firsts.get(batch, batch)
        old, after = rows(change.key, change.old), rows(change.key, change.new)
        gone = change.kind not in ("insert", "update")
        for place in range(max(len(old), len(after), 1)):
            before = old[place] if place < len(old) else None
            now = after[place] if place < len(after) else None
            if before == now and not gone:
                continue  # an element that stayed, or a row that HAVING hides before and after
            if gone:
                if before is not None or now is not None:
                    yield RowChange(
                        kind=change.kind, batch=batch, first_batch=first, old=before, new=None, final=now, repaired=change.repaired
                    )
            else:
                kind: Kind = "insert" if before is None else "update" if now is not None else "delete"
                yield RowChange(kind=kind, batch=batch, first_batch=first, old=before, new=now, repaired=change.repaired)

    return decode


def row_reader(binding: Binding) -> RowReader:
    """A function that reads the rows of a table."""
    decode_key, decode_value, finish, many = binding.codec.decode, binding.decode_value, binding.finish, binding.many

    def read(stored_key: bytes, stored: bytes | None) -> list[Values | None]:
        if stored is None:
            return []
        ordered, row = split_value(stored_key, without_stamp(stored))
        key = decode_key(ordered)
        if many:
            return [finish((*key, i), decode_value(element)) for i, element in enumerate(iter_elements(row))]
        return [finish(key, decode_value(row))]

    return read


def token_after(token: str, batch: int) -> str:
    """The token of the place after a batch, of the same lineage and store as a token that a table gave."""
    given = unpack(token, _Token)
    assert given is not None, "a table gave it"
    return pack(_Token(given.lineage, given.store, batch, _LAST))


def is_of_changes(text: str, view: View) -> bool:
    """Whether a token is one of changes of this replica."""
    token = unpack(text, _Token)
    return token is not None and token.lineage == view.stores.lineage


def _write(binding: Binding, batch: int, number: int) -> str:
    return pack(_Token(binding.stores.lineage, binding.table, batch, number))


def _parse(text: str, view: View, binding: Binding) -> tuple[int, int]:
    table = binding.definition.table
    token = unpack(text, _Token)
    if token is None or token.store != binding.table:
        why = "it is damaged" if token is None else "it is of another table"
        raise RequestError(
            "INVALID_TOKEN",
            f"The token doesn't belong to changes of {table}: {why}.",
            hint="Give the token of an earlier answer, a batch's number, or nothing to begin now.",
            table=table,
        )
    if token.lineage != view.stores.lineage:
        raise ReplicaError(
            "HISTORY_GONE",
            f"The token is of another run of the job, or of a replica of {table} that no longer exists.",
            hint=START_OVER,
            table=table,
        )
    return token.batch, token.number

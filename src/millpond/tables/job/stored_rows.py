"""Rows of one shard as they are stored, for a router: it finishes those that lie on several shards.

Final values can't be merged: the parts of a row, and the buckets of a span, are merged by their
buffers.  So a shard gives bytes and order, and who asked computes the values, by the same code as
for a replica of all partitions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import structs

from millpond.errors import RequestError
from millpond.replica.history.as_of import kept_of
from millpond.replica.history.keeper import BATCHES, CHANGES, VERSIONS, batch_key, closed_table, number_key, split_version
from millpond.replica.keys.codec import MAX_KEY_BYTES
from millpond.replica.record import encode_record, encode_stores
from millpond.schema.definition.indexes import name_of
from millpond.tables.answer import Answer, Cut
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.reads import Reads
from millpond.tables.job.shards import check_same_shard
from millpond.tables.scan.binding import store_number
from millpond.tables.scan.deadline import Deadline
from millpond.tables.scan.key_range import Span
from millpond.tables.scan.open_read import OpenRead

_PAGE_BYTES = 4 << 20
_PAGE_ROWS = 4096
_BEFORE_ALL = -1
StoredRow = tuple[bytes, ...]
"""(stored key, stored row); by an index (entry, ordered key, stored row)"""
HISTORY = {"changes": CHANGES, "versions": VERSIONS, "positions": BATCHES}


class StoredFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to read stored rows of a table.

    record:     the replica's record, of this table alone, as `record.decode_record` reads it
    stores:     the table's store and its indexes, as `record.parse_stores` reads it
    shorter:    see `kept.shorter`
    judged_ms:  the time by which TTLs are judged
    first:      the first position that the replica has, its key and its record; None if it has none
    """

    record: bytes
    stores: bytes
    shorter: dict[str, int]
    judged_ms: int
    first: tuple[bytes, bytes] | None


class StoredSpan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which stored rows are meant.

    expired:  the expired rows that are kept, in place of those in the state
    history:  in place of rows: the table's changes in their order; versions, which are the changes in
              the order of their keys; or the positions of batches.  Keys are as in `history.keeper`,
              without the number of the store
    keys:     these alone, if they are there
    by:       the entries of the index by these columns
    low:      from here on
    high:     before this; None for no end
    reverse:  from the last one on
    limit:    at most so many
    """

    expired: bool = False
    history: Literal["changes", "versions", "positions"] | None = None
    keys: list[bytes] | None = None
    by: tuple[str, ...] | None = None
    low: bytes = b""
    high: bytes | None = None
    reverse: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class StoredRows(list[StoredRow], Answer):
    """Stored rows in their order.

    more:        whether there are further ones
    facts:       if they were asked for
    definition:  tells by which definition a server read them; empty without a server
    """

    def __init__(self, rows: Iterable[StoredRow], cut: Cut, *, more: bool, facts: StoredFacts | None, definition: str = "") -> None:
        super().__init__(rows)
        self.cut = cut
        self.more = more
        self.facts = facts
        self.definition = definition


class StoredReads(ABC):
    """The reads of a table as it is stored.  `Table` is the only subclass."""

    _reads: Reads

    @abstractmethod
    def begin(self, bounds: Bounds | None = None, *, is_checked: bool = False) -> OpenRead:
        """Begin a read, which the caller ends."""

    @abstractmethod
    def deadline(self) -> Deadline:
        """When a read that begins now must end."""

    def stored_rows(self, span: StoredSpan | None, *, facts: bool = False, bounds: Bounds | None = None) -> StoredRows:
        """A page of stored rows, and what is needed to read them.  For routers.

        span:    None for none
        Raises:  OTHER_SHARD, ONLY_A_SHARD; INVALID_REQUEST, NO_INDEX; DEFINITION_MISMATCH if some
                 are in an unknown part; as `scan`.
        """
        with self.begin(bounds, is_checked=True) as read:
            check_same_shard(read.view, read.binding, bounds)
            rows, more = ([], False) if span is None else _page(read, span, self.deadline())
            return StoredRows(rows, read.cut, more=more, facts=self._facts(read) if facts else None)

    def _facts(self, read: OpenRead) -> StoredFacts:
        record, stores, store = read.view.record, read.view.stores, read.binding.table
        read.stored()  # checks the parts
        of_this = structs.replace(
            stores,
            checkpoint="",
            stores=[each for each in stores.stores if each.id == store],
            unread=[],
            indexes={store: stores.indexes[store]} if store in stores.indexes else {},
        )
        has_buckets = read.binding.definition.resolutions is not None
        return StoredFacts(
            record=encode_record(structs.replace(record, offsets={}, kept={store: kept_of(record, store)})),
            stores=encode_stores(of_this),
            shorter=dict(self._reads.job.shorter.of(read.binding.definition)) if has_buckets else {},
            judged_ms=self._reads.clock_ms(record),
            first=next(iter(read.view.rows.iterate(BATCHES, batch_key(0))), None),
        )


def _page(read: OpenRead, span: StoredSpan, deadline: Deadline) -> tuple[list[StoredRow], bool]:
    """The first rows of a span, up to a number of rows and bytes, and whether there are more."""
    _check(span)
    if span.keys is not None and span.history is None:
        rows, table = read.view.rows, _table(read, span)
        return [(key, row) for key in span.keys if (row := rows.get(table, key)) is not None], False
    limit = min(span.limit or _PAGE_ROWS, _PAGE_ROWS)
    found: list[StoredRow] = []
    size = 0
    for each in islice(deadline.watch(_iterate(read, span)), limit + 1):
        if len(found) == limit or size > _PAGE_BYTES:
            return found, True
        found.append(each)
        size += sum(map(len, each))
    return found, False


def _check(span: StoredSpan) -> None:
    """Raise INVALID_REQUEST for what no replica stores."""
    keys = span.keys or ()
    ends = [] if span.by is not None else [end for end in (span.low, span.high) if end]
    if len(keys) > _PAGE_ROWS or not all(keys) or any(len(key) > MAX_KEY_BYTES for key in (*keys, *ends)):
        raise RequestError(
            "INVALID_REQUEST",
            f"A question for stored rows has over {_PAGE_ROWS} keys, an empty key, or one of over {MAX_KEY_BYTES} bytes.",
            hint="Only routers ask for stored rows; ask for rows at /tables/{table}/rows.",
        )


def _iterate(read: OpenRead, span: StoredSpan) -> Iterator[StoredRow]:
    if span.history is not None:
        return _history(read, span)
    if span.by is not None:
        return read.by_index(_index_span(read, span, span.by), reverse=span.reverse)
    rows, table = read.view.rows, _table(read, span)
    pairs: Iterator[Any] = rows.iterate_back(table, span.high) if span.reverse else rows.iterate(table, span.low)
    return pairs


def _history(read: OpenRead, span: StoredSpan) -> Iterator[StoredRow]:
    """The kept changes of the table, or the positions of all; a version's value is its change."""
    assert span.history is not None
    rows, number = read.view.rows, store_number(read.view, read.binding)
    if span.history == "positions":
        yield from rows.iterate(BATCHES, span.low)
        return
    store = number.to_bytes(2, "big")
    for key, value in rows.iterate(HISTORY[span.history], store + span.low):
        short = key[len(store) :]
        if not key.startswith(store) or (span.high is not None and short >= span.high):
            return
        if span.history == "versions":
            change = rows.get(CHANGES, number_key(number, *split_version(key)[1:]))
            assert change is not None
            yield short, change
        else:
            yield short, value


def _index_span(read: OpenRead, span: StoredSpan, by: tuple[str, ...]) -> Span:
    number = read.binding.indexes.get(by)
    if number is None:
        raise RequestError(
            "NO_INDEX",
            f"{read.binding.definition.table} has no index by {name_of(by)} here.",
            hint="Declare it with indexes=…, and ask again when it is built.",
            table=read.binding.definition.table,
        )
    return Span((span.low, _BEFORE_ALL), None if span.high is None else (span.high, _BEFORE_ALL), index=number)


def _table(read: OpenRead, span: StoredSpan) -> str:
    table = read.binding.table
    return closed_table(table) if span.expired else table

"""A table over the stored rows of all shards at one batch: what is merged by buffers is finished here.

`Table` reads a snapshot of a replica.  `ShardSnapshot` is one whose rows several servers have, so
that indexes, parts of rows and totals of buckets are read by the same code as in one replica.

1. Each shard gives the facts of its batch.  What they say of the table must be equal, and each page
   is read by the same definition.
2. A read asks all shards for a page of stored rows at once, and merges them by key.
3. The parts of a row lie on several shards, but each stored row on one.
4. History is that of all shards, from the batch on from which all have it.  Changes of a batch are
   numbered by each shard; here the numbers of all shards are made distinct.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from heapq import merge
from operator import itemgetter
from typing import Any

from msgspec import structs

from millpond.client.exchange import Exchange, not_a_server
from millpond.client.reads import Known, TableReads
from millpond.errors import ReplicaError
from millpond.replica.history.keeper import (
    BATCHES,
    CHANGES,
    VERSIONS,
    batch_key,
    closed_table,
    decode_change,
    number_key,
    split_number,
    split_version,
)
from millpond.replica.keys.codec import KeyCodec, is_cut, store_key
from millpond.replica.record import KeptRecord, ReplicaRecord, StoresRecord, decode_record, parse_stores
from millpond.replica.replica import NOTHING_NEWER, View
from millpond.router.common_batch import ShardCut, combined
from millpond.router.servers import Servers
from millpond.schema.definition.table import TableDefinition
from millpond.settings import ReplicaSettings
from millpond.tables.answer import Cut, Rows
from millpond.tables.finish.merge_rows import store_parts
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.reads import JobReads, Reads
from millpond.tables.job.stored_rows import StoredRow, StoredRows, StoredSpan
from millpond.tables.kept.shorter import Shorter, ShorterFile
from millpond.tables.scan.keys import given_keys
from millpond.tables.table import Table

# Rows of a shard's first page; each next one has several times as many.
_FIRST_ROWS, _TIMES, _MOST_ROWS = 32, 4, 4096
_MOST_KEYS = 1000
_key = itemgetter(0)
# A shard has the same store under another number, so its keys come without.
_STORE = b"\0\0"


class ShardSnapshot:
    """The stored rows of a table on all shards at one batch.  See `backends.base.Snapshot` and `StoredElsewhere`."""

    def __init__(
        self,
        cuts: Sequence[ShardCut],
        known: Known,
        servers: Servers,
        record: ReplicaRecord,
        stores: StoresRecord,
        first: tuple[bytes, bytes],
        shortest: ShardCut,
    ) -> None:
        """A snapshot of these cuts.

        first:     the position from which on all shards have them
        shortest:  the cut whose history begins last
        """
        self.shortest = shortest
        self._cuts, self._servers = cuts, servers
        self._name, self._digest = known.definition.table, known.digest
        self._record, self._store = record, stores.stores[0].id
        self._parts = store_parts(known.definition, stores.stores[0])
        self._indexes = [each.columns for each in stores.indexes.get(self._store, ())]
        self._first = first
        self._got: dict[tuple[str, bytes], bytes | None] = {}
        self._positions: dict[bytes, bytes] = {}
        self._changes: dict[bytes, bytes] = {}

    def reader(self) -> ShardSnapshot:
        """The same for one read: several may go on at the same time."""
        other = copy(self)
        other._changes = {}
        return other

    @property
    def is_earlier(self) -> bool:
        """Whether it is of a batch before the newest, as its history shows it."""
        return any(at.is_earlier for at in self._cuts)

    def __enter__(self) -> ShardSnapshot:
        return self

    def __exit__(self, *error: object) -> None:
        """The cuts end by themselves."""

    def record(self) -> ReplicaRecord:
        return self._record

    def get(self, table: str, key: bytes) -> bytes | None:
        if table == CHANGES:  # of a version that was just read
            return self._changes.pop(key, None)
        if table == BATCHES:
            return self._position(key)
        place = table, key
        if place not in self._got:
            self._fetch(table, self._siblings(key))
        return self._got[place]

    def expect(self, keys: Sequence[bytes]) -> None:
        """Get the rows of these ordered keys at once, which lie in parts; `get` then knows them."""
        parts = self._parts
        if parts is not None:
            self._fetch(self._store, [store_key(parts.join(n, key)) for key in keys for n in range(len(parts.prefixes))])

    def _siblings(self, key: bytes) -> list[bytes]:
        """The keys of the same row in all parts, if the key says them."""
        parts = self._parts
        if parts is None or is_cut(key):
            return [key]
        _, rest = parts.split(key)
        return list({key: None, **{store_key(parts.join(n, rest)): None for n in range(len(parts.prefixes))}})

    def _fetch(self, table: str, keys: Sequence[bytes]) -> None:
        expired = self._is_expired(table)
        for begin in range(0, len(keys), _MOST_KEYS):
            some = list(keys[begin : begin + _MOST_KEYS])
            pages = self._ask(StoredSpan(expired=expired, keys=some))
            self._got |= dict.fromkeys(((table, key) for key in some), None)
            self._got |= {(table, key): value for page in pages for key, value in page}

    def iterate(self, table: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        if table == BATCHES:
            return self._iter_positions(start)
        if table == CHANGES:
            return self._iter_changes(start)
        if table == VERSIONS:
            return self._iter_versions(start)
        return self._rows(StoredSpan(expired=self._is_expired(table), low=start))

    def iterate_back(self, table: str, below: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._rows(StoredSpan(expired=self._is_expired(table), high=below, reverse=True))

    def by_index(self, number: int, low: bytes, high: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
        return self._rows(StoredSpan(by=self._indexes[number], low=low, high=high, reverse=reverse))

    def count(self, table: str) -> int:
        return sum(1 for _ in self.iterate(table, b""))

    def _is_expired(self, table: str) -> bool:
        assert table in (self._store, closed_table(self._store)), "a router reads rows alone"
        return table != self._store

    def _ask(self, span: StoredSpan) -> list[StoredRows]:
        return self._servers.each(lambda at: self._one(at, span), self._cuts)

    def _one(self, at: ShardCut, span: StoredSpan) -> StoredRows:
        page = at.ask(self._name, lambda reads: reads.stored_rows(span, bounds=at.bounds))
        if page.definition != self._digest:
            raise differ(self._name, "the definition")
        return page

    def _rows(self, span: StoredSpan) -> Iterator[Any]:  # 2
        return merge(*self._streams(span), key=_key, reverse=span.reverse)

    def _streams(self, span: StoredSpan) -> list[Iterator[StoredRow]]:
        """The rows of each shard."""
        firsts = self._ask(structs.replace(span, limit=_FIRST_ROWS))
        return [self._stream(at, span, first) for at, first in zip(self._cuts, firsts, strict=True)]

    # ------------------------------------------------------------ history  # 4

    def _iter_changes(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """By batch, then by stored key."""
        store, batch, number = split_number(start)
        assert not number, "a read begins at a batch"

        def numbered(shard: int, rows: Iterator[StoredRow]) -> Iterator[tuple[Any, tuple[bytes, bytes]]]:
            for key, value in rows:
                _, of, count = split_number(_STORE + key)
                yield (of, decode_change(value).key), (number_key(store, of, self._distinct(shard, count)), value)

        streams = self._streams(StoredSpan(history="changes", low=number_key(store, batch)[len(_STORE) :]))
        return (pair for _, pair in merge(*(numbered(*each) for each in enumerate(streams)), key=_key))

    def _iter_versions(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """By key, then by batch.  The change of a version can be got once, after it."""
        store = int.from_bytes(start[: len(_STORE)], "big")

        def numbered(shard: int, rows: Iterator[StoredRow]) -> Iterator[tuple[bytes, bytes, bytes]]:
            for key, value in rows:
                prefix, batch, count = split_version(key)
                place = number_key(store, batch, self._distinct(shard, count))
                yield start[: len(_STORE)] + prefix + place[len(_STORE) :], place, value

        streams = self._streams(StoredSpan(history="versions", low=start[len(_STORE) :]))
        for key, place, value in merge(*(numbered(*each) for each in enumerate(streams)), key=_key):
            self._changes = {place: value}
            yield key, b""

    def _distinct(self, shard: int, number: int) -> int:
        return number * len(self._cuts) + shard

    def _iter_positions(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All shards have the same, from the first on that all have."""
        if start <= self._first[0]:
            yield self._first
            start = self._first[0] + b"\0"
        span = StoredSpan(history="positions", low=start)
        first = self._one(self._cuts[0], structs.replace(span, limit=_FIRST_ROWS))
        for row in self._stream(self._cuts[0], span, first):
            yield row[0], row[1]

    def _position(self, key: bytes) -> bytes | None:
        if key not in self._positions:
            span = StoredSpan(history="positions", low=key, limit=_MOST_ROWS)
            self._positions |= {row[0]: row[1] for row in self._one(self._cuts[0], span)}
        return self._positions.get(key)

    def _stream(self, at: ShardCut, span: StoredSpan, page: StoredRows) -> Iterator[StoredRow]:
        """The rows of one shard, page by page."""
        limit = _FIRST_ROWS
        while True:
            yield from page
            if not page.more:
                return
            limit = min(_TIMES * limit, _MOST_ROWS)
            last = page[-1][0]
            span = structs.replace(span, limit=limit, **({"high": last} if span.reverse else {"low": last + b"\0"}))
            page = self._one(at, span)


class ShardReads(Reads):
    """A job as one table reads it of all shards, always at one batch."""

    def __init__(self, cut: Cut, snapshot: ShardSnapshot, stores: StoresRecord, shorter: Shorter, judged_ms: int) -> None:
        self.job = _ShardJob(cut, shorter)
        self._cut, self._snapshot, self._stores, self._judged_ms = cut, snapshot, stores, judged_ms

    def open(self, bounds: Bounds | None = None) -> tuple[View, Cut]:  # noqa: ARG002 - the batch meets them
        """A view of that batch."""
        return View(self._snapshot.reader(), self._snapshot.record(), self._stores, NOTHING_NEWER, ""), self._cut

    def clock_ms(self, record: ReplicaRecord) -> int:  # noqa: ARG002 - of one batch
        """As of the shard that judges last."""
        return self._judged_ms


class _ShardJob(JobReads):
    """What a table asks of its job besides views."""

    def __init__(self, cut: Cut, shorter: Shorter) -> None:
        """It has no folder and no replica, so the job's own reads can't be used."""
        self.job = self
        self.settings = ReplicaSettings()
        self.shorter = _KnownShorter(shorter)
        self._cut = cut

    @property
    def name(self) -> str:
        return self._cut.job

    def cut(self, view: View) -> Cut:  # noqa: ARG002 - of one batch
        return self._cut

    def keep(self, view: View) -> None:
        """The servers keep the batch."""
        view.close()


class _KnownShorter(ShorterFile):
    """What the servers say that is in their file."""

    def __init__(self, shorter: Shorter) -> None:
        self._shorter = shorter

    def of(self, definition: TableDefinition) -> Shorter:  # noqa: ARG002 - it is of one table
        return self._shorter


class StoredTable(Table):
    """A table that reads stored rows of all shards.

    given:  its definition as the servers gave it
    """

    _snapshot: ShardSnapshot

    @property
    def shortest(self) -> ShardCut:
        """The shard whose history begins last."""
        return self._snapshot.shortest

    def __init__(self, definition: TableDefinition, reads: ShardReads) -> None:
        super().__init__(definition, reads)
        self.given = definition

    def read_from(self, reads: ShardReads, snapshot: ShardSnapshot) -> StoredTable:
        """The same table at another batch."""
        other = self.read_by(reads)
        other._snapshot = snapshot
        return other

    def get_all(self, keys: Iterable[Any], *, bounds: Bounds | None = None) -> Rows:
        """As `Table.get_all`; asks for all rows at once."""
        wanted = given_keys(keys)
        rows = [self._keys.row(self._keys.stored(self._keys.given(key))) for key in wanted]
        encode, many = KeyCodec(self.definition.key_schema).encode, self.definition.many
        self._snapshot.expect([encode(row[:-1] if many else row) for row in rows if row is not None])
        return super().get_all(wanted, bounds=bounds)


def open_table(
    known: Known, cuts: Sequence[ShardCut], pages: Sequence[StoredRows], servers: Servers, before: StoredTable | None
) -> StoredTable:
    """A table that reads the stored rows of these cuts.

    pages:   the answer of each to `ask_facts`
    before:  the table at an earlier batch, which knows how to read rows of the same definition
    Raises:  NO_COMMON_BATCH if the shards disagree on the table; NOT_A_SERVER if one has another
             version of Millpond.
    """
    name, definition = known.definition.table, known.definition
    facts = [page.facts for page in pages if page.facts is not None]
    if len(facts) < len(cuts):
        raise not_a_server("it says nothing of its rows")
    if any(page.definition != known.digest for page in pages):
        raise differ(name, "the definition")
    stores = _one_store(name, tuple(each.stores for each in facts))
    if any(each.shorter != facts[0].shorter for each in facts):
        raise differ(name, "how long buckets are shown")
    records = [decode_record(each.record) for each in facts]
    store = stores.stores[0].id
    kept = [record.kept.get(store, KeptRecord()) for record in records]
    record = structs.replace(records[0], offsets=cuts[0].cut.position.offsets, kept={store: _kept_by_all(kept)})
    first = max((each.first for each in facts if each.first is not None), default=(batch_key(record.batch), facts[0].record))
    shortest, _ = max(zip(cuts, kept, strict=True), key=lambda each: _begun(each[1]))
    snapshot = ShardSnapshot(cuts, known, servers, record, stores, first, shortest)
    reads = ShardReads(combined([at.cut for at in cuts]), snapshot, stores, facts[0].shorter, max(each.judged_ms for each in facts))
    table = before if before is not None and before.given is definition else StoredTable(definition, reads)
    return table.read_from(reads, snapshot)


def ask_facts(reads: TableReads, at: ShardCut) -> Exchange[StoredRows]:
    """What a shard says of its batch."""
    return reads.stored_rows(None, facts=True, bounds=at.bounds)


def _begun(kept: KeptRecord) -> float:
    """The batch with which history begins; without history, after all batches."""
    return math.inf if kept.history_from is None else kept.history_from


def _kept_by_all(each: Sequence[KeptRecord]) -> KeptRecord:
    """What all shards have kept of a table."""
    forgotten = max((kept.closed_forgotten for kept in each if kept.closed_forgotten is not None), default=None)
    begun = [kept.history_from for kept in each]
    first = None if None in begun else max(batch for batch in begun if batch is not None)
    if first is not None and any(kept.collapsed != each[0].collapsed for kept in each):
        # A change of several batches on one shard is one of each batch on another.
        first = max(first, *(end + 1 for kept in each for _, end in kept.collapsed))
    collapsed = () if first is None else tuple(span for span in each[0].collapsed if span[1] >= first)
    return KeptRecord(closed_forgotten=forgotten, history_from=first, collapsed=collapsed)


@lru_cache(maxsize=64)
def _one_store(name: str, texts: tuple[bytes, ...]) -> StoresRecord:  # 1
    """The store that all shards have, with the indexes that all have; of equal texts the same object."""
    each = [stores for text in texts if (stores := parse_stores(text)) is not None and len(stores.stores) == 1]
    if len(each) < len(texts):
        raise not_a_server("its replica has another format")
    first = each[0].stores[0]
    if any(stores.stores[0] != first for stores in each):
        raise differ(name, "the columns of its state")
    of = [stores.indexes.get(first.id, ()) for stores in each]
    indexes = tuple(index for index in of[0] if all(index in there for there in of))
    return structs.replace(each[0], shard="", lineage="", indexes={first.id: indexes} if indexes else {})


def differ(name: str, what: str) -> ReplicaError:
    """The servers don't agree on a table."""
    return ReplicaError(
        "NO_COMMON_BATCH",
        f"The servers differ in {what} of {name}.",
        hint="Wait until all have read the new one.",
        table=name,
        definitions_differ=True,
    )

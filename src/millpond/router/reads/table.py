"""A table whose rows several servers have: the reads of a table, each of one batch.

1. A row by its key is asked of the server that has its partition.
2. Other reads ask all shards at one batch.  Rows come in the order of the whole table.
3. If a server lost that batch, or has other partitions now, the read begins again, for some
   seconds.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

import msgspec

from millpond.errors import MillpondError, RequestError
from millpond.router.common_batch import ShardCut, combined
from millpond.router.reads.asking import MOVED, check_bounds, is_one, order_of
from millpond.router.reads.events import ShardedEvents
from millpond.router.reads.past import ShardedPast
from millpond.router.shard_map import TableMap
from millpond.tables.answer import Count, Row, Rows
from millpond.tables.buckets.answer import Series, Total
from millpond.tables.by_value.reads import By, parse_by
from millpond.tables.history.reads import check_limit
from millpond.tables.job.bounds import Bounds
from millpond.tables.scan.keys import Key, given_keys
from millpond.tables.scan.token import pack, unpack
from millpond.wire.questions import AsOf

# Errors of a server that kept the batch of a page.
_LOST = MOVED | {"SERVER_UNAVAILABLE", "REPLICA_BUILDING"}
Result = TypeVar("Result")
Options = dict[str, Any]


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a merged page goes on in one shard.

    cut:    None for a batch of its history
    taken:  rows of the page that begins at `page` that were returned
    """

    shard: str
    url: str
    cut: str | None
    page: str | None
    taken: int


class _Token(msgspec.Struct, frozen=True, array_like=True):
    """Where a page goes on.

    stored:  if stored rows are read, the token of the page, which is of all shards
    """

    question: bytes
    places: tuple[_Place, ...]
    stored: str | None = None


@dataclass(slots=True)
class _Stream:
    """The rows of one shard, page by page.

    page:   the token of the page that is read, None for the first
    taken:  its rows that were taken
    """

    at: ShardCut
    page: str | None = None
    taken: int = 0


class ShardedTable(ShardedPast, ShardedEvents):
    """A table of several servers; its reads are those of `millpond.Table`."""

    # ------------------------------------------------------------ by key

    def get(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Row:
        """As `Table.get`: of the server that has the row's partition, and of its newest batch."""
        return self._again(bounds, lambda of: self._get(of, key, columns, bounds))

    def _get(self, of: TableMap, key: Any, columns: Key, bounds: Bounds | None) -> Row:
        known = self._known()
        given = known.keys.given(key, columns)
        if self._is_in_parts(of, known):
            return self._finished(of, bounds, lambda table: table.get(given))
        owner = self._owner(of, known, given)
        if owner is not None:
            try:
                return self._one(of, owner, bounds, lambda reads, within: reads.get(given, bounds=within))
            except RequestError as error:
                if error.condition != "ONLY_A_SHARD":
                    raise
        return self._get_anywhere(of, given, bounds)

    def _get_anywhere(self, of: TableMap, key: Key, bounds: Bounds | None) -> Row:
        """A row whose partition isn't known."""
        cuts = self._cuts(of, of.shards, bounds)
        answers = self._of_cuts(cuts, lambda reads, at: reads.get(key, bounds=at.bounds))
        found = [row for row in answers if row]
        if len(found) > 1:
            raise RequestError(
                "KEY_MISSING",
                f"Several windows of {self._name} begin there.",
                hint="Name the end of the window too, or scan.",
                table=self._name,
            )
        if found:
            return found[0]
        evicted = {row.evicted for row in answers}
        return Row((), combined([at.cut for at in cuts]), evicted=None if None in evicted else True in evicted)

    def get_all(self, keys: Iterable[Any], *, bounds: Bounds | None = None) -> Rows:
        """As `Table.get_all`."""
        wanted = given_keys(keys)
        return self._again(bounds, lambda of: self._get_all(of, wanted, bounds))

    def _get_all(self, of: TableMap, keys: Sequence[Any], bounds: Bounds | None) -> Rows:
        known = self._known()
        given = [known.keys.given(key) for key in keys]
        if self._is_in_parts(of, known):
            return self._finished(of, bounds, lambda table: table.get_all(given))
        owners = [self._owner(of, known, key) for key in given]
        involved = list(dict.fromkeys(owner for owner in owners if owner is not None))
        if None not in owners and len(involved) <= 1:
            shard = involved[0] if involved else of.shards[0]
            return self._one(of, shard, bounds, lambda reads, within: reads.get_all(given, bounds=within))
        cuts = self._cuts(of, of.shards if None in owners else involved, bounds)
        places = {at.shard: [n for n, owner in enumerate(owners) if owner in (at.shard, None)] for at in cuts}
        answers = self._of_cuts(cuts, lambda reads, at: reads.get_all([given[n] for n in places[at.shard]], bounds=at.bounds))
        rows: dict[int, Row] = {}
        for at, answer in zip(cuts, answers, strict=True):
            for place, row in zip(places[at.shard], answer, strict=True):
                if row or place not in rows:
                    rows[place] = row
        return Rows([rows[place] for place in range(len(given))], combined([at.cut for at in cuts]))

    # ------------------------------------------------------------ all shards

    def scan(
        self,
        key: Any = None,
        /,
        *,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Rows:
        """As `Table.scan`."""
        return self._pages("scan", {}, key, columns, limit, reverse, token, bounds)

    def range(
        self,
        key: Any = None,
        /,
        *,
        start: Key | None = None,
        end: Key | None = None,
        by: By | None = None,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Rows:
        """As `Table.range`."""
        span = {"start": start, "end": end, "by": None if by is None else parse_by(by)}
        return self._pages("range", span, key, columns, limit, reverse, token, bounds)

    def top(
        self,
        by: By,
        /,
        limit: int | None = 10,
        *,
        key: Any = None,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Rows:
        """As `Table.top`."""
        return self.range(key, by=by, limit=limit, reverse=True, token=token, bounds=bounds, **columns)

    def windows(
        self,
        key: Any = None,
        /,
        *,
        since: dt.datetime | str | None = None,
        until: dt.datetime | str | None = None,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Rows:
        """As `Table.windows`."""
        return self._pages("windows", {"since": since, "until": until}, key, columns, limit, reverse, token, bounds)

    def count(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Count:
        """As `Table.count`."""

        def count(of: TableMap) -> Count:
            known = self._known()
            given = known.keys.given(key, columns)
            if self._is_in_parts(of, known):
                return self._finished(of, bounds, lambda table: table.count(given))
            cuts = self._cuts(of, of.shards, bounds)
            counts = self._of_cuts(cuts, lambda reads, at: reads.count(given, bounds=at.bounds))
            return Count(sum(counts), combined([at.cut for at in cuts]))

        return self._again(bounds, count)

    def to_arrow(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Any:
        """As `Table.to_arrow`."""
        from millpond.tables.forms import arrow

        arrow.pyarrow()
        rows = self.scan(key, bounds=bounds, **columns)
        return arrow.to_arrow(self.definition, rows)

    def total(
        self,
        key: Any = None,
        /,
        *,
        since: dt.datetime | str | None = None,
        until: dt.datetime | str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Total:
        """As `Table.total`."""

        def total(of: TableMap) -> Total:
            span: Options = {"since": since, "until": until, **columns}
            if is_one(of):
                return self._one(of, of.shards[0], bounds, lambda reads, within: reads.total(key, bounds=within, **span))
            return self._finished(of, bounds, lambda table: table.total(key, **span))

        return self._again(bounds, total)

    def series(
        self,
        key: Any = None,
        /,
        *,
        step: str,
        since: dt.datetime | str | None = None,
        until: dt.datetime | str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Series:
        """As `Table.series`."""

        def series(of: TableMap) -> Series:
            span: Options = {"step": step, "since": since, "until": until, **columns}
            if is_one(of):
                return self._one(of, of.shards[0], bounds, lambda reads, within: reads.series(key, bounds=within, **span))
            return self._finished(of, bounds, lambda table: table.series(key, **span))

        return self._again(bounds, series)

    def _pages(
        self,
        method: str,
        span: Options,
        key: Any,
        columns: Key,
        limit: int | None,
        reverse: bool,
        token: str | None,
        bounds: Bounds | None,
    ) -> Rows:
        """A page of a method of `Table` and `TableReads`, which these arguments tell which rows are meant."""
        check_limit(limit)

        def read(of: TableMap) -> Rows:
            known = self._known()
            given = known.keys.given(key, columns)
            asked = self._name, self._as_of, method, span, given, reverse
            digest = hashlib.blake2b(repr(asked).encode(), digest_size=12).digest()
            if token is not None:
                streams, stored = self._placed(token, digest)
            else:
                streams, stored = [_Stream(at) for at in self._cuts(of, of.shards, bounds)], None

            def page(table: Any, options: Options) -> Any:
                return getattr(table, method)(given, **span, **options)

            if not is_one(of) and (span.get("by") is not None or known.definition.parts is not None):
                return self._stored_page(streams, digest, page, {"limit": limit, "reverse": reverse, "token": stored})
            return self._merged(streams, digest, page, limit, reverse=reverse)

        if token is None:
            return self._again(bounds, read)
        check_bounds(bounds)
        try:
            return read(self._map.table(self._name))
        except MillpondError as error:
            if error.condition not in _LOST:
                raise
            raise self._expired() from error

    def _placed(self, token: str, digest: bytes) -> tuple[list[_Stream], str | None]:
        """Where each shard goes on, or the token for stored rows.  Raises INVALID_TOKEN; TOKEN_EXPIRED if a server is gone."""
        known = unpack(token, _Token)
        if known is None or known.question != digest:
            raise RequestError(
                "INVALID_TOKEN",
                "This isn't the token of a page of this question: it is damaged, or of another table, question or direction.",
                hint="Give the token of the page before with the same question.",
                table=self._name,
            )
        found = []
        for place in known.places:
            shard = next((s for s in self._map.table(self._name).shards if s.shard == place.shard), None)
            server = None if shard is None else next((s for s in shard.servers if s.url == place.url), None)
            if shard is None or server is None:
                raise self._expired()
            as_of = self._as_of if place.cut is None else AsOf(cut=place.cut, closed=self._as_of.closed)
            cut = server.run(server.table(self._name).as_of(as_of).get_all(())).cut
            found.append(_Stream(ShardCut(shard, server, cut, as_of), place.page, place.taken))
        return found, known.stored

    def _expired(self) -> RequestError:
        return RequestError(
            "TOKEN_EXPIRED",
            f"The batch of this scan of {self._name} can no longer be read of all shards.",
            hint="Begin again without a token; ask for pages sooner, or for larger ones.",
            table=self._name,
        )

    def _merged(
        self,
        streams: list[_Stream],
        digest: bytes,
        page: Callable[[Any, Options], Any],
        limit: int | None,
        *,
        reverse: bool,
    ) -> Rows:
        """The rows of all streams in the order of the table, up to the limit."""
        most = self._servers.settings.client.page_rows
        size = most if limit is None else min(limit + 1, most)

        def read(stream: _Stream, token: str | None) -> Rows:
            options: Options = {
                "limit": size,
                "reverse": reverse,
                "token": token,
                "bounds": stream.at.bounds if token is None else None,
            }
            found: Rows = stream.at.ask(self._name, lambda reads: page(reads, options))
            return found

        firsts: list[Rows] = self._servers.each(lambda stream: read(stream, stream.page), streams)
        known = self._learn([stream.at for stream in streams])
        order = order_of(known)

        def rows(stream: _Stream, found: Rows) -> Iterator[tuple[Any, _Stream, Row]]:
            skipped = stream.taken
            while True:
                for row in found[skipped:]:
                    yield order(row), stream, row
                if not found.more:
                    return
                skipped = max(0, skipped - len(found))  # this page may be shorter than the one before was
                stream.page, stream.taken = found.token, skipped
                found = read(stream, found.token)

        taken: list[Row] = []
        more = False
        merged = merge(*map(rows, streams, firsts), key=lambda each: each[0], reverse=reverse)
        for _, stream, row in islice(merged, None if limit is None else limit + 1):
            if limit is not None and len(taken) == limit:
                more = True
                break
            taken.append(row)
            stream.taken += 1
        if self._learn([stream.at for stream in streams]) is not known:
            raise self._differ()  # a later page is of a newer definition
        cut = combined([stream.at.cut for stream in streams])
        return Rows(taken, cut, more=more, token=pack(_Token(digest, _places(streams))) if more else None)

    def _stored_page(self, streams: list[_Stream], digest: bytes, page: Callable[[Any, Options], Any], options: Options) -> Rows:
        rows: Rows = self._of_stored([stream.at for stream in streams], lambda table: page(table, options))
        if rows.token is not None:
            rows.token = pack(_Token(digest, _places(streams), rows.token))
        return rows


def _places(streams: Iterable[_Stream]) -> tuple[_Place, ...]:
    return tuple(_Place(s.at.shard.shard, s.at.server.url, s.at.as_of.cut, s.page, s.taken) for s in streams)

"""The changes of all shards as one list, in the order of one replica: by batch, then by key.

    token   (table, job, batch, key, and for each shard a server and its own token)

1. The changes up to one batch that all shards have are merged.
2. A token names the last change that was seen.  For each shard it has a token of a server, which
   that server gave for a place at or before it: a lineage is one server's, so that no other server
   can go on from there.
3. What lies before the last change that was seen is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any

import msgspec
from msgspec import structs

from millpond.client.reads import Known
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.replica.keys.codec import store_key
from millpond.router.common_batch import ShardCut, combined
from millpond.router.reads.asking import ShardedReads, is_one, order_of
from millpond.router.shard_map import ShardServers, TableMap
from millpond.tables.history.changes import START_OVER, Changes, RowChange, token_after
from millpond.tables.history.reads import check_limit
from millpond.tables.job.bounds import Bounds
from millpond.tables.scan.token import pack, unpack

# A server refuses to wait for longer than its settings allow.
_WAIT_SECONDS = 5.0
Place = tuple[int, bytes | None]
"""a batch, and the stored key of a change in it; None after all of them"""


class _At(msgspec.Struct, frozen=True, array_like=True):
    """Where the changes of one shard go on."""

    shard: str
    url: str
    since: str


class _Token(msgspec.Struct, frozen=True, array_like=True):
    table: str
    job: str
    batch: int
    key: bytes | None
    shards: tuple[_At, ...]


@dataclass(slots=True)
class _Stream:
    """The changes of one shard, page by page.

    since:  where the page that is read begins
    """

    at: ShardCut
    since: str | int | None


class ShardedChanges(ShardedReads):
    """The changes of a table of several servers."""

    def changes(
        self,
        since: str | int | None = None,
        *,
        limit: int | None = None,
        wait_seconds: float = 0.0,
        bounds: Bounds | None = None,
    ) -> Changes:
        """As `Table.changes`.

        A token is of one server of each shard: another copy can't go on from it.

        Raises:  as `Table.changes`; SERVER_UNAVAILABLE if such a server is gone.
        """
        check_limit(limit)
        ends = time.monotonic() + wait_seconds
        found = self._again(bounds, lambda of: self._changes(of, since, limit, bounds))
        while self._as_of.is_newest and not found and (left := ends - time.monotonic()) > 0:
            token = found.token
            newer = structs.replace(bounds or Bounds(), min_batch=found.batch + 1, wait_seconds=min(left, _WAIT_SECONDS))
            try:
                found = self._again(newer, lambda of, token=token, newer=newer: self._changes(of, token, limit, newer))  # type: ignore[misc]
            except MillpondError as error:
                if error.condition != "NOT_UP_TO_BOUND":
                    raise
        return found

    def _changes(self, of: TableMap, since: str | int | None, limit: int | None, bounds: Bounds | None) -> Changes:
        if not self._as_of.is_newest and self._as_of.cut is None:
            raise RequestError(
                "INVALID_REQUEST",
                f"The changes of {self._name} are read up to the newest batch, and this is the table as of an earlier one.",
                hint="Leave out the batch and the time; `history` takes `until`.",
                table=self._name,
            )
        if is_one(of):
            return self._one(of, of.shards[0], bounds, lambda reads, within: reads.changes(since, limit=limit, bounds=within))
        if self._known().definition.parts is not None:
            raise RequestError(
                "INVALID_REQUEST",
                f"The changes of {self._name}, whose rows lie in parts on several shards, can't be read together.",
                hint="Read them from a server that follows all partitions.",
                table=self._name,
            )
        streams, seen = self._begin(of, since, bounds)
        return self._merge(of, streams, seen, limit)

    def _begin(self, of: TableMap, since: str | int | None, bounds: Bounds | None) -> tuple[list[_Stream], Place | None]:
        """Where each shard goes on, and the last change that was seen; None to begin with the newest batch.

        Raises:  INVALID_TOKEN; HISTORY_GONE if the servers are others now.
        """
        if not isinstance(since, str):
            seen = None if since is None else (since, None)
            within = bounds if since is None else structs.replace(bounds or Bounds(), min_batch=_later(bounds, since))
            return [_Stream(at, since) for at in self._cuts(of, of.shards, within)], seen
        token = unpack(since, _Token)
        if token is None or token.table != self._name:
            why = "it is damaged" if token is None else "it is of another table"
            raise RequestError(
                "INVALID_TOKEN",
                f"The token doesn't belong to changes of {self._name}: {why}.",
                hint="Give the token of an earlier answer, a batch's number, or nothing to begin now.",
                table=self._name,
            )
        if token.job != of.job_id:
            raise self._gone("The token is of another run of the job.")
        places = {each.shard: each for each in token.shards}
        if places.keys() != {shard.shard for shard in of.shards}:
            raise self._gone("The token is of other shards than there are now.")
        shards = [self._narrowed(shard, places[shard.shard].url) for shard in of.shards]
        within = structs.replace(bounds or Bounds(), min_batch=_later(bounds, token.batch))
        cuts = self._cuts(of, shards, within)
        return [_Stream(at, places[at.shard.shard].since) for at in cuts], (token.batch, token.key)

    def _narrowed(self, shard: ShardServers, url: str) -> ShardServers:
        """The shard, of this server alone."""
        servers = tuple(server for server in shard.servers if server.url == url)
        if not servers:
            raise self._gone(f"The token is of the server {url}, which has no part of the table now.")
        return ShardServers(shard.shard, shard.partitions, servers)

    def _merge(self, of: TableMap, streams: Sequence[_Stream], seen: Place | None, limit: int | None) -> Changes:
        most = self._servers.settings.client.page_rows
        size = most if limit is None else min(limit + 1, most)

        def read(stream: _Stream) -> Changes:
            at = stream.at
            return at.ask(self._name, lambda reads: reads.changes(stream.since, limit=size, bounds=at.bounds))

        firsts: list[Changes] = self._servers.each(read, streams)
        for stream, first in zip(streams, firsts, strict=True):
            if isinstance(stream.since, int):  # a number is of any lineage
                stream.since = token_after(first.token, stream.since)
        known = self._learn([stream.at for stream in streams])
        cut = combined([stream.at.cut for stream in streams])
        place_of = _place_of(known)

        def unseen(stream: _Stream, page: Changes) -> Iterator[tuple[tuple[int, bytes], RowChange]]:
            while True:
                for change in page:
                    place = place_of(change)
                    if not _is_seen(place, seen):
                        self._check_whole(change, seen)
                        yield place, change
                stream.since = page.token
                if not page.more:
                    return
                page = read(stream)

        found: list[RowChange] = []
        last: Place = (cut.position.batch, None)
        more = False
        for place, change in merge(*map(unseen, streams, firsts), key=lambda each: each[0]):
            if limit is not None and len(found) >= limit and place != last:
                more = True
                break
            found.append(change)
            last = place
        if self._learn([stream.at for stream in streams]) is not known:
            raise self._differ()
        batch, key = last if more else (cut.position.batch, None)
        # A stream is at the page of its next change, as all of the pages before have been taken.
        shards = tuple(_At(s.at.shard.shard, s.at.server.url, str(s.since)) for s in streams)
        return Changes(found, cut, token=pack(_Token(self._name, of.job_id, batch, key, shards)), more=more)

    def _check_whole(self, change: RowChange, seen: Place | None) -> None:
        """Raise HISTORY_GONE for a change that joins what was seen with what wasn't."""
        if seen is not None and change.first_batch <= seen[0] < change.batch:
            raise self._gone(f"Changes of {self._name} after batch {seen[0]} are no longer kept.")

    def _gone(self, what: str) -> ReplicaError:
        return ReplicaError("HISTORY_GONE", what, hint=START_OVER, table=self._name)


def _later(bounds: Bounds | None, batch: int) -> int:
    return max(batch, (bounds.min_batch if bounds is not None else None) or 0)


def _is_seen(place: tuple[int, bytes], seen: Place | None) -> bool:
    if seen is None:
        return False
    batch, key = seen
    return place[0] < batch or (place[0] == batch and (key is None or place[1] <= key))


def _place_of(known: Known) -> Callable[[RowChange], tuple[int, bytes]]:
    """A function from a change to its place: by batch, then as a replica sorts keys; a list has one place."""
    order, many = order_of(known), known.definition.many

    def place(change: RowChange) -> tuple[int, bytes]:
        key: Any = order(change.row)
        return change.batch, store_key(key[0] if many else key)

    return place

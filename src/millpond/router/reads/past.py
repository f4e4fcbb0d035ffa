"""Other states of a table of several servers than the newest: earlier batches, cuts, versions of rows."""

from __future__ import annotations

import datetime as dt
from copy import copy
from typing import Any, Self

from msgspec import structs

from millpond.client.reads import time_text
from millpond.errors import RequestError
from millpond.router.common_batch import common_cuts, earlier_cuts
from millpond.router.kept_cut import keep_cuts
from millpond.router.reads.asking import is_one
from millpond.router.reads.changes import ShardedChanges
from millpond.router.shard_map import TableMap
from millpond.tables.answer import Cut
from millpond.tables.history.reads import check_limit, check_when
from millpond.tables.history.versions import Versions
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import CutToken
from millpond.tables.scan.keys import Key
from millpond.wire.questions import AsOf


class ShardedPast(ShardedChanges):
    """The reads of a table of several servers besides its newest rows."""

    def live(self) -> Self:
        """As `Table.live`."""
        return self._meant(structs.replace(self._as_of, closed=False))

    def with_closed(self) -> Self:
        """As `Table.with_closed`."""
        return self._meant(structs.replace(self._as_of, closed=True))

    def at(self, *, batch: int | None = None, time: dt.datetime | str | None = None, cut: str | None = None) -> Self:
        """As `Table.at`; the servers say at once whether they have that batch.

        Raises:  as `Table.at`; for a cut also CUT_EXPIRED.
        """
        check_when(batch, time, cut)
        as_of = AsOf(batch=batch, time=None if time is None else time_text(time), cut=cut, closed=self._as_of.closed)
        if cut is not None:
            other = self._meant(as_of)
            other._again(None, lambda of: other._cuts(of, of.shards, None))
            return other
        return self._meant(self._again(None, lambda of: self._confirmed(of, as_of)))

    def _confirmed(self, of: TableMap, as_of: AsOf) -> AsOf:
        """The state by a batch that all shards have.

        Of a batch that one shard knows together with later ones, another shard's position counts.
        """
        if as_of.batch is None:
            cuts = common_cuts(self._name, of, of.shards, None, self._servers)

            def newest(number: int) -> int:
                at = cuts[number]
                reads = at.server.table(self._name).as_of(as_of)
                return at.run(reads.get_all((), bounds=at.bounds)).batch

            by_then: list[int] = self._servers.each(newest, range(len(cuts)))
            as_of = structs.replace(as_of, batch=min(cuts[0].cut.position.batch, max(by_then)))
        else:
            # All have the newest batch, if one has it: servers that are behind come to it.
            common_cuts(self._name, of, of.shards, None, self._servers)
        earlier_cuts(self._name, as_of, of.shards, None, self._servers)
        return as_of

    def cut(self, *, bounds: Bounds | None = None) -> CutToken:
        """As `Table.cut`: the servers of all shards keep the batch readable.

        Raises:  as `Table.cut`; NO_COMMON_BATCH.
        """
        if not self._as_of.is_newest:
            raise RequestError(
                "INVALID_REQUEST",
                f"A cut is of the newest batch, and this is {self._name} as of an earlier one.",
                hint="Leave out the batch, the time and the cut.",
                table=self._name,
            )
        # Other tables of the job may lie in more shards.
        widest = self._map.widest(self._name)

        def keep(of: TableMap) -> CutToken:
            return keep_cuts(common_cuts(widest, of, of.shards, bounds, self._servers))

        return self._again(bounds, lambda of: keep(of if widest == self._name else self._map.table(widest)))

    def history(
        self,
        key: Any = None,
        /,
        *,
        start: Key | None = None,
        end: Key | None = None,
        since: int | dt.datetime | str | None = None,
        until: int | dt.datetime | str | None = None,
        limit: int | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Versions:
        """As `Table.history`, from the batch on from which all shards have history."""
        check_limit(limit)
        span: dict[str, Any] = {"start": start, "end": end, "since": since, "until": until, "limit": limit}

        def read(of: TableMap) -> Versions:
            known = self._known()
            given = known.keys.given(key, columns)
            one = of.shards[0] if is_one(of) else None
            is_whole = all(column.name in given for column in known.definition.key) and not start and not end
            if one is None and is_whole and not self._is_in_parts(of, known):
                one = self._owner(of, known, given)
            if one is None:
                return self._finished(of, bounds, lambda table: table.history(given, **span))
            return self._one(of, one, one.bounds(bounds), lambda reads, its: reads.history(given, **span, bounds=its))

        return self._again(bounds, read)

    def common_batch(self, bounds: Bounds | None) -> int:
        """The newest batch that all shards have.  Raises NOT_UP_TO_BOUND, …"""
        return self.common_cut(bounds).position.batch

    def common_cut(self, bounds: Bounds | None) -> Cut:
        """The same, as the first shard has it."""
        cuts = self._again(bounds, lambda of: common_cuts(self._name, of, of.shards, bounds, self._servers))
        return cuts[0].cut

    def _meant(self, as_of: AsOf) -> Self:
        """The same table in another state."""
        other = copy(self)
        other._as_of = as_of
        return other

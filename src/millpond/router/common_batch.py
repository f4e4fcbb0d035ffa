"""One batch that all shards of a table have, kept readable on a server of each.

1. Ask each shard for a cut of its newest batch.
2. Ask those behind the newest of these for that batch; a cut that is newer still begins this again.
3. The batches are one if the servers agree on the job, the batch's files in the checkpoint, and how
   many partitions there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec import structs

from millpond.client.exchange import Exchange
from millpond.client.reads import TableReads
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.router.servers import Server, Servers
from millpond.router.shard_map import ShardServers, TableMap, state_of
from millpond.tables.answer import Cut, Lag
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import CutToken
from millpond.wire.questions import AsOf


class OfCut(Protocol):
    """What names the batch that it was read from."""

    @property
    def cut(self) -> Cut:
        """Where it comes from."""


class LostHistory(ReplicaError):
    """HISTORY_GONE of one server: another copy of the shard may have that history.

    server:  which one
    """

    server: Server


AnswerOf = TypeVar("AnswerOf", bound=OfCut)
Result = TypeVar("Result")
_PAUSE_SECONDS = 0.02
# A server that is behind is asked again after so long: an answer that was lost on the way costs no more.
_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ShardCut:
    """A batch that a server of a shard can read.

    as_of:  which state of a table this is: a cut that the server keeps, or a batch of its history
    kept:   what the server said of the cut; None of a batch, or of a cut that was named
    """

    shard: ShardServers
    server: Server
    cut: Cut
    as_of: AsOf
    kept: CutToken | None = None

    @property
    def is_earlier(self) -> bool:
        """Whether it is a batch of the server's history."""
        return self.as_of.cut is None

    @property
    def bounds(self) -> Bounds | None:
        """The bound that reads this shard alone."""
        return self.shard.bounds()

    def reads(self, table: str) -> TableReads:
        """The reads of a table in this state."""
        return self.server.table(table).as_of(self.as_of)

    def ask(self, table: str, ask: Callable[[TableReads], Exchange[AnswerOf]]) -> AnswerOf:
        """The server's answer.  Raises JOB_REPLACED if it is of another run of the job; as `run`."""
        found = self.run(ask(self.reads(table)))
        check_same(table, self.cut, found.cut)
        return found

    def run(self, exchange: Exchange[Result]) -> Result:
        """The result of an exchange with the server.  Raises LostHistory in place of HISTORY_GONE; as `Server.run`."""
        with self.naming():
            return self.server.run(exchange)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Raise LostHistory, which names the server, in place of HISTORY_GONE."""
        try:
            yield
        except MillpondError as error:
            if error.condition != "HISTORY_GONE":
                raise
            lost = LostHistory(error.condition, error.message, hint=error.hint, **error.context)
            lost.server = self.server
            raise lost from None


def common_cuts(
    table: str,
    of: TableMap,
    shards: Sequence[ShardServers],
    bounds: Bounds | None,
    servers: Servers,
    closed: bool | None = None,
) -> list[ShardCut]:
    """A cut of each shard, all of one batch.

    of:      who has the table
    shards:  those of the map that are asked
    bounds:  that the batch must meet
    closed:  whether expired rows are read with them; None as the table says
    Raises:  NO_COMMON_BATCH if there is none in time; NOT_UP_TO_BOUND, …; OTHER_SHARD if the
             servers have other partitions now.
    """
    deadline = time.monotonic() + servers.settings.common_batch_seconds + (bounds.wait_seconds if bounds is not None else 0.0)
    wanted = bounds or Bounds()

    def begin(asked: tuple[ShardServers, Bounds]) -> tuple[Server, CutToken]:
        shard, within = asked

        def ask(server: Server) -> Exchange[CutToken]:
            return server.table(table).cut(bounds=shard.bounds(within))

        # Once the bound is met, a cut takes as little as a lookup does.  No server may hold up the rest
        # because it is out of reach or behind.
        return servers.ask(shard.servers, ask, hedge_seconds=servers.settings.hedge_seconds + wanted.wait_seconds)

    found: dict[ShardServers, tuple[Server, CutToken]] = {}
    behind, within, newest = list(shards), wanted, wanted.min_batch or 0
    while True:
        try:
            found.update(zip(behind, servers.each(begin, [(shard, within) for shard in behind]), strict=True))
        except ReplicaError as error:
            if error.condition != "NOT_UP_TO_BOUND" or within is wanted:
                raise
        else:
            newest = max(token.batch for _, token in found.values())
            behind = [shard for shard in shards if found[shard][1].batch < newest]
            if not behind:
                state = state_of(token.state for _, token in found.values())
                if state is not None:
                    if not of.is_of(state):
                        raise _moved(table)
                    return [
                        ShardCut(shard, server, token.cut, AsOf(cut=token.token, closed=closed), token)
                        for shard, (server, token) in found.items()
                    ]
                behind = list(shards)  # one of them sees another job at that place, or another number of partitions
                time.sleep(_PAUSE_SECONDS)
        left = deadline - time.monotonic()
        if left <= 0:
            raise _none(table, found)
        wait = max(min(left, _WAIT_SECONDS), wanted.wait_seconds)
        within = structs.replace(wanted, min_batch=newest, wait_seconds=wait)


def earlier_cuts(
    table: str, as_of: AsOf, shards: Sequence[ShardServers], bounds: Bounds | None, servers: Servers
) -> list[ShardCut]:
    """The same of a batch of the servers' history.

    Raises:  HISTORY_GONE, NOT_UP_TO_BOUND; JOB_REPLACED if they have that batch of different runs
             of the job.
    """

    def begin(shard: ShardServers) -> ShardCut:
        server, found = servers.ask(
            shard.servers,
            lambda server: server.table(table).as_of(as_of).get_all((), bounds=shard.bounds(bounds)),
            hedge_seconds=servers.settings.hedge_seconds,
        )
        return ShardCut(shard, server, found.cut, as_of)

    return all_same(table, servers.each(begin, shards))


def all_same(table: str, cuts: list[ShardCut]) -> list[ShardCut]:
    """These cuts of all shards.  Raises JOB_REPLACED unless they are of the same batch of the same run of a job."""
    for each in cuts[1:]:
        check_same(table, cuts[0].cut, each.cut)
    return cuts


def check_same(table: str, one: Cut, other: Cut) -> None:
    """Raise JOB_REPLACED unless two answers are of the same batch of the same run of a job."""
    if (one.job, one.position) != (other.job, other.position):
        raise ReplicaError(
            "JOB_REPLACED",
            f"The servers answer for {table} of different batches, or of different runs of its job.",
            hint="Ask again.",
            table=table,
        )


def _none(table: str, found: Mapping[ShardServers, tuple[Server, CutToken]]) -> ReplicaError:
    batches = {shard.shard or "all": token.batch for shard, (_, token) in found.items()}
    return ReplicaError(
        "NO_COMMON_BATCH",
        f"The shards of {table} didn't come to one batch: {batches}.",
        hint="Ask again; look at `millpond shards`, which says how far each server is.",
        table=table,
        batches=list(batches.values()),
    )


def _moved(table: str) -> RequestError:
    return RequestError(
        "OTHER_SHARD",
        f"The servers have other partitions of {table} now, or those of another job.",
        hint="Ask again; `millpond shards` says who has what.",
        table=table,
    )


def combined(cuts: Sequence[Cut]) -> Cut:
    """One cut for all of the same batch, as far behind as the one that is furthest behind."""
    lags = [cut.lag for cut in cuts]
    event_lags = [lag.event_lag_seconds for lag in lags if lag.event_lag_seconds is not None]
    lag = Lag(
        behind_batches=max(lag.behind_batches for lag in lags),
        behind_seconds=max(lag.behind_seconds for lag in lags),
        age_seconds=max(lag.age_seconds for lag in lags),
        age_from=lags[0].age_from,
        event_lag_seconds=max(event_lags, default=None),
    )
    return structs.replace(cuts[0], lag=lag, generation="")

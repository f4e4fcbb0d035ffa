"""What the servers of a router say at one time, and how far each table can be read by that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from millpond.errors import MillpondError
from millpond.router.servers import Requests, Server
from millpond.router.shard_map import ShardMap
from millpond.wire.shards import TableShard


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server.

    answers:   whether it has answered just now
    requests:  how many it was sent, and how they ended
    tables:    what it has of each; what it last said, if it doesn't answer
    """

    url: str
    answers: bool
    requests: Requests
    tables: tuple[TableShard, ...]


@dataclass(frozen=True, slots=True)
class RoutedTable:
    """How far one table can be read.

    batch:           the newest that a server of each shard has; None if a shard has no server that answers
    behind_seconds:  the lag of the shard that is furthest behind, whose best server counts; None as `batch`
    why:             why it is so far
    """

    name: str
    job: str
    batch: int | None
    behind_seconds: float | None
    why: str


@dataclass(frozen=True, slots=True)
class RouterState:
    """All servers, in the order in which they were named, and all tables, by name."""

    servers: tuple[ServerState, ...]
    tables: tuple[RoutedTable, ...]


def look(of: ShardMap) -> RouterState:
    """Ask all servers, and see what can be read.  A server that doesn't answer raises nothing: its state says so."""
    with suppress(MillpondError):
        of.look()
    rows = of.rows()
    there = [(server, tables) for server, tables in rows if server.error is None]
    jobs = {name: each.job for _, tables in rows for name, each in tables.items()}
    servers = [ServerState(s.url, s.error is None, replace(s.requests), tuple(tables.values())) for s, tables in rows]
    return RouterState(tuple(servers), tuple(_table(of, name, jobs[name], there) for name in sorted(jobs)))


def _table(of: ShardMap, name: str, job: str, there: Sequence[tuple[Server, Mapping[str, TableShard]]]) -> RoutedTable:
    """How far a table can be read.

    there:  the servers that answer, and what they say
    """
    said = {server: tables[name] for server, tables in there if name in tables}
    try:
        shards = of.said(name).shards
    except MillpondError as error:
        return RoutedTable(name, job, None, None, error.message.rstrip("."))
    batches, lags = [], []
    for shard in shards:
        text = f"the shard {shard.shard or 'all'} of {name}"
        parts = [said[server] for server in shard.servers if server in said]
        if not parts:
            return RoutedTable(name, job, None, None, f"no server of {text} answers")
        batches.append(max(part.batch for part in parts))
        lags.append((min(part.lag.behind_seconds for part in parts), text))
    seconds, text = max(lags)
    return RoutedTable(name, job, min(batches), seconds, f"{text} is {seconds:.1f} seconds behind")

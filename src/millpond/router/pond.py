"""The tables of several servers that each follow a shard, with the reads of a local pond."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from millpond.client.transport import Waiting
from millpond.errors import RequestError
from millpond.router.reads.table import ShardedTable
from millpond.router.servers import Server, Servers
from millpond.router.shard_map import ShardMap
from millpond.router.state import RouterState, look
from millpond.settings import RouterSettings
from millpond.tables.answer import Answer
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.cut_token import CutToken, cut_not_open
from millpond.tables.sql.answer import SqlAnswer
from millpond.tables.sql.end import SqlLimits
from millpond.tables.sql.subscribe import AnswerAt, NextBatch, Pause, SqlChanges, Step, run_steps, subscribe
from millpond.wire.shards import TableShard


def connect_shards(
    urls: Iterable[str], *, token: str | None = None, verify: Any = True, settings: RouterSettings | None = None
) -> ShardedPond:
    """The tables of several servers, of which each follows a shard of the same jobs.  This sends no request yet.

    Which server has what, the servers say.  Several may follow the same shard: another one is asked
    if the first doesn't answer, is slow, or is too far behind.

    urls:    of all servers
    token:   a token that `millpond token` made, for all of them
    verify:  as for `connect`
    Raises:  INVALID_REQUEST if an URL isn't one, or there is none.
    """
    given = list(dict.fromkeys(urls))
    if not given:
        raise RequestError("INVALID_REQUEST", "No server is named.", hint="Name the servers of all shards.")
    settings = settings or RouterSettings()
    once = replace(settings.client, tries=1)
    return ShardedPond(Servers([Server(Waiting(url, token, verify, once)) for url in given], settings))


class ShardedCut(Answer):
    """The tables of one job at one batch of all shards: a context manager, from `pond.cut`.

    The servers keep the batch for a minute at most; after that, reads raise CUT_EXPIRED.
    """

    def __init__(self, pond: ShardedPond, name: str, bounds: Bounds | None) -> None:
        self._pond, self._name, self._bounds = pond, name, bounds
        self._kept: CutToken | None = None

    def __enter__(self) -> Self:
        self._kept = self._pond[self._name].cut(bounds=self._bounds)
        self.cut = self._kept.cut
        return self

    def __exit__(self, *_error: object) -> None:
        self._kept = None

    @property
    def job(self) -> str:
        """The job's name."""
        return self.cut.job

    def __getitem__(self, name: str) -> ShardedTable:
        """A table of this job as of this batch.  Raises UNKNOWN_TABLE, OTHER_JOB, CUT_EXPIRED."""
        if self._kept is None:
            raise cut_not_open("pond")
        return self._pond[name].at(cut=self._kept.token)


class ShardedPond:
    """Tables by name: `pond["page_views"]`.  A context manager; `close` ends its connections."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._map = ShardMap(servers)
        self._tables: dict[str, ShardedTable] = {}

    def __getitem__(self, name: str) -> ShardedTable:
        """The table of that name.

        Raises:  UNKNOWN_TABLE; SHARDS_INCOMPLETE if no server has some of its partitions;
                 SERVER_UNAVAILABLE.
        """
        table = self._tables.get(name)
        if table is None:
            self._map.table(name)
            table = self._tables[name] = ShardedTable(name, self._map, self._servers)
        return table

    @property
    def settings(self) -> RouterSettings:
        """How the servers are asked."""
        return self._servers.settings

    def known(self, name: str) -> ShardedTable | None:
        """The table of that name, if it was asked for before; asks no server."""
        return self._tables.get(name)

    def tables(self) -> list[str]:
        """The names of all tables that a server has, sorted."""
        return self._map.names()

    def shards(self) -> list[tuple[str, Mapping[str, TableShard] | str]]:
        """By server's address, what it has of each table and how far it is; or why it doesn't answer."""
        self._map.look()
        return [
            (server.url, tables if server.error is None else f"[{server.error.condition}] {server.error.message}")
            for server, tables in self._map.rows()
        ]

    def sql(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        bounds: Bounds | None = None,
        limits: SqlLimits | None = None,
        separate: bool = False,
        at: int | str | None = None,
    ) -> SqlAnswer:
        """As `Pond.sql`, of batches that all shards have; DuckDB runs in this process.

        Raises:  as `Pond.sql`; INVALID_STATEMENT, without `separate`, for tables of several jobs.
        """
        from millpond.router.sql import run_sharded

        return run_sharded(self, statement, parameters, bounds=bounds, limits=limits or SqlLimits(), separate=separate, at=at)

    def subscribe(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        key: Sequence[str] | None = None,
        limits: SqlLimits | None = None,
    ) -> Iterator[SqlChanges]:
        """As `Pond.subscribe`, of batches that all shards have.  Raises as `sql`."""

        def do(step: Step) -> Any:
            match step:
                case AnswerAt():
                    return self.sql(statement, parameters, limits=limits, at=step.batch)
                case NextBatch():
                    return self[step.table].common_batch(Bounds(min_batch=step.batch, wait_seconds=step.seconds))
                case Pause():
                    return time.sleep(step.seconds)

        return run_steps(subscribe(key), do)

    def cut(self, name: str, *, bounds: Bounds | None = None) -> ShardedCut:
        """One batch of one job for several reads and tables.

            with pond.cut("page_views") as cut:
                cut["hosts"].get(host="example.org")

        name:    of one of the job's tables
        Raises:  on entering the context: as a table's reads.
        """
        return ShardedCut(self, name, bounds)

    def look(self) -> RouterState:
        """What all servers say now, and how far each table can be read by that."""
        return look(self._map)

    def ready(self, max_behind_seconds: float) -> tuple[bool, str]:
        """Whether each table can be read, and a server of each of its shards isn't further behind; if not, why."""
        state = self.look()
        for table in state.tables:
            if table.behind_seconds is None or table.behind_seconds > max_behind_seconds:
                return False, table.why
        return (True, "ready") if any(server.answers for server in state.servers) else (False, "no server answers")

    def __contains__(self, name: object) -> bool:
        return name in self.tables()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    def close(self) -> None:
        """Close the connections."""
        self._servers.close()

    def __enter__(self) -> ShardedPond:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ShardedPond {', '.join(server.url for server in self._servers.every)}>"

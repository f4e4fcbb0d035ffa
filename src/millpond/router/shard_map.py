"""Who has which partitions of a table: asked of all servers, and a set of shards that has each partition once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from millpond.client.exchange import Exchange, Retries, get, read_answer
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.router.servers import Server, Servers
from millpond.schema.prepared import ready
from millpond.schema.shard import parse_shard
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.shards import ShardState
from millpond.wire.shards import ShardsAnswer, TableShard

ALL = ""
"""the shard of a server that follows all partitions"""
# For so long a name without a table isn't asked for again.
_UNKNOWN_SECONDS, _MOST_UNKNOWN = 1.0, 1000


@dataclass(frozen=True, slots=True)
class ShardServers:
    """The servers of one shard.

    shard:       its text; `ALL` if it is no shard
    partitions:  that it has
    """

    shard: str
    partitions: frozenset[int]
    servers: tuple[Server, ...]

    def bounds(self, bounds: Bounds | None = None) -> Bounds | None:
        """These bounds for a read of this shard alone; None if it needs none."""
        if self.shard != ALL:
            return msgspec.structs.replace(bounds or Bounds(), shard=self.shard)
        return bounds and msgspec.structs.replace(bounds, shard=None)


@dataclass(frozen=True, slots=True)
class TableMap:
    """Who has a table.

    job_id, partitions, hashed:  see `ShardState`: what all these servers say
    shards:      together, they have each partition once
    """

    job_id: str
    partitions: int
    hashed: int | None
    shards: tuple[ShardServers, ...]

    def owner(self, partition: int) -> ShardServers:
        """The shard that has a partition."""
        return next(shard for shard in self.shards if partition in shard.partitions)

    def without(self, server: Server) -> TableMap | None:
        """The same without a server; None if it is the only one of a shard."""
        if any(shard.servers == (server,) for shard in self.shards):
            return None
        left = [replace(shard, servers=tuple(each for each in shard.servers if each is not server)) for shard in self.shards]
        return replace(self, shards=tuple(left))

    def is_of(self, state: ShardState) -> bool:
        """Whether a server that says this has the partitions that the map says."""
        return (state.job_id, state.partitions, state.hashed) == (self.job_id, self.partitions, self.hashed)


class ShardMap:
    """What all servers last said that they have.  Threads may share it."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._said: dict[Server, dict[str, TableShard]] = {}
        self._tables: dict[str, TableMap] = {}
        self._unknown: dict[str, tuple[float, RequestError]] = {}

    def table(self, name: str) -> TableMap:
        """Who has a table.

        Raises:  UNKNOWN_TABLE; REPLICA_BUILDING, … if a server can't say yet; SHARDS_INCOMPLETE if
                 nobody has some of the partitions; SERVER_UNAVAILABLE if no server answers.
        """
        found = self._tables.get(name)
        unknown = None if found is not None else self._unknown.get(name)
        if unknown is not None and time.monotonic() - unknown[0] < _UNKNOWN_SECONDS:
            raise unknown[1]
        retries = Retries(self._servers.settings.client)
        while found is None:
            self.look()
            try:
                if not any(name in tables for tables in self._said.values()):
                    self._ask_why(name)
                found = self._tables[name] = self.said(name)
            except ReplicaError:
                if (pause := retries.next_pause()) is None:
                    raise
                time.sleep(pause)  # a server that has just started may be building its replica
            except RequestError as error:
                if len(self._unknown) > _MOST_UNKNOWN:
                    self._unknown.clear()
                self._unknown[name] = time.monotonic(), error
                raise
        return found

    def known(self, name: str) -> TableMap | None:
        """Who has a table, if that is known; asks no server."""
        return self._tables.get(name)

    def widest(self, name: str) -> str:
        """A table of the same job that lies in the most shards.  Raises as `table`."""
        of = self.table(name)
        others = {other for tables in self._said.values() for other, each in tables.items() if each.state.job_id == of.job_id}
        return max([name, *sorted(others - {name})], key=lambda other: len(self.table(other).shards))

    def forget(self, name: str) -> None:
        """Ask the servers again at the next use: somebody has other partitions now."""
        self._tables.pop(name, None)

    def names(self) -> list[str]:
        """The names of all tables, sorted."""
        self.look()
        return sorted({name for tables in self._said.values() for name in tables})

    def rows(self) -> list[tuple[Server, Mapping[str, TableShard]]]:
        """What each server last said that it has; asks none.  One that doesn't answer now has an error."""
        return [(server, self._said.get(server, {})) for server in self._servers.every]

    def look(self) -> None:
        """Ask all servers.  Raises the error of one if none answers."""
        answers = self._servers.look(lambda _server: _shards())
        errors = []
        for server, answer in zip(self._servers.every, answers, strict=True):
            if isinstance(answer, MillpondError):
                server.error = answer
                errors.append(answer)
            else:
                server.error = None
                self._said[server] = answer
        if not self._said:
            raise errors[0]

    def _ask_why(self, name: str) -> None:
        """Raise the error of a server that can't say yet whether it has a table, such as REPLICA_BUILDING."""

        def why(server: Server) -> ReplicaError | None:
            try:
                server.run(server.table(name).get_all(()))
            except ReplicaError as error:
                return error
            except MillpondError:
                pass
            return None

        there = [server for server in self._servers.every if server.error is None]
        errors = self._servers.each(why, there) if there else []
        if (error := next(filter(None, errors), None)) is not None:
            raise error

    def said(self, name: str) -> TableMap:
        """Who has a table by what the servers last said; asks none.  Raises UNKNOWN_TABLE, SHARDS_INCOMPLETE."""
        said = {server: tables[name] for server, tables in self._said.items() if name in tables}
        if not said:
            known = ", ".join(sorted({table for tables in self._said.values() for table in tables})) or "none"
            raise RequestError("UNKNOWN_TABLE", f"No server has a table {name!r}.", hint=f"Their tables are: {known}.", table=name)
        # What a silent server said last counts only if the others haven't all partitions.
        live = {server: each for server, each in said.items() if server.error is None}
        for some in (live, said):
            for of in _candidates(some):
                if (cover := find_cover(of.shards, of.partitions)) is not None:
                    return replace(of, shards=tuple(cover))
        newest = next(_candidates(live or said))
        there = {p for shard in newest.shards for p in shard.partitions}
        missing = [p for p in range(newest.partitions) if p not in there]
        silent = [server.url for server in self._servers.every if server.error is not None]
        without = [server.url for server in self._servers.every if server.error is None and server not in said]
        what = f"has the partitions {_few(missing)}" if missing else "is the rest of the shards that overlap"
        raise ReplicaError(
            "SHARDS_INCOMPLETE",
            f"No server {what} of {name}, which has {newest.partitions}.",
            hint=(f"Start {', '.join(silent)}. " if silent else "")
            + (f"Wait for {', '.join(without)}, which may still build a replica. " if without else "")
            + "Name the servers of all shards.",
            table=name,
            partitions=newest.partitions,
            missing=missing[:100],
        )


def _candidates(said: Mapping[Server, TableShard]) -> Iterator[TableMap]:
    """Servers that agree on the job and its partitions, those with the newest batch first, with all their shards.

    While a job is rescaled or replaced, some servers still have what was before.
    """
    groups: dict[tuple[str, int, int | None], list[tuple[Server, TableShard]]] = {}
    for server, each in said.items():
        groups.setdefault((each.state.job_id, each.state.partitions, each.state.hashed), []).append((server, each))
    for (job_id, partitions, hashed), group in sorted(groups.items(), key=lambda item: -max(each.batch for _, each in item[1])):
        shards: dict[str, list[Server]] = {}
        for server, each in group:
            shards.setdefault(each.state.shard, []).append(server)
        of = tuple(ShardServers(text, _partitions(text, partitions), tuple(servers)) for text, servers in shards.items())
        yield TableMap(job_id, partitions, hashed, of)


def find_cover(shards: Sequence[ShardServers], partitions: int) -> list[ShardServers] | None:
    """Shards that have each partition exactly once, in the order of their partitions; those with more servers first.

    None if there are none.
    """
    ordered = sorted(shards, key=lambda shard: -len(shard.servers))

    def rest(covered: frozenset[int]) -> list[ShardServers] | None:
        wanted = next((p for p in range(partitions) if p not in covered), None)
        if wanted is None:
            return []
        for shard in ordered:
            if wanted in shard.partitions and not shard.partitions & covered:
                more = rest(covered | shard.partitions)
                if more is not None:
                    return [shard, *more]
        return None

    return rest(frozenset())


def state_of(states: Iterable[ShardState]) -> ShardState | None:
    """What several shards of one table and batch agree on; None if they don't: another job, batch or number of partitions."""
    found = {msgspec.structs.replace(state, shard=ALL) for state in states}
    return found.pop() if len(found) == 1 else None


def _shards() -> Exchange[dict[str, TableShard]]:
    """What a server has, by table; tables that can't be read are left out."""
    answer = read_answer((yield get("/shards")), ShardsAnswer)
    return {table["table"]: msgspec.convert(table, ready(TableShard)) for table in answer.tables if "state" in table}


def _partitions(shard: str, of: int) -> frozenset[int]:
    return frozenset(range(of) if shard == ALL else parse_shard(shard).partitions(of))


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (" …" if len(numbers) > 10 else "")

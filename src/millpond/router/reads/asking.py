"""How a table of several servers is asked.

Its owners are found, and all shards answer at one batch.  If they have moved on, the read begins again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from millpond.client.exchange import Exchange
from millpond.client.reads import STALE, Known, TableReads
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.replica.keys.codec import KeyCodec
from millpond.router.common_batch import LostHistory, OfCut, ShardCut, common_cuts, earlier_cuts
from millpond.router.kept_cut import cut_expired, named_cuts
from millpond.router.reads.stored import StoredTable, ask_facts, differ, open_table
from millpond.router.servers import Server, Servers, may_be_elsewhere
from millpond.router.shard_map import ALL, ShardMap, ShardServers, TableMap
from millpond.schema.definition.table import TableDefinition
from millpond.schema.murmur import partition_of
from millpond.tables.forms.html import columns_text
from millpond.tables.forms.protocols import ShownTable
from millpond.tables.job.bounds import Bounds
from millpond.tables.scan.keys import Key
from millpond.tables.table import Table
from millpond.wire.questions import AsOf

_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.01, 0.5
# A server that says that it hasn't a partition which it said to have is asked again for so long.
_SAME_SECONDS = 1.0
# Errors that another try won't mend, though another server may not have them.
_FINAL = frozenset({"NOT_UP_TO_BOUND", "READ_TOO_LONG", "HISTORY_GONE"})
# Errors after which a read begins again with what the servers have now.
MOVED = frozenset({"OTHER_SHARD", "CUT_EXPIRED", "TOKEN_EXPIRED", "JOB_REPLACED", "OTHER_JOB"})
Result = TypeVar("Result")
OneOf = TypeVar("OneOf", bound=OfCut)


class ShardedReads(ShownTable):
    """One table of several servers."""

    def __init__(self, name: str, shard_map: ShardMap, servers: Servers) -> None:
        self._name = name
        self._map = shard_map
        self._servers = servers
        self._as_of = AsOf()
        self._current: Known | None = None
        self._stored: StoredTable | None = None

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    @property
    def job(self) -> str:
        """The name of the job whose state this is; each use asks a server."""
        return self._first(lambda reads: reads.get_all(())).cut.job

    @property
    def definition(self) -> TableDefinition:
        """The table's definition, as the servers last named it."""
        return self.load().definition

    def load(self) -> Known:
        """The table's definition and how its keys are read, as the servers last named them."""
        return self._again(None, lambda _of: self._known())

    @property
    def columns(self) -> tuple[str, ...]:
        """All column names, key first."""
        return self.definition.columns

    @property
    def key_order(self) -> tuple[str, ...]:
        """The key columns in the order rows are sorted by."""
        return self._known().keys.order

    def _columns_text(self) -> str:
        return columns_text(self.definition)

    # ------------------------------------------------------------ asking

    def _again(self, bounds: Bounds | None, read: Callable[[TableMap], Result]) -> Result:
        """The result of a read, which begins again if the servers have moved on meanwhile."""
        check_bounds(bounds)
        began, pause, is_fresh, has_moved = time.monotonic(), _FIRST_PAUSE_SECONDS, False, False
        of = self._map.table(self._name)
        while True:
            try:
                return read(of)
            except MillpondError as error:
                passed = time.monotonic() - began
                if error.condition in STALE and not is_fresh:
                    self._forget_definition()
                    is_fresh = True
                    continue
                if isinstance(error, LostHistory) and (others := of.without(error.server)) not in (None, of):
                    of = others
                    continue
                if self._as_of.cut is not None and error.condition in MOVED | {"SERVER_UNAVAILABLE"}:
                    raise cut_expired(self._name) from error
                if not begins_again(error):
                    raise
                self._map.forget(self._name)
                before, of = of, self._map.table(self._name)
                patience = self._servers.settings.common_batch_seconds
                most = _SAME_SECONDS if error.condition == "OTHER_SHARD" and of == before else patience
                # A server that hangs may have taken all of the time.  Others that came meanwhile are asked once.
                if passed > most and (of == before or has_moved):
                    raise
                has_moved = has_moved or of != before
                time.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE_SECONDS)

    def _owner(self, of: TableMap, known: Known, given: Key) -> ShardServers | None:
        """The shard that has a key's partition; None if that isn't known."""
        if len(of.shards) == 1:
            return of.shards[0]
        key = known.keys.row(known.keys.stored(given))
        if key is None or of.hashed is None:
            return None
        return of.owner(partition_of(known.definition.key_fields[: of.hashed], key[: of.hashed], of.partitions))

    @property
    def known(self) -> Known | None:
        """The table's definition as a server last named it; None if none was asked."""
        return self._current

    def try_shard(self, known: Known, keys: Sequence[Key]) -> ShardServers | None:
        """The one shard that has all these keys; None if there isn't one, or it isn't known yet.  Asks no server.

        Raises:  as `Table.get`.
        """
        of = self._map.known(self._name)
        if of is None or self._is_in_parts(of, known):
            return None
        owners = {self._owner(of, known, known.keys.given(key)) for key in keys}
        return owners.pop() if len(owners) == 1 else None

    def _known(self) -> Known:
        """The table's definition, as a server last named it."""
        current = self._current
        return current or self._ask(self._map.table(self._name).shards[0], lambda reads: reads.load())

    def _learn(self, cuts: Sequence[ShardCut]) -> Known:
        """The definition by which all these servers gave rows.  Raises NO_COMMON_BATCH if there are two."""
        found = {known.digest: known for at in cuts if (known := at.server.table(self._name).known) is not None}
        if len(found) > 1:
            raise self._differ()
        known = next(iter(found.values())) if found else self._known()
        current = self._current
        if current is None or current.digest != known.digest:
            current = self._current = known
        return current

    def _differ(self) -> ReplicaError:
        return differ(self._name, "the definition")

    def _forget_definition(self) -> None:
        self._current = None
        for server in self._servers.every:
            server.table(self._name).forget()

    def _first(self, ask: Callable[[TableReads], Exchange[Result]]) -> Result:
        return self._again(None, lambda of: self._ask(of.shards[0], ask))

    def _ask(self, shard: ShardServers, ask: Callable[[TableReads], Exchange[Result]]) -> Result:
        """The answer of a server of a shard."""
        hedge = self._servers.settings.hedge_seconds
        server, found = self._servers.ask(shard.servers, lambda server: ask(self._reads_of(server)), hedge_seconds=hedge)
        known, current = server.table(self._name).known, self._current
        if known is not None and (current is None or current.digest != known.digest):
            self._current = known
        return found

    def _reads_of(self, server: Server) -> TableReads:
        """The reads of a server's newest batch."""
        reads, closed = server.table(self._name), self._as_of.closed
        return reads if closed is None else reads.as_of(AsOf(closed=closed))

    def _one(
        self,
        of: TableMap,
        shard: ShardServers,
        bounds: Bounds | None,
        ask: Callable[[TableReads, Bounds | None], Exchange[OneOf]],
    ) -> OneOf:
        """The answer of one shard, which has all that is asked for."""
        if self._as_of.is_newest:
            return self._ask(shard, lambda reads: ask(reads, bounds))
        return self._of_cuts(self._cuts(of, [shard], bounds), lambda reads, at: ask(reads, at.bounds))[0]

    def owners(self) -> TableMap:
        """Who has the table.  Raises as `ShardMap.table`."""
        return self._map.table(self._name)

    def forget_owners(self) -> None:
        """Ask the servers again who has it."""
        self._map.forget(self._name)

    def common_cuts(self, bounds: Bounds | None) -> list[ShardCut]:
        """A cut of each shard, all of one batch.  Raises NO_COMMON_BATCH; NOT_UP_TO_BOUND, …"""
        of = self.owners()
        return self._cuts(of, of.shards, bounds)

    def again(self, bounds: Bounds | None, read: Callable[[], Result]) -> Result:
        """The result of a read, which begins again if the servers have moved on meanwhile."""
        return self._again(bounds, lambda _of: read())

    def _cuts(self, of: TableMap, shards: Sequence[ShardServers], bounds: Bounds | None) -> list[ShardCut]:
        as_of = self._as_of
        if as_of.cut is not None:
            return named_cuts(self._name, as_of, shards, bounds, self._servers)
        if not as_of.is_newest:
            return earlier_cuts(self._name, as_of, shards, bounds, self._servers)
        return common_cuts(self._name, of, shards, bounds, self._servers, as_of.closed)

    def _of_cuts(self, cuts: Sequence[ShardCut], ask: Callable[[TableReads, ShardCut], Exchange[OneOf]]) -> list[OneOf]:
        """The answers of all cuts, at the same time."""
        answers: list[OneOf] = self._servers.each(lambda at: at.ask(self._name, lambda reads: ask(reads, at)), cuts)
        self._learn(cuts)
        return answers

    # ------------------------------------------------------------ stored rows, finished here

    def _is_in_parts(self, of: TableMap, known: Known) -> bool:
        """Whether the parts of a row may lie on several servers."""
        return known.definition.parts is not None and not is_one(of)

    def _finished(self, of: TableMap, bounds: Bounds | None, read: Callable[[Table], Result]) -> Result:
        """The result of a read of all shards' stored rows at one batch."""
        return self._of_stored(self._cuts(of, of.shards, bounds), read)

    def _of_stored(self, cuts: Sequence[ShardCut], read: Callable[[Table], Result]) -> Result:
        table, closed = self.stored_at(cuts), self._as_of.closed
        with table.shortest.naming():
            return read(table if closed is None else table.with_closed() if closed else table.live())

    def stored_at(self, cuts: Sequence[ShardCut]) -> StoredTable:
        """The table over the stored rows of these cuts.

        Raises:  NO_COMMON_BATCH if the servers disagree on the table.
        """
        pages = self._of_cuts(cuts, ask_facts)
        table = self._stored = open_table(self._learn(cuts), cuts, pages, self._servers, self._stored)
        return table


def begins_again(error: MillpondError) -> bool:
    """Whether a read that failed so may find another answer with what the servers have now."""
    if error.condition in MOVED or error.context.get("definitions_differ") is True:
        return True
    return error.condition not in _FINAL and may_be_elsewhere(error)


def is_one(of: TableMap) -> bool:
    """Whether one server has all rows."""
    return len(of.shards) == 1 and of.shards[0].shard == ALL


def check_bounds(bounds: Bounds | None) -> None:
    """Raise INVALID_REQUEST for the bound of one shard."""
    if bounds is not None and bounds.shard is not None:
        raise RequestError(
            "INVALID_REQUEST",
            "The bound `shard` is for one server; these reads combine all shards.",
            hint="Leave it out, or ask that server itself.",
        )


def order_of(known: Known) -> Callable[[Mapping[str, Any]], Any]:
    """A function from a row to what it is sorted by."""
    definition = known.definition
    encode, names = KeyCodec(definition.key_schema).encode, [column.name for column in definition.key]

    def order(row: Mapping[str, Any]) -> Any:
        key = known.keys.row(known.keys.stored({name: row[name] for name in names}))
        assert key is not None
        return (encode(key[:-1]), key[-1]) if definition.many else encode(key)

    return order

"""Servers that have the same rows: one is asked, the next one if it fails or is slow.

1. Those that failed a moment ago come last.
2. If a server hasn't answered after a while, the next one is asked as well; the first good answer
   counts.
3. An error that another server may not have is passed on only if no server answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millpond.client.exchange import Exchange, Retries, closed, may_pass, unavailable
from millpond.client.reads import TableReads
from millpond.client.transport import Waiting
from millpond.errors import MillpondError
from millpond.settings import RouterSettings

Thing = TypeVar("Thing")
Result = TypeVar("Result")
# Requests at the same time, for each server and in all.
_REQUESTS = 16
_MOST_REQUESTS = 256
_MOST_REST_SECONDS = 60.0
Ask = Callable[["Server"], Exchange[Result]]
# Besides errors that pass: those that depend on how far a server is, what it has kept, and what stands before it.
_ELSEWHERE = frozenset(
    {"NOT_UP_TO_BOUND", "NO_COMMITTED_BATCH", "REPLICA_BEHIND", "NOT_A_SERVER", "READ_TOO_LONG", "FOLLOWER_FAILED", "HISTORY_GONE"}
)


@dataclass(slots=True)
class Requests:
    """How many requests to one server ended how.

    answered:  with an answer that counts
    failed:    without an answer, or with one that it can't answer now
    overtaken: another server was asked as well, and answered first
    """

    answered: int = 0
    failed: int = 0
    overtaken: int = 0


@dataclass(slots=True, eq=False)
class Server:
    """A server that has a shard, or all.

    error:         why it didn't answer when it was last asked; None if it did
    resting_until: before that, others are asked first
    rests:         how often one after the other it failed or was slower than another server
    requests:      counts of the requests that it was sent
    """

    transport: Waiting
    error: MillpondError | None = None
    resting_until: float = 0.0
    rests: int = 0
    requests: Requests = field(default_factory=Requests)
    _tables: dict[str, TableReads] = field(default_factory=dict)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Its address."""
        return self.transport.url

    def table(self, name: str) -> TableReads:
        """The reads of a table, which know the definition that the server last named."""
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = TableReads(name, self.transport.settings)
        return found

    def _rest(self, seconds: float) -> None:
        """Ask others first for a while, and for longer each time."""
        self.rests += 1
        self.resting_until = time.monotonic() + min(_MOST_REST_SECONDS, seconds * 2 ** min(self.rests - 1, 10))

    def failed(self, error: MillpondError, rest_seconds: float) -> None:
        """It didn't answer."""
        with self._counting:
            self.requests.failed += 1
        self.error = error
        self._rest(rest_seconds)

    def overtaken(self, rest_seconds: float) -> None:
        """Another server answered first."""
        with self._counting:
            self.requests.overtaken += 1
        self._rest(rest_seconds)

    def answered(self, rests: int) -> None:
        """It answered a request.

        rests:  what `rests` was before; if it has grown, the server was too slow meanwhile
        """
        with self._counting:
            self.requests.answered += 1
        self.error = None
        if self.rests == rests:
            self.resting_until, self.rests = 0.0, 0

    def run(self, exchange: Exchange[Result]) -> Result:
        """The result of an exchange with it.  Raises what it answers; SERVER_UNAVAILABLE, …"""
        return self.transport.run(exchange)


def may_be_elsewhere(error: MillpondError) -> bool:
    """Whether another server may answer a question that one refused with this error."""
    return may_pass(error) or error.condition in _ELSEWHERE


def in_order(servers: Sequence[Server]) -> list[Server]:
    """Those that failed a moment ago come last."""
    now = time.monotonic()
    return sorted(servers, key=lambda server: server.resting_until if server.resting_until > now else 0.0)


class _Looks:
    """Looks at what a server has.  One runs at a time, and all who ask meanwhile share the next one.

    So a server that hangs takes one thread, however many ask, and one that doesn't isn't asked more often than it answers.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="millpond-look")
        self._lock = threading.Lock()
        self._next: Future[Any] | None = None

    def next(self, ask: Ask[Any]) -> Future[Any]:
        """The answer to a look that begins now or later, or its error as a result.  Raises REPLICA_CLOSED."""
        with self._lock:
            if self._next is None:
                try:
                    self._next = self._pool.submit(self._look, ask)
                except RuntimeError as error:  # the thread was ended
                    raise closed() from error
            return self._next

    def _look(self, ask: Ask[Any]) -> Any:
        with self._lock:
            self._next = None
        try:
            return self._server.run(ask(self._server))
        except MillpondError as error:
            return error

    def close(self) -> None:
        """End its thread; a look that waits for its turn finds the connection closed."""
        self._pool.shutdown(wait=False)


class Servers:
    """Asks one of several servers, or several at the same time.  Threads may share it.

    every:  all of them
    """

    def __init__(self, every: Sequence[Server], settings: RouterSettings) -> None:
        self.every = every
        self.settings = settings
        most = min(_MOST_REQUESTS, _REQUESTS * len(every))
        # Tasks of the first pool wait for those of the second.
        self._each = ThreadPoolExecutor(most, thread_name_prefix="millpond-shards")
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="millpond-ask")
        self._looks = [_Looks(server) for server in every]

    def each(self, do: Callable[[Thing], Result], things: Sequence[Thing]) -> list[Result]:
        """The results for each of several things, at the same time."""
        return [do(things[0])] if len(things) == 1 else list(self._each.map(do, things))

    def look(self, ask: Ask[Any]) -> list[Any | MillpondError]:
        """What all servers answer at the same time, in their order; SERVER_UNAVAILABLE of those that take too long.

        ask:     the same for all looks
        Raises:  REPLICA_CLOSED.
        """
        running = [looks.next(ask) for looks in self._looks]
        done, _ = wait(running, self.settings.look_seconds)
        late = unavailable(f"no answer within {self.settings.look_seconds:g} seconds")
        return [answer.result() if answer in done else late for answer in running]

    def ask(self, servers: Sequence[Server], ask: Ask[Result], *, hedge_seconds: float | None = None) -> tuple[Server, Result]:
        """The answer of one of the servers, and which it was.

        hedge_seconds:  after so long without an answer, ask another server as well; None: don't
        Raises:  what a server raises that the others would raise, too; the last server's error if
                 none answers within the client's tries.
        """
        retries = Retries(self.settings.client)
        while True:
            try:
                return self._round(servers, ask, hedge_seconds)
            except MillpondError as error:
                time.sleep(retries.pause(error))  # raises the error if it doesn't pass

    def _round(self, servers: Sequence[Server], ask: Ask[Result], hedge_seconds: float | None) -> tuple[Server, Result]:
        """Ask each server once at most."""
        if len(servers) == 1:
            return servers[0], self._one(servers[0], ask)
        waiting = in_order(servers)
        running: dict[Future[Result], Server] = {}
        problem: MillpondError | None = None
        while True:
            if waiting:
                server = waiting.pop(0)
                running[self._pool.submit(self._one, server, ask)] = server
            done, _ = wait(running, hedge_seconds if waiting else None, FIRST_COMPLETED)
            for each in done:
                server = running.pop(each)
                try:
                    found = each.result()
                    for slower in running.values():
                        slower.overtaken(self.settings.rest_seconds)
                    return server, found
                except MillpondError as error:
                    if not may_be_elsewhere(error):
                        raise
                    problem = error
            if not running and not waiting:
                assert problem is not None
                raise problem

    def _one(self, server: Server, ask: Ask[Result]) -> Result:
        rests = server.rests
        try:
            found = server.run(ask(server))
        except MillpondError as error:
            if may_pass(error):
                server.failed(error, self.settings.rest_seconds)
            raise
        server.answered(rests)
        return found

    def close(self) -> None:
        """Close the connections, and end its threads."""
        for pool in (self._each, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)
        for looks in self._looks:
            looks.close()
        for server in self.every:
            server.transport.close()

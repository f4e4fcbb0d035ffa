"""All connections of a process: accepted, limited, ended in time.

1. A new connection needs room, in all and for its client.  If there is none, the connection that
   has been idle for longest ends; if none is idle, the new one is refused.  So idle connections
   keep nobody out.
2. Twice per second the pool ends connections whose time is over, and checks whether unread answers
   take too much memory.
3. Answers of the hot route are sent together, after the loop has handled all ready requests: a
   client that wakes earlier would take the processor from the others.
4. At the end, running requests are answered, and no new ones are accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import ipaddress
import math
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from millpond.errors import RequestError
from millpond.logs import EventLog
from millpond.serve.connections.connection import Connection, Hot
from millpond.serve.connections.exchange import Exchange, error_answer
from millpond.settings import ServeSettings

if TYPE_CHECKING:
    pass

log = EventLog(__name__)
_SWEEP_SECONDS = 0.5
# The most answers that are sent together.
_MOST_TOGETHER = 256
# Open files that aren't connections: replicas, their locks, sockets of neighbours.
_SPARE_DESCRIPTORS = 256
# The errors of `accept` if the system has no connections left; other errors mean that the client
# has already left.
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SAY_AGAIN_SECONDS = 60.0
_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)  # Python has the name from 3.12 on
_NOTSENT_BYTES = 131_072
_OK = b"HTTP/1.1 200 OK\r\n"


class Connections:
    """The connections of one process.

    app, hot:  answer requests
    tls:       None without TLS
    count:     counts a refusal by its status
    date:      the header Date of answers, as a line
    """

    def __init__(
        self,
        app: ASGIApp,
        hot: Hot,
        settings: ServeSettings,
        *,
        tls: ssl.SSLContext | None = None,
        count: Callable[[int], object],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.hot = hot
        self.settings = settings
        self.scheme = "http" if tls is None else "https"
        self.is_draining = False
        self.refused = count
        self.date = b""
        self._begin = b""
        self._app = app
        self._tls = tls
        self._most = _room(settings.max_connections)
        self._connections: dict[Connection, None] = {}
        self._taken: Counter[str] = Counter()  # per client, with handshakes
        self._all = 0
        self._said_at = -math.inf
        self._written: list[tuple[asyncio.Transport, bytes]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: list[asyncio.Task[None]] = []
        self._set_date()

    def __len__(self) -> int:
        return self._all

    def start(self, listener: socket.socket) -> None:
        """Accept connections from a listening socket from here on."""
        listener.setblocking(False)
        steps = (partial(self._accept, listener), self._sweep)
        self._serving = [self.loop.create_task(_again_and_again(step)) for step in steps]

    def use(self, settings: ServeSettings) -> None:
        """Use these settings for new connections and requests."""
        self.settings = settings
        self._most = _room(settings.max_connections)

    def stop_taking(self) -> None:
        """Accept no more connections."""
        self.is_draining = True
        self._serving[0].cancel()

    async def close(self, seconds: float) -> None:
        """End all connections; running requests may take so long."""
        for connection in list(self._connections):
            connection.finish()
        deadline = self.loop.time() + seconds
        while (self._all or self._tasks) and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
        self._serving[1].cancel()
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)

    # ------------------------------------------------------------ taking

    async def _accept(self, listener: socket.socket) -> None:  # 1
        try:
            taken, address = await self.loop.sock_accept(listener)
        except OSError as problem:
            if problem.errno in _NONE_LEFT:
                self._say_untaken(problem)
                self._make_room(None)
                await asyncio.sleep(0.05)
            return
        with contextlib.suppress(OSError):  # its client may have left
            # Unsent bytes stay with us, where they are limited: the system would take 4 MiB of each
            # answer.
            taken.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, _NOTSENT_BYTES)
        client = client_of(address)
        if self._has_room(client):
            self._taken[client] += 1
            self._all += 1
            self._keep(self._take(taken, client))
        else:
            self._turn_away(taken)

    def _say_untaken(self, problem: OSError) -> None:
        now = self.loop.time()
        if now - self._said_at > _SAY_AGAIN_SECONDS:
            self._said_at = now
            log.warning("connection.untaken", message=problem.strerror)

    def _has_room(self, client: str) -> bool:
        settings = self.settings
        if self._taken[client] >= settings.max_connections_per_client and not self._make_room(client):
            return False
        return self._all < self._most or self._make_room(None)

    def _make_room(self, client: str | None) -> bool:
        """End some of the longest idle connections, of this client if given.

        Several at once, since to look at all takes time.
        """
        idle = [c for c in self._connections if c.is_idle and (client is None or c.client == client)]
        for connection in heapq.nsmallest(1 + len(idle) // 64, idle, key=lambda c: c.deadline):
            self._end(connection)
        return bool(idle)

    def _end(self, connection: Connection) -> None:
        self._connections.pop(connection, None)  # it counts until it has ended
        connection.abort()

    async def _take(self, taken: socket.socket, client: str) -> None:
        connection = Connection(self, client, taken)
        try:
            if self._tls is None:
                await self.loop.connect_accepted_socket(lambda: connection, taken)
            else:
                seconds = self.settings.header_seconds
                await self.loop.connect_accepted_socket(
                    lambda: connection, taken, ssl=self._tls, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=2.0
                )
        except (OSError, ssl.SSLError, TimeoutError):
            with contextlib.suppress(OSError):
                taken.close()  # its client has left, or doesn't use TLS
        finally:
            if not connection.was_opened:
                self._leave(client)

    def _turn_away(self, taken: socket.socket) -> None:
        self.refused(503)
        with taken, contextlib.suppress(OSError):
            if self._tls is None:
                error = RequestError(
                    "TOO_MANY_CONNECTIONS",
                    "The server has as many connections as it allows, in all or for this client.",
                    hint="Close some, or try again; the server's operator sets --max-connections.",
                )
                taken.send(error_answer(error, 503, self.date))

    def _leave(self, client: str) -> None:
        self._all -= 1
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]

    def opened(self, connection: Connection) -> None:
        """Called for a new connection."""
        self._connections[connection] = None
        if self.is_draining:
            connection.abort()

    def closed(self, connection: Connection) -> None:
        """Called for a connection that has ended."""
        self._connections.pop(connection, None)
        self._leave(connection.client)

    # ------------------------------------------------------------ ending in time

    async def _sweep(self) -> None:  # 2
        await asyncio.sleep(_SWEEP_SECONDS)
        self._set_date()
        now, unread = self.loop.time(), {}
        for connection in list(self._connections):
            if now > connection.deadline or connection.needs_a_look:
                connection.expire(now)
            if connection.stalled_at is not None and not connection.transport.is_closing():
                unread[connection] = connection.unread_bytes
        total = sum(unread.values())
        while total > self.settings.max_unread_bytes:
            worst = max(unread, key=unread.__getitem__)
            total -= unread.pop(worst)
            self._end(worst)

    def _set_date(self) -> None:
        self.date = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
        self._begin = _OK + self.date

    # ------------------------------------------------------------ answering

    def run(self, exchange: Exchange) -> asyncio.Task[None]:
        """Let the application answer."""
        return self._keep(exchange.run(self._app))

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def write_soon(self, connection: Connection, answer: bytes) -> None:  # 3
        """Send the answer of a hot route, with those of others."""
        written = self._written
        if not written:
            self.loop.call_soon(self.send)
        written.append((connection.transport, self._begin + answer))
        if len(written) == _MOST_TOGETHER:
            self.send()

    def send(self) -> None:
        """Pass the written answers to the system."""
        for transport, answer in self._written:
            if not transport.is_closing():
                transport.write(answer)
        self._written.clear()


async def _again_and_again(step: Callable[[], Awaitable[None]]) -> None:
    """Repeat a step for ever.

    A failed step is logged and the next one follows: without steps, no connection would be accepted
    or ended.
    """
    while True:
        try:
            await step()
        except Exception as mistake:  # noqa: BLE001 - answered, and the server goes on
            log.error("connections.failed", raised=mistake)
            await asyncio.sleep(_SWEEP_SECONDS)


def client_of(address: object) -> str:
    """The client of a connection, for limits: an address, or for IPv6 the /64 network of a household."""
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    if ":" not in host:
        return host
    known = ipaddress.IPv6Address(host.partition("%")[0])
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.IPv6Network((known, 64), strict=False)) if not known.is_loopback else host


def _room(wanted: int) -> int:
    """The number of possible connections, after asking the system to allow so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    least = max(8, soft - _SPARE_DESCRIPTORS if soft > 2 * _SPARE_DESCRIPTORS else soft // 2)
    log.warning("connections.few", open_files=soft, connections=least)
    return least

"""The connections of a door beside HTTP's: room for them, and the end of those that stand still.

1. A connection needs room, in all and for its client, as HTTP's do; if there is none, the one that
   has been idle for longest ends, or the new one is refused.
2. Twice a second, connections end that leave a message half sent, or replies unread, for too long;
   and those with the most unread replies, if all together are too many.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from typing import Generic, NamedTuple, Protocol, TypeVar

from millpond.settings import ServeSettings

_SWEEP_SECONDS = 0.5


class Listeners(NamedTuple):
    """A listening socket for each door of a process; None for a door that isn't opened."""

    http: socket.socket
    redis: socket.socket | None = None
    postgres: socket.socket | None = None
    flight: socket.socket | None = None

    def close(self) -> None:
        """Close them all."""
        for each in self:
            if each is not None:
                each.close()


class Connection(Protocol):
    """What a door needs of a connection.

    address:    of the client
    active_at:  when the client's last message was answered
    """

    address: str
    active_at: float

    @property
    def since(self) -> float | None:
        """When a part of a message came, or a reply was left unread; None for neither."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done for it."""

    @property
    def is_unread(self) -> bool:
        """Whether the client leaves replies unread."""

    @property
    def unread_bytes(self) -> int:
        """Of replies."""

    def finish(self) -> None:
        """End it as soon as its message is answered."""

    def abort(self) -> None:
        """End it at once."""


One = TypeVar("One", bound=Connection)


class DoorBeside(ABC, Generic[One]):
    """The connections of one process to one port."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_draining = False
        self._connections: dict[One, None] = {}
        self._of_client: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._server: asyncio.Server
        self._sweeping: asyncio.Task[None]

    def __len__(self) -> int:
        return len(self._connections)

    @property
    @abstractmethod
    def settings(self) -> ServeSettings:
        """As the HTTP door has them now."""

    @abstractmethod
    def connection(self) -> asyncio.Protocol:
        """A new connection."""

    def look_at(self, connection: One) -> None:
        """Called twice a second for each connection."""

    def end(self) -> None:
        """Called when the door ends, before the rest of its connections."""

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections from here on.

        tls:  for connections that begin with it
        """
        self._server = await self.loop.create_server(self.connection, sock=listener, ssl=tls)
        self._sweeping = self.loop.create_task(self._sweep())

    async def close(self, seconds: float) -> None:
        """Accept no more; what runs may take so long."""
        self.is_draining = True
        self._server.close()
        for connection in list(self._connections):
            connection.finish()
        deadline = self.loop.time() + seconds
        while self._connections and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
        self._sweeping.cancel()
        self.end()
        for connection in list(self._connections):
            connection.abort()

    def take_in(self, connection: One, address: str) -> int | None:
        """A number for a connection, if there is room for it."""
        settings = self.settings
        own = self._of_client[address] >= settings.max_connections_per_client
        if own or len(self._connections) >= settings.max_connections:
            idle = [c for c in self._connections if c.is_idle and (not own or c.address == address)]
            if not idle:
                return None
            longest = min(idle, key=lambda each: each.active_at)  # of several, the one that came first
            longest.finish()
            self.closed(longest)
        self._connections[connection] = None
        self._of_client[address] += 1
        return next(self._numbers)

    def closed(self, connection: One) -> None:
        """A connection has ended."""
        if connection in self._connections:
            del self._connections[connection]
            self._of_client[connection.address] -= 1
            self._of_client += Counter()  # without those that have none

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now, settings = self.loop.time(), self.settings
            for connection in list(self._connections):
                self.look_at(connection)
                if connection.since is not None:
                    most = settings.send_seconds if connection.is_unread else settings.body_seconds
                    if now - connection.since > most:
                        connection.abort()
            unread = sorted((c for c in self._connections if c.is_unread), key=lambda each: each.unread_bytes)
            size = sum(each.unread_bytes for each in unread)
            while unread and size > settings.max_unread_bytes:
                size -= unread[-1].unread_bytes
                unread.pop().abort()

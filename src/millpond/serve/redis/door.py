"""Answers Redis' protocol at a port of its own, beside the HTTP door of the same process."""

from __future__ import annotations

import asyncio
import socket
import ssl

from millpond.logs import EventLog
from millpond.serve.access.tokens import EVERYBODY
from millpond.serve.app import HttpDoor
from millpond.serve.connections.beside import DoorBeside
from millpond.serve.redis.commands import Client, RedisCommands
from millpond.serve.redis.connection import RedisConnection
from millpond.serve.redis.notices import Notices
from millpond.serve.redis.quick import QuickRows
from millpond.serve.redis.transaction import Transaction
from millpond.serve.redis.wire import Error, Reply
from millpond.serve.waiting.waits import Quota
from millpond.settings import ServeSettings

log = EventLog(__name__)


class RedisDoor(DoorBeside[RedisConnection]):
    """The connections of one process."""

    def __init__(self, door: HttpDoor) -> None:
        super().__init__()
        self.commands, self.quick = RedisCommands(door), QuickRows(door)
        self.notices = Notices(door)
        self._door = door

    @property
    def settings(self) -> ServeSettings:
        """See `DoorBeside`."""
        return self._door.settings

    def connection(self) -> asyncio.Protocol:
        """See `DoorBeside`."""
        return RedisConnection(self)

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """See `DoorBeside`."""
        self.commands.port = listener.getsockname()[1]
        await super().start(listener, tls)

    @property
    def streams(self) -> Quota:
        """How many connections may wait for messages, with HTTP's event streams."""
        return self._door.patience.streams

    def look_at(self, connection: RedisConnection) -> None:
        """See `DoorBeside`: those end that subscribe by a token that is no longer valid."""
        connection.look_at_token()

    def end(self) -> None:
        """See `DoorBeside`."""
        self.notices.close()

    def admit(self, connection: RedisConnection, address: str) -> Client | None:
        """A client, if there is room for it."""
        number = self.take_in(connection, address)
        if number is None:
            return None
        transaction = Transaction(self.settings.max_keys, self.settings.max_body_bytes)
        return Client(number, address, None if self._door.access.needs_token else EVERYBODY, transaction)

    def failed(self, error: BaseException) -> Reply:
        """The reply in place of an unexpected error."""
        log.error("redis.failed", message=f"{error!r:.200}", hint="Report this.")
        return Error("ERR INTERNAL_ERROR An unexpected error. Look at the server's log.")

    def counted(self, reply: Reply, seconds: float, client: Client) -> None:
        """Count one more command."""
        if isinstance(reply, Error):
            self._door.meter.count("redis", 400, seconds)
        else:
            self._door.meter.count("redis", 200, seconds, tables=client.tables)
        client.tables.clear()

    def counted_many(self, count: int, seconds: float, table: str) -> None:
        """Count so many more commands, which together took so long, and read one row of a table each."""
        self._door.meter.count("redis", 200, seconds / count, count, tables=(table,))

"""Answers PostgreSQL's protocol at a port of its own, beside the HTTP door of the same process.

A request to cancel a statement comes by a connection of its own, which any process of the server may
get.  The process's number in it says whose it is; the others hand it on by a Unix socket in the
folder that they share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import ssl
from pathlib import Path

from millpond.errors import MillpondError
from millpond.logs import EventLog
from millpond.serve.access.access import Access
from millpond.serve.app import HttpDoor
from millpond.serve.connections.beside import DoorBeside
from millpond.serve.metrics.counts import Meter
from millpond.serve.postgres.catalogue import Catalogue
from millpond.serve.postgres.connection import PostgresConnection
from millpond.serve.postgres.errors import PgError, state_of
from millpond.serve.postgres.quick import QuickLookups
from millpond.serve.postgres.run import Question, Run
from millpond.settings import ServeSettings

log = EventLog(__name__)
_SECRET_BYTES = 4


class PostgresDoor(DoorBeside[PostgresConnection]):
    """The connections of one process.

    tls:     for connections that ask for it; with it, others aren't answered
    shared:  the folder of the server's processes, None for one
    process: the number by which clients cancel statements
    """

    def __init__(self, door: HttpDoor, tls: ssl.SSLContext | None, shared: Path | None) -> None:
        super().__init__()
        self.tls, self.process = tls, os.getpid()
        self._door, self._shared = door, shared
        self._catalogue, self.quick = Catalogue(door), QuickLookups(door)
        self._secrets: dict[int, PostgresConnection] = {}
        self._cancels: socket.socket | None = None

    @property
    def settings(self) -> ServeSettings:
        """See `DoorBeside`."""
        return self._door.settings

    @property
    def access(self) -> Access:
        """Who may read."""
        return self._door.access

    @property
    def meter(self) -> Meter:
        """Where statements are counted."""
        return self._door.meter

    def connection(self) -> asyncio.Protocol:
        """See `DoorBeside`."""
        return PostgresConnection(self)

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """See `DoorBeside`; TLS begins only when a client asks for it."""
        assert tls is None
        if self._shared is not None:
            self._cancels = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._cancels.bind(str(self._place(self.process)))
            self.loop.add_reader(self._cancels.fileno(), self._cancel_here)
        await super().start(listener)

    async def close(self, seconds: float) -> None:
        """See `DoorBeside`."""
        await super().close(seconds)
        if self._cancels is not None:
            self.loop.remove_reader(self._cancels.fileno())
            self._cancels.close()
            self._place(self.process).unlink(missing_ok=True)

    def secret(self, connection: PostgresConnection) -> int:
        """A number that cancels the statements of a connection."""
        while (found := secrets.randbits(8 * _SECRET_BYTES)) in self._secrets:
            pass
        self._secrets[found] = connection
        return found

    def closed(self, connection: PostgresConnection) -> None:
        """See `DoorBeside`."""
        super().closed(connection)
        self._secrets.pop(connection.secret, None)

    def run(self, question: Question) -> Run:
        """A statement that hasn't begun."""
        return Run(self._door, self._catalogue, question)

    def cancel(self, process: int, secret: int) -> None:
        """Cancel the statement of a connection, of this process or another one."""
        if process == self.process:
            found = self._secrets.get(secret)
            if found is not None:
                found.cancel()
        elif self._shared is not None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
                other.sendto(secret.to_bytes(_SECRET_BYTES), str(self._place(process)))

    def failed(self, error: BaseException) -> PgError:
        """The error in place of an unexpected one."""
        log.error("postgres.failed", message=f"{error!r:.200}", hint="Report this.")
        return PgError("XX000", "An unexpected error.", hint="Look at the server's log.")

    def counted(self, error: BaseException | None, seconds: float, tables: tuple[str, ...]) -> None:
        """Count one more statement."""
        status = 200
        if error is not None:
            state = state_of(error) if isinstance(error, MillpondError) else getattr(error, "state", "XX000")
            status = 500 if state[:2] in ("XX", "58") else 400
        self._door.meter.count("postgres", status, seconds, tables=tables)

    def _place(self, process: int) -> Path:
        assert self._shared is not None
        return self._shared / f"cancel-{process}"

    def _cancel_here(self) -> None:
        assert self._cancels is not None
        with contextlib.suppress(BlockingIOError):
            self.cancel(self.process, int.from_bytes(self._cancels.recv(64)))

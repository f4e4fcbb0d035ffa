"""Answers Arrow Flight SQL at a port of its own, beside the HTTP door of the same process."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any

from millpond.errors import RequestError
from millpond.logs import EventLog
from millpond.serve.app import HttpDoor
from millpond.serve.connections.beside import DoorBeside
from millpond.serve.flight.call import Call
from millpond.serve.flight.connection import FlightConnection
from millpond.serve.flight.described import Descriptions
from millpond.serve.flight.server import start_server
from millpond.serve.flight.tickets import Signer
from millpond.settings import ServeSettings

log = EventLog(__name__)
_SERVER_SECONDS = 5.0


class FlightDoor(DoorBeside[FlightConnection]):
    """The connections of one process.

    shared:  the folder of the server's processes, None for one
    folder:  of Unix sockets, which only this user opens
    """

    def __init__(self, door: HttpDoor, shared: Path | None) -> None:
        super().__init__()
        self._door = door
        self.signer = Signer(shared)
        self.descriptions = Descriptions()
        self.folder = Path(tempfile.mkdtemp(prefix="millpond-flight-"))
        self._lock = threading.Lock()
        self._calls: dict[Call, FlightConnection] = {}
        self._named: dict[str, FlightConnection] = {}
        self._server: asyncio.Server
        self._flight: Any = None

    @property
    def settings(self) -> ServeSettings:
        """See `DoorBeside`."""
        return self._door.settings

    def connection(self) -> asyncio.Protocol:
        """See `DoorBeside`."""
        return FlightConnection(self)

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """See `DoorBeside`."""
        place = f"grpc+unix://{self.folder / 'server'}"
        self._flight = await asyncio.to_thread(start_server, self, self._door.access, place)
        await super().start(listener, tls)

    async def close(self, seconds: float) -> None:
        """See `DoorBeside`."""
        await super().close(seconds)
        # It waits for calls, which have been cancelled.
        ending = threading.Thread(target=self._flight.shutdown, name="millpond-flight-end", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, _SERVER_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_all(self) -> None:
        """Cancel all calls."""
        for call in self._running():
            call.cancel()

    def look_at(self, connection: FlightConnection) -> None:
        """See `DoorBeside`: calls end that their clients have cancelled."""
        for call in list(connection.calls):
            call.look()

    # ------------------------------------------------------------ connections

    def take_in(self, connection: FlightConnection, address: str) -> int | None:
        """See `DoorBeside`."""
        number = super().take_in(connection, address)
        if number is not None:
            self._named[f"unix:{self.folder / str(number)}"] = connection
        return number

    def closed(self, connection: FlightConnection) -> None:
        """See `DoorBeside`."""
        super().closed(connection)
        self._named.pop(connection.name, None)

    def may_open(self, connection: FlightConnection) -> bool:
        """Whether its calls are not too many."""
        settings, own, total = self.settings, 0, 0
        for each in self._connections:
            total += len(each)
            own += len(each) if each.address == connection.address else 0
        return total <= settings.max_streams and own <= settings.max_streams_per_client

    def broken(self, reason: str) -> None:
        """A connection ends for a reason."""
        log.info("flight.refused", message=reason)

    # ------------------------------------------------------------ calls, in threads of gRPC's

    def begin(self, context: Any) -> Call:
        """A new call.  Raises TOO_MANY_CONNECTIONS."""
        connection = self._named.get(context.peer())
        with self._lock:
            is_full = len(self._calls) >= self.settings.max_streams
            if connection is not None and not is_full:
                call = Call(self._door, self.loop, context, connection.address)
                self._calls[call] = connection
                connection.calls.add(call)
                return call
        raise RequestError(
            "TOO_MANY_CONNECTIONS",
            "The connection is gone, or the server answers too many calls.",
            hint="Try again later; the server's operator sets --max-streams.",
        )

    def end(self, call: Call | None = None, error: BaseException | None = None) -> None:
        """A call has ended; without one, see `DoorBeside`."""
        if call is None:
            self.end_all()
            return
        if call.close(error):
            with self._lock:
                connection = self._calls.pop(call)
            connection.calls.discard(call)

    def failed(self, error: BaseException) -> None:
        """An unexpected error."""
        log.error("flight.failed", message=f"{error!r:.200}", hint="Report this.")

    def cancel(self, number: str, reader: str) -> bool:
        """Cancel the running calls of a statement; False if there are none here."""
        found = [call for call in self._running() if call.handle == number and call.caller.sha256 == reader]
        for call in found:
            call.cancel()
        return bool(found)

    def _running(self) -> list[Call]:
        with self._lock:
            return list(self._calls)

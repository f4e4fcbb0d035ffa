"""A client's connection: its bytes go to pyarrow's server and back, as long as it keeps within limits.

pyarrow's server has no limit of connections, of calls, of bytes or of time, and its own TLS can't
take another certificate while it runs.  So it listens at a Unix socket, in a folder that only this
process opens, and clients are connected here.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Protocol, cast

from millpond.serve.flight.call import Call
from millpond.serve.flight.frames import BrokenProtocol, OpenCalls
from millpond.settings import ServeSettings

_HIGH_BYTES = 1 << 20


class Owner(Protocol):
    """The part of `door.FlightDoor` that a connection uses."""

    loop: asyncio.AbstractEventLoop
    folder: Path

    @property
    def settings(self) -> ServeSettings: ...

    def take_in(self, connection: FlightConnection, address: str, /) -> int | None: ...

    def closed(self, connection: FlightConnection, /) -> None: ...

    def may_open(self, connection: FlightConnection, /) -> bool:
        """Whether its calls are not too many."""

    def broken(self, reason: str, /) -> None:
        """A connection ends for a reason."""


class _Behind(asyncio.Protocol):
    """The other end, at pyarrow's server."""

    def __init__(self, front: FlightConnection) -> None:
        self._front = front
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        self._front.answered(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._front.end()

    def pause_writing(self) -> None:
        self._front.hold()

    def resume_writing(self) -> None:
        self._front.go_on()


class FlightConnection(asyncio.Protocol):
    """See the module.

    calls:      that pyarrow's server answers for it
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._open = OpenCalls(owner.settings.max_body_bytes, owner.loop.time)
        self._transport: asyncio.Transport
        self._behind: _Behind | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._place: Path | None = None
        self._first = b""
        self._is_over = self._is_draining = False
        self._blocked_at: float | None = None
        self._partial_at: float | None = None
        self.calls: set[Call] = set()
        self.address = ""
        self.active_at: float = owner.loop.time()

    def __len__(self) -> int:
        return max(len(self._open), len(self.calls))

    @property
    def name(self) -> str:
        """As pyarrow's server knows it."""
        return f"unix:{self._place}"

    @property
    def is_idle(self) -> bool:
        """Whether no call of it is open."""
        return not self._is_over and not len(self) and not self._open.is_partial

    @property
    def is_unread(self) -> bool:
        """Whether the client leaves answers unread."""
        return self._unread_at is not None

    @property
    def unread_bytes(self) -> int:
        """Of answers."""
        return self._transport.get_write_buffer_size()

    @property
    def since(self) -> float | None:
        """When a part of a call came, or an answer was left unread; None for neither."""
        times = [each for each in (self._unread_at, self._open.since, self._partial_at) if each is not None]
        return self._unread_at if self._unread_at is not None else min(times, default=None)

    @property
    def _unread_at(self) -> float | None:
        times = [each for call in list(self.calls) if (each := call.given_at) is not None]
        return min([*times, *([] if self._blocked_at is None else [self._blocked_at])], default=None)

    # ------------------------------------------------------------ the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        number = self._owner.take_in(self, self.address)
        if number is None:
            self.abort()
            return
        self._place = self._owner.folder / str(number)
        self._connecting = self._owner.loop.create_task(self._connect(self._place))

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        before = len(self._open)
        try:
            self._open.sent(data)
        except BrokenProtocol as broken:
            self._owner.broken(str(broken))
            self.abort()
            return
        if len(self._open) > before and not self._owner.may_open(self):
            self._owner.broken("too many calls")
            self.abort()
            return
        self._note()
        if self._behind is not None:
            self._behind.transport.write(data)
        else:
            self._first += data
            if len(self._first) > _HIGH_BYTES:
                self.hold()

    def connection_lost(self, _: Exception | None) -> None:
        self.end()

    def pause_writing(self) -> None:
        self._blocked_at = self._owner.loop.time()
        if self._behind is not None:
            self._behind.transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked_at = None
        if self._behind is not None and not self._is_over:
            self._behind.transport.resume_reading()

    # ------------------------------------------------------------ the server's side

    def answered(self, data: bytes) -> None:
        """Bytes for the client."""
        if self._is_over:
            return
        self._open.answered(data)
        self._note()
        self._transport.write(data)

    def hold(self) -> None:
        """Take no more of the client for now."""
        if not self._is_over:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Take more."""
        if not self._is_over:
            self._transport.resume_reading()

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """End it as soon as its calls are answered."""
        self._is_draining = True
        if self.is_idle:
            self.end()

    def end(self) -> None:
        """End it; what is written is still sent."""
        if self._is_over:
            return
        self._is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._behind is not None:
            self._behind.transport.abort()
        self._transport.close()
        for call in list(self.calls):
            call.cancel()
        if self._place is not None:
            self._place.unlink(missing_ok=True)
        self._owner.closed(self)

    def abort(self) -> None:
        """End it at once."""
        self.end()
        self._transport.abort()

    def _note(self) -> None:
        now = self._owner.loop.time()
        if not len(self._open):
            self.active_at = now
        self._partial_at = (self._partial_at or now) if self._open.is_partial else None
        if self._is_draining and self.is_idle:
            # What was just taken from the server is written first.
            self._owner.loop.call_soon(self.end)

    async def _connect(self, place: Path) -> None:
        """By a socket with a name, which tells pyarrow's server whose calls these are."""
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            plain.bind(str(place))
            await self._owner.loop.sock_connect(plain, str(self._owner.folder / "server"))
            _, behind = await self._owner.loop.create_unix_connection(lambda: _Behind(self), sock=plain)
        except OSError:
            plain.close()
            self.abort()
            return
        except asyncio.CancelledError:
            plain.close()
            raise
        self._connecting = None
        if self._is_over:
            behind.transport.abort()
            return
        self._behind = behind
        behind.transport.write(self._first)
        self._first = b""
        self.go_on()

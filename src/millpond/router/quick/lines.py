"""Connections to one server that stay open.  Each has one request at a time.

1. A request goes out on a connection that is free, or on a new one.  If there are as many as may
   be, it waits for its turn.
2. Only after a whole answer of status 200 is a connection used again, and one on which something
   came while it was free is ended.  So no answer that is late is taken for that to the next request.
   Only a broken server sends a second answer.  If that comes after the next request has gone out, it
   is taken for the next answer: HTTP/1.1 doesn't number answers.
3. A server may end a connection just as a request goes out on it.  If nothing of an answer had come
   on a connection that was used before, the request goes out again, on a new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol, cast

import httptools

from millpond.client.connections import Address
from millpond.client.exchange import unavailable
from millpond.errors import MillpondError

# For each server.
_MOST_LINES = 64
_CONNECT_SECONDS = 5.0
# A longer answer is left to the slow way.
_MOST_BYTES = 1 << 20
_HEADER = b"millpond-definition"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a server.

    definition:  the digest of the table's definition, empty if the answer doesn't name it
    """

    status: int
    definition: bytes
    body: bytes


class Asker(Protocol):
    """Who waits for an answer.

    is_done:  whether it waits no longer
    """

    is_done: bool

    def took(self, line: Line, /) -> None:
        """The request goes out on this line."""

    def answered(self, line: Line, answer: Answer, /) -> None:
        """The answer is there."""

    def lost(self, lines: Lines, error: MillpondError, /) -> None:
        """There won't be one."""


class Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._parser = httptools.HttpResponseParser(self)
        self._asker: Asker | None = None
        self._request = b""
        self._answers = 0
        self._status, self._definition, self._bytes = 0, b"", 0
        self._body: list[bytes] = []
        self._answer: Answer | None = None
        self._is_kept = False

    def ask(self, request: bytes, asker: Asker) -> None:
        """Send a request.  Nobody else waits for an answer here."""
        self._asker, self._request = asker, request
        self._status, self._definition, self._bytes = 0, b"", 0
        self._body.clear()
        self._answer, self._is_kept = None, False
        self.transport.write(request)
        asker.took(self)

    def leave(self) -> None:
        """End the connection, whose answer nobody waits for any more."""
        self._asker = None
        self.transport.abort()

    # ------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._asker is None or self._bytes > _MOST_BYTES:
            self.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.transport.abort()
        else:
            if self._answer is not None:
                self._pass_on(self._asker, self._answer)

    def _pass_on(self, asker: Asker, answer: Answer) -> None:
        self._asker = None
        self._answers += 1
        asker.answered(self, answer)
        if self._is_kept and answer.status == 200 and not self.transport.is_closing():  # 2
            self.lines.freed(self)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        asker, self._asker = self._asker, None
        self.lines.closed(self)
        if asker is None or asker.is_done:
            return
        if self._answers and not self._bytes:  # 3
            self.lines.ask(self._request, asker, is_new=True)
        else:
            asker.lost(self.lines, unavailable(str(exc or "it ended the connection")))

    # ------------------------------------------------------------ what the parser calls

    def on_message_begin(self) -> None:
        self._is_kept = False  # nobody asked for a second answer

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == _HEADER:
            self._definition = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._answer is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._answer is None:
            self._answer = Answer(self._status, self._definition, b"".join(self._body))
            self._is_kept = self._parser.should_keep_alive()


@dataclass(slots=True, eq=False)
class Lines:
    """All connections to one server, made as they are needed.

    headers:  that each request has, as lines
    """

    address: Address
    loop: asyncio.AbstractEventLoop
    headers: bytes = field(init=False)
    _free: list[Line] = field(default_factory=list)
    _open: set[Line | asyncio.Task[None]] = field(default_factory=set)
    _waiting: deque[tuple[bytes, Asker]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.headers = "".join(f"{name}: {value}\r\n" for name, value in self.address.headers.items()).encode("latin-1")

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, request: bytes, asker: Asker, *, is_new: bool = False) -> None:
        """Send a request as soon as there is a connection for it."""
        while self._free and not is_new:
            line = self._free.pop()
            if not line.transport.is_closing():
                line.ask(request, asker)
                return
        if len(self._open) >= _MOST_LINES:
            self._waiting.append((request, asker))
            return
        task = self.loop.create_task(self._connect(request, asker))
        self._open.add(task)
        task.add_done_callback(self._connected)

    def freed(self, line: Line) -> None:
        """A connection can have another request."""
        if (waiting := self._next()) is not None:
            line.ask(*waiting)
        else:
            self._free.append(line)

    def closed(self, line: Line) -> None:
        """A connection has ended."""
        self._open.discard(line)
        if line in self._free:
            self._free.remove(line)
        self._go_on()

    def close(self) -> None:
        """End all connections."""
        self._waiting.clear()
        for each in list(self._open):
            if isinstance(each, Line):
                each.leave()
            else:
                each.cancel()

    async def _connect(self, request: bytes, asker: Asker) -> None:
        address = self.address
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, line = await self.loop.create_connection(lambda: Line(self), address.host, address.port, ssl=address.tls)
        except OSError as refused:
            self._lost(asker, str(refused))
            return
        if line.transport.is_closing():
            self._lost(asker, "it ended the connection")
            return
        self._open.discard(cast("asyncio.Task[None]", asyncio.current_task()))
        self._open.add(line)
        if asker.is_done:
            self.freed(line)
        else:
            line.ask(request, asker)

    def _lost(self, asker: Asker, why: str) -> None:
        if not asker.is_done:
            asker.lost(self, unavailable(why))

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._go_on()

    def _go_on(self) -> None:
        """Connect for the next request that waits."""
        if len(self._open) < _MOST_LINES and (waiting := self._next()) is not None:
            self.ask(*waiting)

    def _next(self) -> tuple[bytes, Asker] | None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting[1].is_done:
                return waiting
        return None

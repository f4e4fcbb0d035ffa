"""One request and its answer, in the form of the application (ASGI).

An answer never piles up in memory for a client that doesn't read: the application waits too.  If
the client leaves, the work on its request ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Scope

from millpond.errors import MillpondError
from millpond.logs import EventLog
from millpond.schema.values import encode_json
from millpond.wire.answers import error_json

log = EventLog(__name__)
Headers = Iterable[tuple[bytes, bytes]]
# How much goes to the system at a time, and how much of a body may wait for the application.
PIECE_BYTES = 65_536
# Answers without a body.
_BODILESS = frozenset({204, 304})
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Connection(Protocol):
    """The part of `connection.Connection` that an exchange uses."""

    loop: asyncio.AbstractEventLoop
    client: str
    scheme: str
    transport: asyncio.Transport
    is_write_paused: bool

    @property
    def date(self) -> bytes: ...

    def go_on(self) -> None: ...

    def abort(self) -> None: ...

    def answered(self, exchange: Exchange, /) -> None: ...

    async def wait_until_read(self) -> None: ...


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return _LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def head(status: int, date: bytes, headers: Headers) -> bytes:
    """The head of an answer, up to the headers that the connection adds.

    date:  the header Date, as a line
    """
    return b"".join([status_line(status), date, *(b"%b: %b\r\n" % header for header in headers)])


def error_answer(error: MillpondError, status: int, date: bytes) -> bytes:
    """The whole answer to a request that ends its connection."""
    body = encode_json(error_json(error))
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), (b"connection", b"close")]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    return b"%bcontent-length: %d\r\n\r\n%b" % (head(status, date, headers), len(body), body)


class Exchange:
    """A request that the application answers.

    is_complete:    whether all of the request has arrived
    is_answered:    whether the system has all of the answer
    unsent_bytes:   bytes of the answer that the system hasn't taken yet
    keep_alive:     whether the connection stays open after the answer
    """

    def __init__(self, connection: Connection, scope: Scope, *, keep_alive: bool, wants_continue: bool) -> None:
        self.connection = connection
        self.scope = scope
        self.keep_alive = keep_alive
        self.is_complete = self.is_answered = self.is_gone = self.has_begun = False
        self.unsent_bytes = 0
        self.body = bytearray()
        self.task: asyncio.Task[None] | None = None
        self._wants_continue = wants_continue
        self._news: asyncio.Future[None] | None = None
        self._head = b""
        self._is_chunked = False
        self._left: int | None = None
        self._no_body = scope["method"] == "HEAD"
        self._is_taken = False  # the application has the whole request

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer.

        An unexpected error ends the connection, so that nobody takes half an answer for a whole
        one.
        """
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            if not self.is_gone:
                self.connection.abort()
            return
        except Exception as mistake:  # noqa: BLE001 - one request's, and answered
            if self.is_gone or self.connection.transport.is_closing():
                return
            log.error("request.failed", raised=mistake)
        if self.is_answered or self.is_gone:
            return
        if not self.has_begun:
            wrong = MillpondError("INTERNAL_ERROR", "This is a bug in Millpond.", hint="Report it with the server's log.")
            self.connection.transport.write(error_answer(wrong, 500, self.connection.date))
        self.keep_alive = False
        self._end()

    # ------------------------------------------------------------ what the connection tells

    def add_body(self, body: bytes) -> None:
        """Add a part of the request's body."""
        self.body += body
        self._tell()

    def complete(self) -> None:
        """Called when all of the request has arrived."""
        self.is_complete = True
        self._tell()

    def leave(self) -> None:
        """Called when the client has left: ends its work."""
        self.is_gone = True
        if self.task is not None:
            self.task.cancel()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # ------------------------------------------------------------ what the application calls

    async def receive(self) -> Message:
        """The next part of the request's body; after the answer, `http.disconnect`."""
        if self._wants_continue and not self.is_complete:
            self._wants_continue = False
            if not self.has_begun:
                self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.is_gone or self.is_answered):
            if not self._is_taken and (self.body or self.is_complete):
                self._is_taken = self.is_complete
                part = {"type": "http.request", "body": bytes(self.body), "more_body": not self.is_complete}
                self.body.clear()
                self.connection.go_on()
                return part
            self._news = self.connection.loop.create_future()
            await self._news
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Pass a part of the answer to the system.  Raises OSError if the client has left."""
        if self.is_gone or self.connection.transport.is_closing():
            raise OSError("the client is gone")
        if message["type"] == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))

    def _begin(self, status: int, headers: Headers) -> None:
        assert not self.has_begun, "an answer begins once"
        self.has_begun = True
        self._no_body = self._no_body or status in _BODILESS
        lines, length = [], None
        for name, value in headers:
            if b"\r" in value or b"\n" in value:
                raise ValueError(f"the header {name!r} has a line's end in it")
            if name.lower() == b"content-length":
                length = int(value)
            lines.append((name, value))
        if length is None and not self._no_body:
            # HTTP/1.0 has no chunks: the end of the connection ends the answer.
            self._is_chunked = self.scope["http_version"] == "1.1"
            self.keep_alive = self.keep_alive and self._is_chunked
            lines += [(b"transfer-encoding", b"chunked")] if self._is_chunked else []
        if not self.is_complete:
            self.keep_alive = False  # the rest of this request would be parsed as the next one
        if not self.keep_alive:
            lines.append((b"connection", b"close"))
        self._left = length
        self._head = head(status, self.connection.date, lines) + b"\r\n"

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        assert self.has_begun, "an answer begins with its headers"
        begin, self._head = self._head, b""
        if self._no_body:
            body = b""
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body isn't as long as its header says")
        if self._is_chunked:
            begin += b"%x\r\n" % len(body) if body else b""
            end = (b"\r\n" if body else b"") + (b"" if more else b"0\r\n\r\n")
        else:
            end = b""
        if len(body) <= PIECE_BYTES:
            await self._write(b"%b%b%b" % (begin, body, end))
        else:
            await self._write(begin)
            for place in range(0, len(body), PIECE_BYTES):
                self.unsent_bytes = len(body) - place
                await self._write(body[place : place + PIECE_BYTES])
            self.unsent_bytes = 0
            await self._write(end)
        if not more:
            self._end()

    async def _write(self, data: bytes) -> None:
        """Pass bytes to the system, and wait while the client has too much to read."""
        if not data:
            return
        connection = self.connection
        if connection.transport.is_closing():
            raise OSError("the client is gone")
        connection.transport.write(data)
        if connection.is_write_paused:
            await connection.wait_until_read()

    def _end(self) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._tell()
            self.connection.answered(self)


def scope_of(connection: Connection, url: bytes, method: str, version: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The ASGI scope of a request.

    url:  in origin form, or `*`
    """
    path, _, query = url.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},  # `send` raises OSError if the client has left
        "http_version": version,
        "method": method,
        "scheme": connection.scheme,
        "path": path.decode("ascii"),
        "raw_path": path,
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "client": (connection.client, 0),
    }

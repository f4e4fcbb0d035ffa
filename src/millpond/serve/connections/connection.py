"""One connection: limits of what a client may send and for how long, and the order of answers.

1. Bytes go to llhttp (httptools), a piece at a time.  Input that isn't HTTP, or exceeds a limit, is
   refused, and the connection ends.
2. The hot route is answered at once (`hot.py`).  Everything else is an exchange with the
   application.  A client mostly sends the same headers with each request.  A request whose headers
   are, byte for byte, those of the request before it on the hot route needs no parser.
3. Answers go out in the order of their requests: one runs, the others wait.
4. The connection reads nothing more while the client doesn't read its answers, while a request
   waits, or while a body waits for the application.  So a client that sends and never reads costs
   one piece of input and one of output.

`deadline` limits the time; `Connections` checks it, since a timer for every request would cost as
much as a lookup.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import deque
from typing import Protocol, cast

import httptools

from millpond.errors import MillpondError, RequestError, http_status
from millpond.serve.connections.exchange import PIECE_BYTES, Exchange, error_answer, scope_of
from millpond.settings import ServeSettings

# How much input is parsed before a check whether the client reads its answers.
_LOOK_BYTES = 16_384
# A connection that ends still reads for so long: if bytes stay unread, the system drops the answer.
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 1 << 20
# Of a URL that llhttp takes as it is.
_PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/?=&%+,:@!$'()*;"
_SAME_HEAD_BYTES = 2048
# A statement of so many bytes may be answered before the application begins with it.
_HELD_BYTES = 4096
_AFTER_URL = b" HTTP/1.1\r\n"
# States of a TCP connection whose other side has ended (tcp_states.h): CLOSE, CLOSE_WAIT.
_LEFT = (7, 8)


class Hot(Protocol):
    """Answers a request at once, or not at all."""

    def plain(self, headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
        """The headers of a request by name; None if they ask for what only the application can do."""

    def answer(self, url: bytes, headers: dict[bytes, bytes], client: str) -> bytes | None:
        """The headers after the date, and the body; None if the application must answer.

        headers:  as `plain` gives them
        """

    def answer_sql(self, headers: list[tuple[bytes, bytes]], body: bytes, client: str) -> bytes | None:
        """The same for `POST /sql` with a body."""


class Owner(Protocol):
    """The part of `pool.Connections` that a connection uses."""

    loop: asyncio.AbstractEventLoop
    scheme: str
    settings: ServeSettings
    date: bytes
    is_draining: bool
    hot: Hot

    def opened(self, connection: Connection, /) -> None: ...

    def closed(self, connection: Connection, /) -> None: ...

    def refused(self, status: int, /) -> object: ...

    def run(self, exchange: Exchange, /) -> asyncio.Task[None]: ...

    def write_soon(self, connection: Connection, answer: bytes, /) -> None: ...

    def send(self) -> None: ...


class Connection(asyncio.Protocol):
    """A client's connection.

    client:           the client, for limits per client
    deadline:         when it ends unless something happens, by the loop's clock
    was_opened:       whether it came to HTTP
    stalled_at:       since when its client has had too much to read; None if it hasn't
    is_write_paused:  whether its client has too much to read
    """

    def __init__(self, owner: Owner, client: str, taken: socket.socket) -> None:
        self.owner = owner
        self._socket = taken
        self.loop = owner.loop
        self.client = client
        self.scheme = owner.scheme
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.stalled_at: float | None = None
        self.is_write_paused = self.was_opened = False
        self._settings = owner.settings
        self._parser = httptools.HttpRequestParser(self)
        self._rest = b""  # read, but not parsed yet
        self._readers: list[asyncio.Future[None]] = []  # those that wait until the client has read
        self._running: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._arriving: Exchange | None = None
        self._refusal: tuple[MillpondError, int] | None = None
        self._is_ending = self._is_lingering = self._is_reading_paused = False
        self._lingered = 0
        # The request that arrives.
        self._in_head = self._has_moved = False
        self._url, self._headers = b"", []  # type: bytes, list[tuple[bytes, bytes]]
        self._head_bytes = self._silent_bytes = self._hosts = 0
        self._wants_continue = self._is_held = False
        self._answer: bytes | None = None
        # Requests that the parser has begun, and the headers of one that came alone and was answered at once.
        self._begun = self._answered = 0
        self._plain: dict[bytes, bytes] | None = None
        self._same_end, self._same_plain = b"", {}  # type: bytes, dict[bytes, bytes]
        self._most_same_bytes = min(self._settings.max_url_bytes, self._settings.max_header_bytes)
        self.deadline = self.loop.time() + self._settings.header_seconds

    @property
    def needs_a_look(self) -> bool:
        """Whether it may have to end before its deadline."""
        return self.stalled_at is not None or self._is_reading_paused

    @property
    def date(self) -> bytes:
        """The header Date, as a line."""
        return self.owner.date

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or arrives."""
        return self._running is None and not self._in_head and self._refusal is None

    @property
    def unread_bytes(self) -> int:
        """The bytes of answers that the client's machine hasn't received yet."""
        return self.transport.get_write_buffer_size() + (self._running.unsent_bytes if self._running is not None else 0)

    # ------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.was_opened = cast(asyncio.Transport, transport), True
        self.transport.set_write_buffer_limits(high=PIECE_BYTES)
        self.owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.owner.closed(self)
        for exchange in (self._running, *self._waiting):
            if exchange is not None:
                exchange.leave()
        self._waiting.clear()
        self.is_write_paused = False
        self._wake_readers()
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or self._refusal is not None:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES:
                self.abort()
        elif self._rest or self._must_wait():
            self._rest += data
            self._mind_reading()
        else:
            self._look_at(data)

    def pause_writing(self) -> None:
        self.is_write_paused, self.stalled_at = True, self.loop.time()
        self._mind_reading()

    def resume_writing(self) -> None:
        self.is_write_paused, self.stalled_at = False, None
        self._wake_readers()
        self.go_on()

    async def wait_until_read(self) -> None:
        """Return when the client has read most of its answers.  Raises OSError if it has left."""
        while self.is_write_paused and not self.transport.is_closing():
            waiting = self.loop.create_future()
            self._readers.append(waiting)
            await waiting
        if self.transport.is_closing():
            raise OSError("the client is gone")

    def _wake_readers(self) -> None:
        for waiting in self._readers:
            if not waiting.done():
                waiting.set_result(None)
        self._readers.clear()

    # ------------------------------------------------------------ reading

    def _must_wait(self) -> bool:
        """Whether the next input must wait."""
        if self.is_write_paused or self._waiting or self._is_ending:
            return True
        return self._arriving is not None and len(self._arriving.body) > PIECE_BYTES

    def _mind_reading(self) -> None:
        pause = bool(self._rest) or self._must_wait()
        if self._is_lingering or self._refusal is not None:
            pause = False
        if pause != self._is_reading_paused and not self.transport.is_closing():
            self._is_reading_paused = pause
            (self.transport.pause_reading if pause else self.transport.resume_reading)()

    def go_on(self) -> None:
        """Parse input that had to wait, if it no longer must."""
        if self._rest and not self._must_wait() and not self.transport.is_closing():
            data, self._rest = self._rest, b""
            self._look_at(data)
        elif self.transport is not None:
            self._mind_reading()

    def _answer_same(self, data: bytes) -> bool:
        """Answer a request whose headers are those of the one before; False if that can't be done."""
        end, owner = self._same_end, self.owner
        if not data.endswith(end) or not data.startswith(b"GET /") or self._running is not None or owner.is_draining:
            return False
        url = data[4 : -len(end)]
        if url.translate(None, _PLAIN) or len(data) > self._most_same_bytes:
            return False
        answer = owner.hot.answer(url, self._same_plain, self.client)
        if answer is None:
            return False
        owner.write_soon(self, answer)
        self._rest_now()
        return True

    def _note_head(self, data: bytes, begun: int, answered: int) -> None:
        """Note the headers of a request that came alone and was answered at once."""
        alone = self._begun == begun + 1 and self._answered == answered + 1 and not self._in_head
        line, after, head = data.partition(_AFTER_URL)
        if alone and self._plain is not None and b"\n" not in line and head and len(head) <= _SAME_HEAD_BYTES:
            self._same_end, self._same_plain = after + head, self._plain

    def _look_at(self, data: bytes) -> None:
        size = len(data)
        if self._same_end and self._answer_same(data):
            return
        begun, answered = self._begun, self._answered
        self._same_end = b""
        for place in range(0, size, _LOOK_BYTES):
            if place:
                self.owner.send()  # sends the answers so far, which shows whether the client reads
                if self._refusal is not None or self._is_lingering:
                    return
                if self._must_wait():
                    self._rest = data[place:]
                    break
            was_between = not self._in_head and self._arriving is None
            self._parse(data if size <= _LOOK_BYTES else data[place : place + _LOOK_BYTES])
            if was_between and size <= _LOOK_BYTES:
                self._note_head(data, begun, answered)
        if self._rest or self._is_reading_paused or self._waiting or self.is_write_paused or self._arriving is not None:
            self._mind_reading()

    def _parse(self, data: bytes) -> None:
        if self._refusal is not None or self._is_lingering:
            return
        began_in_head = self._in_head
        self._has_moved = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # No other protocol is supported here, and the next bytes may be of one.
            for exchange in (self._running, *self._waiting):
                if exchange is not None:
                    exchange.keep_alive = False
            self._is_ending = True
        except httptools.HttpParserError as wrong:
            reason = wrong.__context__
            self._refuse(reason if isinstance(reason, MillpondError) else _no_http(str(wrong)))
        else:
            if self._in_head and not began_in_head:
                self.deadline = min(self.deadline, self.loop.time() + self._settings.header_seconds)
            # Bytes that the parser buffers or skips: a header's name or value that isn't complete,
            # before or after a body.
            self._silent_bytes = 0 if self._has_moved else self._silent_bytes + len(data)
            if self._head_bytes + self._silent_bytes > self._settings.max_header_bytes:
                self._refuse(_head_too_large(self._settings.max_header_bytes))

    def _refuse(self, error: MillpondError) -> None:
        """Answer with an error after all earlier requests, and end."""
        self._in_head, self._rest = False, b""
        self._refusal = (error, http_status(error))
        self.owner.refused(http_status(error))
        if self._running is not None and self._arriving is self._running:
            if self._running.has_begun:
                self.abort()
            self._running.leave()  # the rest of its body never comes
            self._running = None
        elif self._arriving is not None and self._arriving in self._waiting:
            self._waiting.remove(self._arriving)
        self._arriving = None
        if self._running is None:
            self._say_refusal()
        self._mind_reading()

    def _say_refusal(self) -> None:
        assert self._refusal is not None
        self.owner.send()
        if not self.transport.is_closing():
            self.transport.write(error_answer(*self._refusal, self.date))
            self._linger()

    # ------------------------------------------------------------ what the parser calls

    def on_message_begin(self) -> None:
        self._in_head = self._has_moved = True
        self._begun += 1
        self._url, self._headers, self._plain = b"", [], None
        self._head_bytes = self._silent_bytes = self._hosts = 0
        self._wants_continue = False
        self._answer = None

    def on_url(self, url: bytes) -> None:
        self._has_moved = True
        self._url += url
        self._head_bytes = len(self._url)
        if len(self._url) > self._settings.max_url_bytes:
            raise RequestError(
                "URL_TOO_LONG",
                f"The URL is longer than {self._settings.max_url_bytes} bytes.",
                hint="Ask by POST …/rows:get or …/rows:scan.",
                maximum_bytes=self._settings.max_url_bytes,
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_moved = True
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._settings.max_header_bytes:
            raise _head_too_large(self._settings.max_header_bytes)
        if not self._in_head:
            return  # trailers after the body, which nobody uses
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self._wants_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        parser, url = self._parser, self._url
        method, version = parser.get_method(), parser.get_http_version()
        if self._hosts != 1 and (self._hosts or version != "1.0"):
            raise _no_http("a request must name its host exactly once")
        if not url.isascii() or b"#" in url or version not in ("1.1", "1.0"):
            raise _no_http("a URL may only have ASCII, with other characters as %XX, and the version must be 1.1 or 1.0")
        if not url.startswith(b"/") and url != b"*":
            url = _origin_form(url)
        keep_alive = version == "1.1" and parser.should_keep_alive()
        if keep_alive and method == b"GET" and self._running is None and not self.owner.is_draining:
            plain = self._plain = self.owner.hot.plain(self._headers)
            if plain is not None:
                self._answer = self.owner.hot.answer(url, plain, self.client)
            if self._answer is not None:
                return
        scope = scope_of(self, url, method.decode("ascii"), version, self._headers)
        keep_alive = keep_alive and not parser.should_upgrade() and not self.owner.is_draining
        exchange = Exchange(self, scope, keep_alive=keep_alive, wants_continue=self._wants_continue)
        self._arriving = exchange
        self._is_held = self._running is None and url == b"/sql" and method == b"POST" and keep_alive and not self._wants_continue
        if self._is_held:
            self._running, self.deadline = exchange, self.loop.time() + self._settings.body_seconds
        elif self._running is None:
            self._start(exchange)
        else:
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        if self._arriving is not None:
            self._arriving.add_body(body)
            if self._is_held and len(self._arriving.body) > _HELD_BYTES:
                self._is_held = False
                self._start(self._arriving)

    def on_message_complete(self) -> None:
        self._has_moved, self._head_bytes = True, 0
        if self._answer is not None:
            self.owner.write_soon(self, self._answer)
            self._answer = None
            self._answered += 1
            self._rest_now()
        elif self._arriving is not None:
            exchange, self._arriving = self._arriving, None
            if self._is_held and self._answer_held(exchange):
                return
            exchange.complete()
            if exchange is self._running:
                self.deadline = math.inf

    def _answer_held(self, exchange: Exchange) -> bool:
        """Answer a statement at once, if that is possible; otherwise the application begins with it."""
        self._is_held = False
        if exchange.keep_alive and not self.owner.is_draining:
            answer = self.owner.hot.answer_sql(self._headers, bytes(exchange.body), self.client)
            if answer is not None:
                self._running = None
                self.owner.write_soon(self, answer)
                self._rest_now()
                return True
        self._start(exchange)
        return False

    # ------------------------------------------------------------ exchanges

    def _start(self, exchange: Exchange) -> None:
        self._running = exchange
        self.deadline = math.inf if exchange.is_complete else self.loop.time() + self._settings.body_seconds
        exchange.task = self.owner.run(exchange)

    def answered(self, exchange: Exchange) -> None:
        """Called when the system has all of an answer: the next request runs."""
        if exchange is not self._running:
            return
        self._running = None
        if self.transport.is_closing():
            return
        if not exchange.keep_alive or self.owner.is_draining or self._is_ending:
            if exchange.is_complete:
                self.transport.close()
            else:
                self._arriving = None
                self._linger()
        elif self._waiting:
            self._start(self._waiting.popleft())
            self.go_on()
        elif self._refusal is not None:
            self._say_refusal()
        else:
            self._rest_now()
            self.go_on()

    def _rest_now(self) -> None:
        """Called when no request runs: sets the deadline for the next one."""
        settings = self._settings
        self.deadline = self.loop.time() + (settings.header_seconds if self._in_head else settings.keep_alive_seconds)

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """End after the running requests."""
        if self._running is None:
            self.owner.send()
            self.transport.close()
        else:
            self._running.keep_alive = False

    def abort(self) -> None:
        """End now."""
        self.transport.abort()

    def _linger(self) -> None:
        """End, but read for a moment what the client still sends."""
        self._is_lingering, self._rest = True, b""
        self.deadline = self.loop.time() + _LINGER_SECONDS
        self._mind_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def expire(self, now: float) -> None:
        """End if the time is over, or if the client has left while the connection reads nothing."""
        stalled = self.stalled_at is not None and now - self.stalled_at > self._settings.send_seconds
        if stalled or (self._is_reading_paused and self._has_left()) or (now > self.deadline and self._is_lingering):
            self.abort()
        elif now > self.deadline and self.is_idle:
            self.transport.close()
        elif now > self.deadline:
            self._refuse(
                RequestError(
                    "REQUEST_TOO_SLOW",
                    "The request didn't come in time.",
                    hint="Send it at once; the server's operator sets --header-seconds and --body-seconds.",
                )
            )

    def _has_left(self) -> bool:
        try:
            return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT
        except OSError:
            return True


def _origin_form(url: bytes) -> bytes:
    """Path and query of an absolute URL, as in requests to proxies."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise _no_http("the URL can't be read") from None
    path: bytes = parsed.path or b"/"
    return path if parsed.query is None else b"%b?%b" % (path, parsed.query)


def _no_http(reason: str) -> RequestError:
    return RequestError("INVALID_HTTP", f"This isn't a request in HTTP/1.1: {reason[:200]}.", hint="Use a client that speaks HTTP.")


def _head_too_large(maximum: int) -> RequestError:
    return RequestError(
        "HEADERS_TOO_LARGE",
        f"URL and headers have more than {maximum} bytes.",
        hint="Send fewer headers.",
        maximum_bytes=maximum,
    )

"""A client's connection: TLS and login, then its messages in order, each answered before the next.

While a statement runs, the connection reads nothing, and replies that a client doesn't read stop the
statement.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Iterable
from typing import Protocol, cast

from millpond.serve.access.access import Access
from millpond.serve.access.tokens import EVERYBODY, Reader
from millpond.serve.postgres import wire
from millpond.serve.postgres.errors import PgError, error_message
from millpond.serve.postgres.login import Login
from millpond.serve.postgres.quick import Plan, QuickLookups
from millpond.serve.postgres.run import Question, Run
from millpond.serve.postgres.session import Session
from millpond.serve.postgres.statements.settings import Settings
from millpond.serve.sql import messages as say
from millpond.settings import ServeSettings

_HIGH_BYTES = 1 << 18
# Then other connections have their turn.
_MOST_REPLIES = 1000
_PARAMETERS = ("user", "database", "options", "replication")


class Owner(Protocol):
    """The part of `door.PostgresDoor` that a connection uses."""

    tls: ssl.SSLContext | None
    quick: QuickLookups
    loop: asyncio.AbstractEventLoop
    process: int
    is_draining: bool

    @property
    def settings(self) -> ServeSettings: ...

    @property
    def access(self) -> Access: ...

    def take_in(self, connection: PostgresConnection, address: str, /) -> int | None: ...

    def closed(self, connection: PostgresConnection, /) -> None: ...

    def secret(self, connection: PostgresConnection, /) -> int: ...

    def cancel(self, process: int, secret: int, /) -> None: ...

    def run(self, question: Question, /) -> Run: ...

    def failed(self, error: BaseException, /) -> PgError: ...

    def counted(self, error: BaseException | None, seconds: float, tables: tuple[str, ...], /) -> None: ...


class PostgresConnection(asyncio.Protocol):
    """See the module, and `connections.beside.Connection`."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._messages = wire.Messages(wire.STRANGER_BYTES)
        self._transport: asyncio.Transport
        self._running: asyncio.Task[None] | None = None
        self._readable = asyncio.Event()  # the client has read what was sent
        self._readable.set()
        self._is_over = self._is_safe = False
        self._login: Login | None = None
        self._session: Session | None = None
        self._parameters: dict[str, str] = {}
        self._began = 0.0
        self.reader: Reader = EVERYBODY
        self.secret = -1
        self.address = ""
        self.active_at = owner.loop.time()
        self.since: float | None = owner.loop.time()

    @property
    def is_idle(self) -> bool:
        """See `beside.Connection`."""
        return not self._is_over and self._running is None and not self.is_unread and not self._messages.is_partial

    @property
    def is_unread(self) -> bool:
        """See `beside.Connection`."""
        return not self._readable.is_set()

    @property
    def unread_bytes(self) -> int:
        """See `beside.Connection`."""
        return self._transport.get_write_buffer_size()

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(transport)
        peer = transport.get_extra_info("peername") or ("",)
        self.address = str(peer[0])
        if self._owner.take_in(self, self.address) is None:
            self._end(PgError("53300", "sorry, too many clients already", is_fatal=True))

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over = True
        self._readable.set()
        self.cancel()
        self._owner.closed(self)
        session = self._session
        if session is not None and self._running is None:
            self._running = self._owner.loop.create_task(session.close())

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._messages.feed(data)
        if self._running is None:
            self._go_on()

    def pause_writing(self) -> None:
        self._readable.clear()
        self._mind()

    def resume_writing(self) -> None:
        self._readable.set()
        self.since = None
        if self._running is None:
            self._go_on()

    # ------------------------------------------------------------ for the door

    def abort(self) -> None:
        """See `beside.Connection`."""
        self._transport.abort()

    def finish(self) -> None:
        """See `beside.Connection`."""
        if self._running is None and not self._is_over:
            self._end(PgError("57P01", "terminating connection due to administrator command", is_fatal=True))

    def cancel(self) -> None:
        """Cancel the statement that runs."""
        if self._session is not None and self._session.running is not None:
            self._session.running.cancel()

    # ------------------------------------------------------------ for the session

    def send(self, data: bytes) -> None:
        """See `session.Client`."""
        if data and not self._is_over:
            self._transport.write(data)

    async def until_read(self) -> None:
        """See `session.Client`."""
        await self._readable.wait()
        if self._is_over:
            raise PgError("08006", "the client has gone")

    def run(self, text: str, values: list[str | None], wanted: say.Postgres, settings: Settings) -> Run:
        """See `session.Client`."""
        owner = self._owner
        if self._is_over:
            raise PgError("08006", "the client has gone")
        if not owner.settings.sql:
            raise PgError("0A000", "This server answers no SQL.", hint="Start it without --no-sql.")
        reader = self._still_reader()
        owner.access.count(reader, self.address)
        asker = self.address if reader is EVERYBODY else f"reader {reader.name}"
        return owner.run(
            Question(
                text=text,
                values=values,
                wanted=wanted,
                reader=reader,
                asker=asker,
                database=settings.database,
                at=settings.at,
                bounds=settings.bounds,
                separate=settings.separate,
                most_seconds=settings.most_seconds,
            )
        )

    def counted(self, error: BaseException | None, /, tables: tuple[str, ...] = ()) -> None:
        """See `session.Client`."""
        self._owner.counted(error, self._owner.loop.time() - self._began, tables)

    def find_plan(self, text: str, types: list[int]) -> Plan | None:
        """See `session.Client`."""
        plan = self._owner.quick.find(text, types)
        return plan if plan is not None and self.may_use(plan) else None

    def may_use(self, plan: Plan) -> bool:
        """See `session.Client`."""
        return self._owner.quick.may_use(plan, self._still_reader())

    def look_up(self, plan: Plan, values: list[str | None], formats: list[int]) -> tuple[bytes, int, int] | None:
        """See `session.Client`."""
        if not self._owner.settings.sql:
            return None
        reader = self._still_reader()
        found = self._owner.quick.answer(plan, reader, values, formats)
        if found is not None:
            self._owner.access.count(reader, self.address)
        return found

    def _still_reader(self) -> Reader:
        """The reader, if its token is still valid.  Raises TOKEN_NEEDED."""
        if self._login is not None and self._login.sha256 is not None:
            self.reader = self._owner.access.reader_of(self._login.sha256)
        return self.reader

    # ------------------------------------------------------------ messages

    def _go_on(self) -> None:
        """Answer messages until there are none, one takes time, or the client must read first."""
        out: list[bytes] = []
        while not self._is_over and self._running is None and not self.is_unread and len(out) < _MOST_REPLIES:
            try:
                self._began = self._owner.loop.time()
                reply: bytes | Awaitable[None] | None = self._answer_once()
                if reply is None:
                    found = self._messages.next()
                    if found is None:
                        break
                    reply = self._answer(*found)
            except wire.BrokenProtocol as broken:
                self._end(PgError("08P01", str(broken), is_fatal=True), out)
                return
            except PgError as error:
                self._end(error, out)
                return
            except Exception as error:  # noqa: BLE001 - one message must not end the connections of others
                self._end(self._owner.failed(error), out)
                return
            if isinstance(reply, bytes):
                out.append(reply)
            else:
                self.send(b"".join(out))
                out.clear()
                self._running = self._owner.loop.create_task(self._wait_for(reply))
        self._transport.write(b"".join(out))
        if self._is_over:  # the client says that it goes
            self._transport.close()
            return
        if len(out) >= _MOST_REPLIES:
            self._owner.loop.call_soon(self._again)
        self.active_at = self._owner.loop.time()
        self._mind()
        if self._owner.is_draining and self.is_idle:
            self.finish()

    def _again(self) -> None:
        if not self._is_over and self._running is None:
            self._go_on()

    async def _wait_for(self, making: Awaitable[None]) -> None:
        try:
            await making
        except wire.BrokenProtocol as broken:
            self._end(PgError("08P01", str(broken), is_fatal=True))
        except PgError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(self._owner.failed(error))
        self._running = None
        if self._is_over:
            if self._session is not None:
                await self._session.close()
            return
        self._go_on()

    def _answer_once(self) -> bytes | None:
        """The reply to all messages of a lookup, if they have come together."""
        bound = None if self._session is None else self._messages.bound_once()
        if bound is None or self._session is None:
            return None
        body, is_described, end = bound
        reply = self._session.answer_once(body, is_described=is_described)
        if reply is not None:
            self._messages.skip_to(end)
        return reply

    def _answer(self, letter: bytes, body: bytes) -> bytes | Awaitable[None]:
        if letter == b"X":
            self._is_over = True
            return b""
        if self._session is not None:
            return self._session.answer(letter, body)
        if not self._messages.has_begun:
            return self._begin(wire.Body(body))
        if letter != b"p" or self._login is None:
            raise wire.BrokenProtocol("expected a password")
        return self._welcome(self._login.go_on(body))

    def _begin(self, body: wire.Body) -> bytes | Awaitable[None]:
        """Answer the first message."""
        code, owner = body.int4(), self._owner
        if code == wire.CANCEL:
            process, secret = body.int4() & 0xFFFFFFFF, body.int4() & 0xFFFFFFFF
            body.end()
            owner.cancel(process, secret)
            self._is_over = True
            return b""
        if code in (wire.SSL, wire.GSS):
            body.end()
            if self._is_safe or self._messages.is_partial:  # what came in the clear isn't taken for what comes by TLS
                raise wire.BrokenProtocol("received unencrypted data after the request for encryption")
            if code == wire.GSS or owner.tls is None:
                return b"N"
            return self._start_tls(owner.tls)
        if code >> 16 != 3:
            raise PgError(
                "0A000", f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}: server supports 3.0", is_fatal=True
            )
        self._messages.has_begun = True
        self._parameters = wire.read_startup(body.rest())
        if owner.tls is not None and not self._is_safe:
            raise PgError("28000", "This server answers over TLS alone.", hint="Connect with sslmode=require.", is_fatal=True)
        if "replication" in self._parameters and self._parameters["replication"].lower() not in ("false", "off", "no", "0"):
            raise PgError("0A000", "replication is not answered here", is_fatal=True)
        user = self._parameters.get("user", "")
        if not user:
            raise PgError("28000", "no PostgreSQL user name specified in startup packet", is_fatal=True)
        self._login = Login(owner.access, user, self.address, is_safe=self._is_safe)
        return self._welcome(self._login.begin())

    def _welcome(self, reply: bytes) -> bytes:
        """The reply, and the session's beginning if the login is over."""
        assert self._login is not None
        if self._login.reader is None:
            return reply
        self.reader = self._login.reader
        user = self._parameters["user"]
        settings = Settings(user, self._parameters.get("database") or user, self._owner.settings)
        for name, value in self._parameters.items():
            if name not in _PARAMETERS and not name.startswith("_pq_."):
                settings.begin_as(name, value)
        for name, value in read_options(self._parameters.get("options", "")):
            settings.begin_as(name, value)
        self.secret = self._owner.secret(self)
        self._session = Session(self, settings, self._owner.process, self._owner.settings.max_body_bytes, self._owner.quick)
        self._messages.max_bytes = self._owner.settings.max_body_bytes
        self.since = None
        begun = [reply, _unknown_options(self._parameters), self._session.begin(), wire.key_data(self._owner.process, self.secret)]
        return b"".join([*begun, wire.ready(b"I")])

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        self._transport.write(b"S")
        try:
            made = await self._owner.loop.start_tls(self._transport, self, context, server_side=True)
        except (OSError, ssl.SSLError):
            self._is_over = True
            self._transport.abort()
            return
        if made is None:
            self._is_over = True
            return
        self._is_safe = True
        self._use(made)

    def _use(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)

    def _mind(self) -> None:
        """Read from the client only if its messages can be answered; note since when something is unfinished."""
        if self._is_over or self._transport.is_closing():
            return
        is_starting = self._session is None
        busy = (self._running is not None and not is_starting) or self.is_unread
        if busy and self._transport.is_reading():
            self._transport.pause_reading()
        elif not busy and not self._transport.is_reading():
            self._transport.resume_reading()
        unfinished = is_starting or self.is_unread or (self._running is None and self._messages.is_partial)
        if not unfinished:
            self.since = None
        elif self.since is None:
            self.since = self._owner.loop.time()

    def _end(self, error: PgError, before: Iterable[bytes] = ()) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._transport.write(b"".join(before))
        fatal = PgError(error.state, error.text, hint=error.hint, is_fatal=True)
        self._transport.write(error_message(fatal))
        self._transport.close()


def read_options(text: str) -> list[tuple[str, str]]:
    """The settings in the startup parameter `options`: -c name=value, --name=value.  Raises PgError."""
    words, word, at = list[str](), "", 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            word += text[at + 1]
            at += 1
        elif text[at].isspace():
            words.append(word)
            word = ""
        else:
            word += text[at]
        at += 1
    words = [each for each in (*words, word) if each]
    found = list[tuple[str, str]]()
    while words:
        first = words.pop(0)
        pair = words.pop(0) if first == "-c" and words else first.removeprefix("-c").removeprefix("--")
        name, equals, value = pair.partition("=")
        if not equals:
            raise PgError("42601", f"invalid command-line argument: {pair[:80]}", hint="Write -c name=value.", is_fatal=True)
        found.append((name.replace("-", "_"), value))
    return found


def _unknown_options(parameters: dict[str, str]) -> bytes:
    """NegotiateProtocolVersion, if the client asks for options of the protocol that aren't there."""
    unknown = [name for name in parameters if name.startswith("_pq_.")]
    if not unknown:
        return b""
    body = (0).to_bytes(4) + len(unknown).to_bytes(4) + b"".join(map(wire.zero_ended, unknown))
    return wire.message(b"v", body)

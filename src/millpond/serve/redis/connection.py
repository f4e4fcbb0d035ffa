"""A client's connection: its commands in order, each answered before the next.

Replies that a client doesn't read stop its commands.  A command that reads many rows runs in a
thread, and the connection reads nothing meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol, cast

from millpond.errors import MillpondError
from millpond.serve.redis.commands import Client, RedisCommands, error_reply
from millpond.serve.redis.notices import Notices
from millpond.serve.redis.pubsub import Subscriber
from millpond.serve.redis.quick import NotPlain, QuickRows
from millpond.serve.redis.wire import BrokenProtocol, Commands, Error, Push, Reply, encode
from millpond.serve.waiting.waits import Quota
from millpond.settings import ServeSettings

# Words of HTTP: a web page may make a browser send such a request here.
_HTTP = (b"post", b"host:")
_HIGH_BYTES = 1 << 18
# As `client-output-buffer-limit pubsub` of Redis: whoever leaves more messages unread loses the connection.
_MOST_MESSAGE_BYTES = 32 << 20


class Owner(Protocol):
    """The part of `door.RedisDoor` that a connection uses."""

    commands: RedisCommands
    quick: QuickRows
    notices: Notices
    loop: asyncio.AbstractEventLoop
    is_draining: bool

    @property
    def settings(self) -> ServeSettings: ...

    @property
    def streams(self) -> Quota: ...

    def admit(self, connection: RedisConnection, address: str, /) -> Client | None: ...

    def closed(self, connection: RedisConnection, /) -> None: ...

    def failed(self, error: BaseException, /) -> Reply: ...

    def counted(self, reply: Reply, seconds: float, client: Client, /) -> None: ...

    def counted_many(self, count: int, seconds: float, table: str, /) -> None: ...


class RedisConnection(asyncio.Protocol):
    """See the module.

    active_at:  when the client's last command ended
    since:      when a part of a command came, or a reply was left unread; None for neither
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._commands = Commands(owner.settings.max_body_bytes)
        self._client: Client | None = None
        self._subscriber: Subscriber
        self._transport: asyncio.Transport
        self._running: asyncio.Task[None] | None = None
        self._is_blocked = self._is_over = False
        self.address = ""
        self.active_at = owner.loop.time()
        self.since: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done for it."""
        if self._is_over or self._running is not None or self._is_blocked or self._commands.is_partial:
            return False
        return not self.is_subscribed or self._owner.is_draining

    @property
    def is_subscribed(self) -> bool:
        """Whether it waits for messages."""
        return self._client is not None and self._subscriber.is_subscribed

    @property
    def is_unread(self) -> bool:
        """Whether the client leaves replies unread."""
        return self._is_blocked

    @property
    def unread_bytes(self) -> int:
        """Of replies."""
        return self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        peer = transport.get_extra_info("peername") or ("",)
        self.address = str(peer[0])
        self._client = self._owner.admit(self, self.address)
        if self._client is None:
            self._end(Error("ERR max number of clients reached"))
        else:
            self._subscriber = Subscriber(self._client, self._owner.notices, self._owner.streams, self._publish)

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over = True
        if self._running is not None:
            self._running.cancel()
        if self._client is not None:
            self._subscriber.close()
        self._owner.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over or self._client is None:
            return
        self._commands.feed(data)
        if self._running is None and not self._is_blocked:
            self._go_on()

    def pause_writing(self) -> None:
        self._is_blocked = True
        self._mind()

    def resume_writing(self) -> None:
        self._is_blocked = False
        self.since = None
        if self._running is None:
            self._go_on()

    def abort(self) -> None:
        """End it at once."""
        self._transport.abort()

    def finish(self) -> None:
        """End it as soon as its command is answered."""
        if self._running is None:
            self._is_over = True
            self._transport.close()

    def look_at_token(self) -> None:
        """End it if it waits for messages, and its token is no longer valid."""
        if self._client is not None and self.is_subscribed and not self._is_over:
            self._owner.commands.look_at_token(self._client)
            if self._client.reader is None:
                self._end(Error("NOAUTH Authentication required."))

    def _publish(self, message: Push) -> None:
        assert self._client is not None
        if self._is_over or self._transport.is_closing():
            return
        self._transport.write(encode(message, self._client.protocol))
        if self.unread_bytes > _MOST_MESSAGE_BYTES:
            self._is_over = True
            self._transport.abort()

    def _go_on(self) -> None:
        """Answer commands until there are none, one takes time, or the client must read first."""
        client, owner = self._client, self._owner
        assert client is not None
        out: list[bytes] = []
        size = 0
        while not self._is_over and not self._is_blocked and size < _HIGH_BYTES:
            owner.commands.look_at_token(client)
            self._commands.is_stranger = client.reader is None
            found = self._answer_many(client)
            if found:
                out.append(found)
                size += len(found)
                if not self._commands.is_partial:
                    break
                continue
            try:
                words = self._commands.next()
            except BrokenProtocol as broken:
                self._transport.write(b"".join(out))
                self._end(Error(f"ERR Protocol error: {broken}"))
                return
            if words is None:
                break
            if words[0].lower() in _HTTP:
                self._is_over = True
                self._transport.abort()
                return
            if work := self._work(client, words):
                self._transport.write(b"".join(out))
                self._running = owner.loop.create_task(self._run(client, work))
                self._mind()
                return
            began = owner.loop.time()
            try:
                reply = self._answer(client, words)
            except Exception as error:  # noqa: BLE001 - one command must not end the connections of others
                reply = owner.failed(error)
            owner.counted(reply, owner.loop.time() - began, client)
            out.append(encode(reply, client.protocol))
            size += len(out[-1])
            if client.is_leaving:
                self._transport.write(b"".join(out))
                self._is_over = True
                self._transport.close()
                return
        if out:
            self._transport.write(b"".join(out))
        self.active_at = owner.loop.time()
        self._mind()
        if size >= _HIGH_BYTES and not self._is_blocked and not self._is_over:
            owner.loop.call_soon(self._again)
        if owner.is_draining and self.is_idle:
            self.finish()

    def _answer_many(self, client: Client) -> bytes | None:
        """The replies to the next commands, if they are plain."""
        if client.reader is None or client.transaction.is_open or (self.is_subscribed and client.protocol == 2):
            return None
        began = self._owner.loop.time()
        found = self._owner.quick.get_many(client.reader, self._commands, client.protocol)
        if found is None:
            return None
        replies, count, table = found
        self._owner.counted_many(count, self._owner.loop.time() - began, table)
        return replies

    def _work(self, client: Client, words: list[bytes]) -> Awaitable[Reply] | None:
        """The work of a command that takes time; None for others."""
        if client.reader is None:
            return None
        if client.transaction.is_open:
            if self._owner.commands.transaction_needs_time(client, words):
                return self._owner.loop.run_in_executor(None, self._owner.commands.answer, client, words)
            return None
        if self._subscriber.begins(words):
            return self._subscriber.subscribe(words)
        is_held_back = self.is_subscribed and client.protocol == 2
        if self._owner.commands.needs_time(words) and not is_held_back:
            return self._owner.loop.run_in_executor(None, self._owner.commands.answer, client, words)
        return None

    def _answer(self, client: Client, words: list[bytes]) -> Reply:
        if client.transaction.is_open and words[0].lower() != b"reset":
            return self._owner.commands.answer(client, words)
        reply = self._subscriber.answer(words)
        if reply is not NotImplemented:
            return reply
        if len(words) == 2 and client.reader is not None and words[0].lower() == b"get":
            try:
                return self._owner.quick.get(client, words[1])
            except NotPlain:
                pass
        return self._owner.commands.answer(client, words)

    def _again(self) -> None:
        if not self._is_over and self._running is None and not self._is_blocked:
            self._go_on()

    async def _run(self, client: Client, work: Awaitable[Reply]) -> None:
        owner, began = self._owner, self._owner.loop.time()
        try:
            reply = await work
        except asyncio.CancelledError:
            raise
        except MillpondError as error:
            reply = error_reply(error)
        except Exception as error:  # noqa: BLE001 - as above
            reply = owner.failed(error)
        owner.counted(reply, owner.loop.time() - began, client)
        self._running = None
        if not self._is_over:
            self._transport.write(encode(reply, client.protocol))
            self._go_on()

    def _mind(self) -> None:
        """Read from the client only if its commands can be answered; note since when something is unfinished."""
        busy = self._running is not None or self._is_blocked
        if self._is_over or self._transport.is_closing():
            return
        if busy and self._transport.is_reading():
            self._transport.pause_reading()
        elif not busy and not self._transport.is_reading():
            self._transport.resume_reading()
        unfinished = self._is_blocked or (self._running is None and self._commands.is_partial)
        if not unfinished:
            self.since = None
        elif self.since is None:
            self.since = self._owner.loop.time()

    def _end(self, error: Error) -> None:
        self._is_over = True
        self._transport.write(encode(error, 2))
        self._transport.close()

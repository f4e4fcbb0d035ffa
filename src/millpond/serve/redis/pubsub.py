"""The commands of one connection that subscribe, and what it may do then.

Without RESP3, a connection with subscriptions takes no other commands than these, PING, QUIT and
RESET: nobody could say which is a reply and which a message.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from millpond.errors import MillpondError
from millpond.serve.access.tokens import EVERYBODY, Reader
from millpond.serve.redis.commands import Client, error_reply
from millpond.serve.redis.notices import MOST_CHANNELS, MOST_PATTERNS, Notices
from millpond.serve.redis.wire import Error, Push, Replies, Reply
from millpond.serve.waiting.waits import Quota

_BEGINNING = {b"subscribe": MOST_CHANNELS, b"psubscribe": MOST_PATTERNS}
_ENDING = (b"unsubscribe", b"punsubscribe")
_ALWAYS = frozenset((*_BEGINNING, *_ENDING, b"ping", b"quit", b"reset"))


class Subscriber:
    """The subscriptions of one connection.

    write:   sends a message
    quota:   of event streams: a connection that subscribes is one
    """

    def __init__(self, client: Client, notices: Notices, quota: Quota, write: Callable[[Push], None]) -> None:
        self._client, self._notices, self._quota = client, notices, quota
        self._channels: dict[bytes, None] = {}
        self._patterns: dict[bytes, None] = {}
        self._seat = ExitStack()
        self.publish = write

    @property
    def reader(self) -> Reader | None:
        """See `notices.Listener`."""
        return self._client.reader

    @property
    def is_subscribed(self) -> bool:
        """Whether there are subscriptions."""
        return bool(self._channels or self._patterns)

    def begins(self, words: list[bytes]) -> bool:
        """Whether a command subscribes, which takes time."""
        return words[0].lower() in _BEGINNING and len(words) > 1 and self._client.reader is not None

    def answer(self, words: list[bytes]) -> Reply:
        """The reply to a command that is a matter of subscriptions; NotImplemented if it isn't."""
        name = words[0].lower()
        if self._client.reader is None:
            is_mine = name in _BEGINNING or name in _ENDING or name == b"pubsub"
            return Error("NOAUTH Authentication required.") if is_mine else NotImplemented
        if name in _BEGINNING or (name == b"pubsub" and len(words) == 1):
            return Error(f"ERR wrong number of arguments for '{name.decode()}' command")
        if name == b"reset":
            self.close()
        if name in _ENDING:
            return self._unsubscribe(name, words[1:])
        if name == b"pubsub":
            return self._about(words[1:])
        if not self.is_subscribed or self._client.protocol == 3:
            return NotImplemented
        if name == b"ping":
            return [b"pong", words[1] if len(words) > 1 else b""]
        if name not in _ALWAYS:
            shown = name[:128].decode("utf-8", "replace")
            return Error(
                f"ERR Can't execute '{shown}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET "
                "are allowed in this context"
            )
        return NotImplemented

    async def subscribe(self, words: list[bytes]) -> Reply:
        """The reply to a command that subscribes."""
        name, given, reader = words[0].lower(), words[1:], self._client.reader
        assert reader is not None
        is_pattern = name == b"psubscribe"
        mine = self._patterns if is_pattern else self._channels
        most = _BEGINNING[name]
        if len({*mine, *given}) > most:
            return Error(f"ERR A connection may have {most} subscriptions of this kind. Unsubscribe from some first")
        try:
            self._notices.count_request(reader, self._client.address)
            if not self.is_subscribed:
                asker = self._client.address if reader is EVERYBODY else f"reader {reader.name}"
                self._seat.enter_context(self._quota.taken(asker))
            await self._notices.begin(() if is_pattern else given, given if is_pattern else (), reader)
        except MillpondError as error:
            self._let_go()
            return error_reply(error)
        except BaseException:
            self._let_go()
            raise
        out = Replies()
        for each in given:
            mine[each] = None
            (self._notices.psubscribe if is_pattern else self._notices.subscribe)(self, each)
            out.append(Push([name, each, self._count]))
        return out

    def close(self) -> None:
        """End all subscriptions."""
        for channel in self._channels:
            self._notices.unsubscribe(self, channel)
        for pattern in self._patterns:
            self._notices.punsubscribe(self, pattern)
        self._channels.clear()
        self._patterns.clear()
        self._let_go()

    def _unsubscribe(self, name: bytes, given: list[bytes]) -> Reply:
        is_pattern = name == b"punsubscribe"
        mine = self._patterns if is_pattern else self._channels
        out = Replies()
        for each in given or list(mine):
            mine.pop(each, None)
            (self._notices.punsubscribe if is_pattern else self._notices.unsubscribe)(self, each)
            out.append(Push([name, each, self._count]))
        self._let_go()
        return out or Push([name, None, self._count])

    def _about(self, words: list[bytes]) -> Reply:
        part = words[0].lower()
        if part == b"channels" and len(words) <= 2:
            return self._notices.channels(words[1] if len(words) == 2 else None)
        if part == b"numsub":
            return [fact for channel in words[1:] for fact in (channel, self._notices.count(channel))]
        if part == b"numpat" and len(words) == 1:
            return self._notices.count_patterns()
        return Error(f"ERR unknown subcommand '{words[0][:40].decode('utf-8', 'replace')}'. Try PUBSUB HELP.")

    def _let_go(self) -> None:
        if not self.is_subscribed:
            self._seat.close()

    @property
    def _count(self) -> int:
        return len(self._channels) + len(self._patterns)

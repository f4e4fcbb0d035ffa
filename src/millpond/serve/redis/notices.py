"""Keyspace notifications: which connections wait for which channels, and what is published to them.

    __keyspace@0__:<key>    set, del or expired
    __keyevent@0__:set      the key; also __keyevent@0__:del and __keyevent@0__:expired

1. As long as a subscription may name keys of a table, one task for all follows the table's changes.
   It begins before the subscription is confirmed, so that none is missed from then on.
2. A change of a key by a batch is two messages, as in Redis: the event, and the key.  The batch can be
   read by then.
3. A message goes to the connections whose token opens the table.  What isn't read there is the
   connection's own matter.

Source:  https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from starlette.concurrency import run_in_threadpool

from millpond.errors import MillpondError
from millpond.serve.access.tokens import EVERYBODY, Reader
from millpond.serve.redis.keyspace import RedisKeys, plain_part, split_key
from millpond.serve.redis.scan import matcher, may_match
from millpond.serve.redis.wire import Push

if TYPE_CHECKING:
    from millpond.serve.app import HttpDoor
    from millpond.tables.history.changes import Changes

KEYSPACE, KEYEVENT = b"__keyspace@0__:", b"__keyevent@0__:"
MOST_CHANNELS, MOST_PATTERNS = 10_000, 100
"""of one connection"""
_EVENTS = {"insert": b"set", "update": b"set", "expire": b"expired"}
_DELETED = b"del"
_PAGE_CHANGES = 1000
# Changes of so many keys are published before other connections have their turn.
_TURN_KEYS = 100
_WAIT_SECONDS = 0.5
_LOOK_SECONDS = 1.0
# The client in `Turns` for reads on behalf of all subscriptions.
_ASKER = "redis.notices"


class Listener(Protocol):
    """A connection that subscribes."""

    @property
    def reader(self) -> Reader | None:
        """Who reads there; None if its token is no longer valid."""

    def publish(self, message: Push, /) -> None:
        """Send a message."""


class Notices:
    """The subscriptions of one process."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._channels: dict[bytes, dict[Listener, None]] = {}
        self._patterns: dict[bytes, tuple[Callable[[bytes], bool], dict[Listener, None]]] = {}
        self._feeds: dict[str, _Feed] = {}
        self._looking: asyncio.Task[None] | None = None
        self._beginning = 0  # subscriptions that aren't there yet

    async def begin(self, channels: Sequence[bytes], patterns: Sequence[bytes], reader: Reader) -> None:
        """Follow the tables whose keys these may name.

        Raises:  NOT_ALLOWED for a table that the reader may not read, and HISTORY_GONE for one
                 without history, if the name of the table is given.
        """
        from millpond.serve.app import check_reader

        wanted = [*channels, *patterns]
        named = {name for name in map(_table_of, wanted) if name is not None}
        self._beginning += 1
        try:
            for name in sorted(named):
                check_reader(self._door.ponds, reader, name)
            for name in await run_in_threadpool(self._door.ponds.tables):
                may_read = reader is EVERYBODY or reader.may_read(self._door.ponds.names_of(name))
                if may_read and any(_may_name(each, name) for each in wanted):
                    await self._feed(name).begun(must=name in named)
        finally:
            self._beginning -= 1

    def count_request(self, reader: Reader, address: str) -> None:
        """Raises TOO_MANY_REQUESTS."""
        self._door.access.count(reader, address)

    def subscribe(self, listener: Listener, channel: bytes) -> None:
        """Send what is published to a channel."""
        self._channels.setdefault(channel, {})[listener] = None
        self._look_on()

    def psubscribe(self, listener: Listener, pattern: bytes) -> None:
        """Send what is published to channels that match a pattern."""
        known = self._patterns.get(pattern)
        if known is None:
            known = self._patterns[pattern] = matcher(pattern), {}
        known[1][listener] = None
        self._look_on()

    def unsubscribe(self, listener: Listener, channel: bytes) -> None:
        """Send that no more."""
        there = self._channels.get(channel, {})
        there.pop(listener, None)
        if not there:
            self._channels.pop(channel, None)

    def punsubscribe(self, listener: Listener, pattern: bytes) -> None:
        """Send that no more."""
        known = self._patterns.get(pattern)
        if known is not None:
            known[1].pop(listener, None)
            if not known[1]:
                del self._patterns[pattern]

    def channels(self, pattern: bytes | None) -> list[bytes]:
        """The channels that have subscriptions."""
        matching = matcher(pattern)
        return [channel for channel in self._channels if matching(channel)]

    def count(self, channel: bytes) -> int:
        """How many connections subscribe to a channel."""
        return len(self._channels.get(channel, ()))

    def count_patterns(self) -> int:
        """How many patterns have subscriptions."""
        return len(self._patterns)

    def close(self) -> None:
        """Follow nothing any more."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        if self._looking is not None:
            self._looking.cancel()

    # ------------------------------------------------------------ what is published

    def _feed(self, name: str) -> _Feed:
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = _Feed(self._door, name, self.publish)
        return feed

    def publish(self, table: str, event: bytes, key: bytes) -> None:
        """Send the two messages of a change."""
        for channel, message in ((KEYSPACE + key, event), (KEYEVENT + event, key)):
            for listener in list(self._channels.get(channel, ())):
                self._send(listener, table, [b"message", channel, message])
            for pattern, (matching, listeners) in list(self._patterns.items()):
                if matching(channel):
                    for listener in list(listeners):
                        self._send(listener, table, [b"pmessage", pattern, channel, message])

    def _send(self, listener: Listener, table: str, words: list[bytes]) -> None:
        reader = listener.reader
        if reader is EVERYBODY or (reader is not None and reader.may_read(self._door.ponds.names_of(table))):
            listener.publish(Push(words))

    def _look_on(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Follow tables that have come, and those no longer that nobody waits for."""
        while self._feeds or self._channels or self._patterns:
            await asyncio.sleep(_LOOK_SECONDS)
            tables = set(await run_in_threadpool(self._door.ponds.tables))
            wanted = {name for name in tables if any(_may_name(each, name) for each in [*self._channels, *self._patterns])}
            for name in wanted - self._feeds.keys():
                self._feed(name)
            for name in () if self._beginning else self._feeds.keys() - wanted:
                self._feeds.pop(name).close()


class _Feed:
    """Follows the changes of one table."""

    def __init__(self, door: HttpDoor, name: str, publish: Callable[[str, bytes, bytes], None]) -> None:
        self._door, self._name, self._publish = door, name, publish
        self._keys: tuple[object, RedisKeys] | None = None
        self._begun: asyncio.Future[MillpondError | None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def begun(self, *, must: bool) -> None:
        """Return when it follows the table, or can't; then raise HISTORY_GONE if it must."""
        problem = await asyncio.shield(self._begun)
        if must and problem is not None and problem.condition == "HISTORY_GONE":
            raise problem

    def close(self) -> None:
        """Follow it no longer."""
        self._task.cancel()
        if not self._begun.done():
            self._begun.set_result(None)

    async def _run(self) -> None:
        token: str | None = None
        job: object = None
        while True:
            try:
                table = self._door.ponds[self._name]
                watch = self._door.patience.watch(table)
                count = watch.count
                if table.job != job:  # another version of an aggregate, too
                    token, job = None, table.job
                read = partial(table.changes, token, limit=_PAGE_CHANGES)
                page: Changes = await self._door.patience.read(_ASKER, read, is_large=False)
            except MillpondError as error:
                self._note(error)
                if error.condition in ("HISTORY_GONE", "INVALID_TOKEN"):
                    token = None  # what is no longer kept isn't published
                await asyncio.sleep(_WAIT_SECONDS)
                continue
            token = page.token
            self._note(None)
            if page:
                await self._publish_all(table.definition, page)
            if not page.more:
                await watch.beyond(count, _WAIT_SECONDS)

    def _note(self, problem: MillpondError | None) -> None:
        if not self._begun.done():
            self._begun.set_result(problem)

    async def _publish_all(self, definition: object, page: Changes) -> None:
        if self._keys is None or self._keys[0] is not definition:
            self._keys = definition, RedisKeys(self._name, definition)  # type: ignore[arg-type]
        last: tuple[int, bytes] | None = None
        for number, change in enumerate(page):
            key = self._keys[1].write(change.row)
            if (change.batch, key) == last:  # an element of a list, of which the key has several
                continue
            last = change.batch, key
            self._publish(self._name, _EVENTS.get(change.kind, _DELETED), key)
            if number % _TURN_KEYS == _TURN_KEYS - 1:
                await asyncio.sleep(0)


def _table_of(channel: bytes) -> str | None:
    """The table of which a channel or pattern names keys; None if it may name those of several."""
    if not channel.startswith(KEYSPACE):
        return None
    head = plain_part(channel[len(KEYSPACE) :])
    return split_key(head)[0] if b":" in head else None


def _may_name(channel: bytes, table: str) -> bool:
    """Whether a channel or pattern may be one of a table's keys."""
    own = KEYSPACE + table.encode("utf-8", "surrogateescape") + b":"
    return may_match(channel, own) or may_match(channel, KEYEVENT)

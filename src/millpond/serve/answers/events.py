"""Changes of a table as server-sent events: one event per page; its id is the token to continue.

    id: <token>
    event: changes
    data: {"table": …, "batch": …, "changes": […], "more": false, "token": "…"}

A client that returns with that id in `Last-Event-ID`, as browsers do by themselves, gets the next
change, and none twice.  Without changes, the stream sends a comment now and then, so that proxies
keep it open and dead connections are noticed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol

from millpond.errors import MillpondError
from millpond.schema.values import encode_json
from millpond.wire.answers import ChangesAnswer, error_json

# How soon a stream notices that the server ends, or that its token is no longer valid.
TICK_SECONDS = 0.4
ALIVE_SECONDS = 10.0
# Errors that don't end a stream.
_PASSING = frozenset(
    {"REPLICA_BUILDING", "NO_COMMITTED_BATCH", "STORAGE_UNAVAILABLE", "FILE_GONE", "SERVER_UNAVAILABLE", "NO_COMMON_BATCH"}
)
RETRY = b"retry: 1000\n\n"
"""tells a client after how many milliseconds to return"""


class Batches(Protocol):
    """Counts the batches that came."""

    @property
    def count(self) -> int:
        """How many."""

    async def beyond(self, count: int, seconds: float) -> object:
        """Wait until there are more, for so long at most."""


class Event(NamedTuple):
    """A page of changes, written.

    token:        the place where it ends
    has_changes:  whether the page has changes
    text:         the event in the stream's form
    """

    token: str
    has_changes: bool
    text: bytes


def event_of(page: ChangesAnswer) -> Event:
    """The event of a page of changes."""
    text = b"id: %b\nevent: changes\ndata: %b\n\n" % (page.token.encode(), encode_json(page))
    return Event(page.token, bool(page.changes), text)


def error_event(error: MillpondError) -> bytes:
    """The event that ends a stream; it has no id."""
    return b"event: error\ndata: %b\n\n" % encode_json(error_json(error))


async def event_stream(
    first: Event,
    look: Callable[[str], Awaitable[Event]],
    watch: Batches,
    check: Callable[[], None],
    is_ending: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Events from the first one on, until the server ends or the changes are gone.

    look:   reads the present changes after a token
    check:  raises if the reader may no longer read
    Shape:  an error that ends the stream is an event `error`, with the error's JSON; it has no id.
    """
    yield RETRY + first.text
    token = first.token
    checked = sent = time.monotonic()
    while not is_ending():
        count, problem = watch.count, b""
        try:
            if time.monotonic() - checked > TICK_SECONDS:
                check()
                checked = time.monotonic()
            event = await look(token)
            token = event.token
            if event.has_changes:
                yield event.text
                sent = time.monotonic()
                continue
        except MillpondError as error:
            if error.condition not in _PASSING:
                yield error_event(error)
                return
            problem = b": %b\n\n" % error.condition.encode()
        if time.monotonic() - sent > ALIVE_SECONDS:
            yield problem or b": alive\n\n"
            sent = time.monotonic()
        await watch.beyond(count, TICK_SECONDS)

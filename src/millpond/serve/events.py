"""Changes of a table as server-sent events: one event a page of changes, whose id is the token to go on from.

    id: <token>
    event: changes
    data: {"table": …, "batch": …, "changes": […], "more": false, "token": "…"}

A client that comes back with that id in `Last-Event-ID`, as browsers do by themselves, gets the next change, and none twice.  Where
there is nothing to tell, a comment goes out now and then, so that proxies and dead connections are noticed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

from millpond.errors import MillpondError
from millpond.schema.values import Json, encode_json
from millpond.serve.shapes import error_json

_PAGE_CHANGES = 1000
# One look for changes: so soon a stream notices that the server ends.
_LOOK_SECONDS = 1.0
_ALIVE_SECONDS = 10.0
# Errors that a stream outlives.
_PASSING = frozenset({"REPLICA_BUILDING", "NO_COMMITTED_BATCH", "STORAGE_UNAVAILABLE", "FILE_GONE"})
_RETRY_MS = 1000

Look = Callable[[str | int | None, int, float], Awaitable[dict[str, Json]]]
"""(since, limit, seconds to wait) -> the answer of one look for changes"""


async def event_stream(first: dict[str, Json], look: Look, is_ending: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Events from the first answer on, until the server ends or the changes can't be told any more.

    Shape:  an error that ends the stream is an event `error`, with the error's JSON; it has no id.
    """
    yield b"retry: %d\n\n" % _RETRY_MS + _event(first)
    token, told = first["token"], time.monotonic()
    while not is_ending():
        try:
            page = await look(token, _PAGE_CHANGES, _LOOK_SECONDS)
        except MillpondError as error:
            if error.condition in _PASSING:
                yield b": %b\n\n" % error.condition.encode()
                continue
            yield b"event: error\ndata: %b\n\n" % encode_json(error_json(error))
            return
        token = page["token"]
        if page["changes"]:
            yield _event(page)
            told = time.monotonic()
        elif time.monotonic() - told > _ALIVE_SECONDS:
            yield b": alive\n\n"
            told = time.monotonic()


def _event(page: dict[str, Json]) -> bytes:
    return b"id: %b\nevent: changes\ndata: %b\n\n" % (page["token"].encode(), encode_json(page))

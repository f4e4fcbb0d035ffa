"""Lookups of keys of one shard: asked of a server that has it, and answered with its very rows.

1. The question is read as always.  What isn't such a lookup, the application answers: another form
   or state, a bound, keys of several shards, tables in parts, a table that isn't known yet.
2. The same question goes to a server of the shard (`asking`).
3. If the answer is a good one, and by the definition that is known here, its body is the answer.
   Errors, and answers by another definition, are left to the application: it asks anew.

The gate stands before both ways: rights, rates and counts are the same.  A test compares their
bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.client.reads import Known
from millpond.errors import MillpondError
from millpond.router.quick.asking import QuickServers
from millpond.router.reads.table import ShardedTable
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import decode_json
from millpond.serve.access.tokens import check_may_read
from millpond.serve.answers import replies
from millpond.serve.formats import JSON
from millpond.serve.hot.protocol import takes_json
from millpond.settings import ServeSettings
from millpond.tables.scan.keys import Key
from millpond.wire.parse import Asked, parse_json, parse_url
from millpond.wire.query import parse_query
from millpond.wire.questions import Keys, Scan

_BEGIN, _ROWS, _KEYS = b"/tables/", b"/rows", b"/rows:get"
# A longer body, or more keys, would keep others waiting.
_MOST_BODY_BYTES, _MOST_KEYS = 16_384, 100
# The application answers requests with one of these headers.
_UNUSUAL = frozenset({b"if-none-match", b"transfer-encoding", b"expect"})


class Door(Protocol):
    """The part of `RouterDoor` that lookups use."""

    settings: ServeSettings

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """By name, as counts name them."""

    def known_table(self, name: str) -> ShardedTable | None:
        """The table of that name, if it was asked for before."""

    def shape(self, name: str, definition: TableDefinition) -> replies.Shape:
        """How to write its rows."""


class QuickLookups:
    """An application before another one, which gets what this one can't answer."""

    def __init__(self, app: ASGIApp, door: Door, servers: QuickServers) -> None:
        self._app = app
        self._door = door
        self._servers = servers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: bytes | None = None
        name = self._table_of(scope)
        if name is not None and scope["method"] == "POST":
            messages = deque([await receive()])
            body = messages[0].get("body", b"")
            while messages[-1].get("more_body") and len(body) <= _MOST_BODY_BYTES:
                messages.append(await receive())
                body += messages[-1].get("body", b"")
            if messages[-1].get("more_body", True) or len(body) > _MOST_BODY_BYTES:
                name = None
            receive = _again(messages, receive)
        answer = None if name is None else await self._answer(scope, name, body)
        await (answer or self._app)(scope, receive, send)

    def _table_of(self, scope: Scope) -> str | None:
        """The table that is asked, if it may be a lookup."""
        path: bytes = scope["raw_path"]
        is_get = scope["method"] == "GET"
        end = _ROWS if is_get else _KEYS
        name = path[len(_BEGIN) : -len(end)]
        if not (path.startswith(_BEGIN) and path.endswith(end)) or not name.isascii() or b"%" in name or b"/" in name:
            return None
        if scope["method"] not in ("GET", "POST") or is_get != bool(scope["query_string"]):
            return None
        headers = dict(scope["headers"])
        if not _UNUSUAL.isdisjoint(headers) or (is_get and b"content-length" in headers):
            return None
        return name.decode() if takes_json(headers, scope["headers"]) else None

    async def _answer(self, scope: Scope, name: str, body: bytes | None) -> ASGIApp | None:
        door = self._door
        table = door.known_table(name)
        if table is None or (known := table.known) is None:
            return None
        try:
            check_may_read(scope["reader"], name, (name,))
            keys = _keys_of_url(known, scope["query_string"], door.settings) if body is None else _keys(known, body, door.settings)
            shard = None if keys is None else table.try_shard(known, keys)
        except (MillpondError, ValueError):
            return None
        if shard is None:
            return None
        path = scope["raw_path"] + (b"?" + scope["query_string"] if body is None else b"")
        found = await self._servers.try_ask(shard.servers, path, body)
        if found is None or found.definition.decode("latin-1") != known.digest:
            return None
        accepted = dict(scope["headers"]).get(b"accept-encoding", b"").decode("latin-1")
        ask = replies.Ask(form=JSON, if_none_match="", accept_encoding=accepted, settings=door.settings)
        try:
            response = replies.written(ask, replies.plain_headers(ask, door.shape(name, known.definition)), found.body)
        except MillpondError:
            return None
        scope["endpoint"] = door.endpoints["rows" if body is None else "rows_get"]
        return response


def _keys_of_url(known: Known, query: bytes, settings: ServeSettings) -> list[Key] | None:
    """The key of a lookup.  Raises as the route."""
    question, columns = parse_url(Scan, parse_query(query), settings)
    if question != Scan() or not columns:
        return None
    scan = Asked(question, columns).typed(known.definition)
    return [scan.key] if scan.is_lookup(known.definition) else None


def _keys(known: Known, body: bytes, settings: ServeSettings) -> list[Key] | None:
    """The same of a body.  Raises ValueError if it isn't JSON."""
    question = parse_json(Keys, decode_json(body), settings)
    if question != Keys(keys=question.keys) or not 0 < len(question.keys) <= _MOST_KEYS:
        return None
    return question.typed(known.definition).keys


def _again(messages: deque[Message], receive: Receive) -> Receive:
    """The messages of a request, of which some were received before."""

    async def receive_again() -> Message:
        return messages.popleft() if messages else await receive()

    return receive_again

"""The one request that must be quick, answered below the framework: `GET /tables/{table}/rows` with the whole key.

A task, a scope and three calls of `send` cost more than the lookup itself, so the protocol answers this request as soon as its
headers are read.  Whatever is unusual about a request (another form, an ETag, a body, a column that isn't known, an error) goes the
long way, which says what is wrong; both ways give the same bytes, which a test compares over all tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from millpond.errors import MillpondError
from millpond.serve.app import HttpDoor, check_reader
from millpond.serve.formats import JSON
from millpond.serve.replies import CACHE_CONTROL, DEFINITION, VARY, Shape, etag
from millpond.serve.shapes import position_json
from millpond.tables.answer import Cut
from millpond.tables.table import Table
from millpond.tables.values import encode_json, from_text

Headers = list[tuple[bytes, bytes]]
_BEGIN, _END = b"/tables/", b"/rows"
_ANY = frozenset({b"*/*", b"application/json"})
# Requests that carry one of these go the long way.
_UNUSUAL = frozenset({b"if-none-match", b"content-length", b"transfer-encoding", b"upgrade", b"expect"})
_ONE = b'"rows":[%b],"changed":[%b],"final":[%b],"evicted":[],"maybe_evicted":[],"more":false,"token":null}'
_NONE = b'"rows":[],"changed":[],"final":[],"evicted":[%b],"maybe_evicted":[%b],"more":false,"token":null}'
_lag = msgspec.json.Encoder().encode


class _Plan:
    """How a key of one table is read from a URL, and its row written."""

    def __init__(self, name: str, table: Table, shape: Shape) -> None:
        self.table = table
        self.shape = shape
        definition = table.definition
        self.columns = {
            c.name.encode("utf-8", "surrogateescape"): (c.name, from_text(c.type, column=c.name)) for c in definition.key
        }
        self.is_plain = not any(column.startswith(b"_") or column.endswith(b"__isnull") for column in self.columns)
        self._begin = b'{"table":' + encode_json(name) + b","
        self._cut: tuple[Any, str] | None = None
        self._head, self._where = b"", b""

    def key(self, query: bytes) -> dict[str, Any] | None:
        """The key; None where the query isn't plainly the whole of it.  Raises WRONG_TYPE."""
        key: dict[str, Any] = {}
        for part in query.split(b"&"):
            name, equals, text = part.partition(b"=")
            column = self.columns.get(name)
            if column is None or not equals or column[0] in key:
                return None
            if b"%" in text or b"+" in text:
                text = unquote_to_bytes(text.replace(b"+", b" "))
            key[column[0]] = column[1](text.decode("utf-8", "surrogateescape"))
        return key if len(key) == len(self.columns) else None

    def answer(self, key: dict[str, Any]) -> tuple[bytes, bytes]:
        """The head and the body of an answer."""
        row = self.table.get(key)
        cut = row.cut
        if self._cut is None or self._cut[0] is not cut.position or self._cut[1] != cut.generation:
            self._remember(cut)
        state = cut.job_state.encode()
        if not row:
            evicted, maybe = b"0" if row.evicted else b"", b"0" if row.evicted is None else b""
            return self._head, b'%b%b,"job_state":"%b",%b' % (self._where, _lag(cut.lag), state, _NONE % (evicted, maybe))
        changed, final = row.changed_batch, b"0" if row.final else b""
        told = encode_json(self.shape.write(row)), b"null" if changed is None else b"%d" % changed, final
        return self._head, b'%b%b,"job_state":"%b",%b' % (self._where, _lag(cut.lag), state, _ONE % told)

    def _remember(self, cut: Cut) -> None:
        """What is the same in all answers of a batch."""
        told = encode_json({"job": cut.job, "batch": cut.position.batch, "position": position_json(cut.position)})
        self._where = self._begin + told[1:-1] + b',"lag":'
        tag = etag(cut, self.shape, JSON)
        head = f"etag: {tag}\r\ncache-control: {CACHE_CONTROL}\r\nvary: {VARY}\r\n{DEFINITION}: {self.shape.digest}\r\n"
        self._head = head.encode() + b"content-type: application/json\r\ncontent-length: "
        self._cut = (cut.position, cut.generation)


class HotRows:
    """Answers the hot route for a door."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._plans: dict[bytes, _Plan] = {}
        self._gzip_bytes = door.settings.gzip_bytes

    def answer(self, url: bytes, headers: Headers, client: str) -> bytes | None:
        """What to send behind the status line and the server's own headers; None where the long way must be gone."""
        path, _, query = url.partition(b"?")
        if not (query and path.startswith(_BEGIN) and path.endswith(_END)):
            return None
        name = path[len(_BEGIN) : -len(_END)]
        if b"%" in name or b"/" in name or not name.isascii():
            return None
        found: dict[bytes, bytes] = dict(headers)
        if not _UNUSUAL.isdisjoint(found) or found.get(b"accept", b"*/*") not in _ANY:
            return None
        began = time.perf_counter()
        door = self._door
        try:
            text = name.decode()
            table = door.ponds[text]
            plan = self._plans.get(name)
            if plan is None or plan.table is not table or plan.shape.definition is not table.definition:
                plan = self._plans[name] = _Plan(text, table, door.shape(text, table))
            if not plan.is_plain or (key := plan.key(query)) is None:
                return None
            reader = door.access.peek(found)
            check_reader(door.ponds, reader, text)
            head, body = plan.answer(key)
            if plan.shape.definition is not table.definition or len(body) >= self._gzip_bytes:
                return None
            door.access.count(reader, client)
        except MillpondError:
            return None
        door.meter.count("rows", 200, time.perf_counter() - began)
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)


def hot_protocol(hot: HotRows) -> Callable[..., HttpToolsProtocol]:
    """uvicorn's protocol, with the hot route in front."""

    class HotProtocol(HttpToolsProtocol):
        _answer: bytes | None = None

        def on_headers_complete(self) -> None:
            self._answer = None
            parser, cycle = self.parser, self.cycle
            if (
                parser.get_method() == b"GET"
                and (cycle is None or cycle.response_complete)
                and not self.pipeline
                and not self.flow.write_paused
                and not self.transport.is_closing()
                and parser.get_http_version() == "1.1"
                and parser.should_keep_alive()
            ):
                self._answer = hot.answer(self.url, self.headers, self.client[0] if self.client else "")
            if self._answer is None:
                super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if self._answer is None:
                super().on_body(body)

        def on_message_complete(self) -> None:
            if self._answer is None:
                super().on_message_complete()
                return
            parts = [b"HTTP/1.1 200 OK\r\n"]
            for name, value in self.server_state.default_headers:
                parts += (name, b": ", value, b"\r\n")
            parts.append(self._answer)
            self._answer = None
            self.transport.write(b"".join(parts))
            self.on_response_complete()

    return HotProtocol

"""The quick route, answered below the framework: `GET /tables/{table}/rows` with the whole key.

1. The connection (`connection.py`) answers as soon as a request's headers are read: a task, a scope
   and three calls of `send` cost more than a lookup.
2. Requests that the event loop finds at the same time share one view of the replica.  It is opened
   for the first of them and closed before the loop looks for more, so it is never older than the
   requests.  The common part of these answers is written once; each key is read.
3. A row is written from its stored bytes (`row_json`).

The application answers any unusual request (another form, an ETag, a body, an unknown column, an
error).  Both give the same bytes, which a test compares over all tables.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from millpond.errors import MillpondError
from millpond.replica.keys.codec import text_key
from millpond.schema.convert import to_stored
from millpond.schema.values import encode_json, from_text
from millpond.serve.access.tokens import EVERYBODY
from millpond.serve.app import HttpDoor, check_reader
from millpond.serve.formats import JSON
from millpond.serve.hot.row_json import RowWriter
from millpond.serve.replies import CACHE_CONTROL, DEFINITION, VARY, Shape, etag
from millpond.tables.answer import Cut
from millpond.tables.scan.binding import Binding
from millpond.tables.scan.keys import KeyReader
from millpond.tables.scan.raw_lookup import Lookups
from millpond.tables.table import Table
from millpond.wire.answers import position_json

Headers = list[tuple[bytes, bytes]]
_BEGIN, _END = b"/tables/", b"/rows"
_ANY = frozenset({b"*/*", b"application/json"})
# The application answers requests with one of these headers.
_UNUSUAL = frozenset({b"if-none-match", b"content-length", b"transfer-encoding", b"upgrade", b"expect"})
_TAIL = b',"evicted":[],"maybe_evicted":[],"more":false,"token":null}'
_EVICTED = _TAIL.replace(b'"evicted":[]', b'"evicted":[0]', 1)
_MAYBE_EVICTED = _TAIL.replace(b'"maybe_evicted":[]', b'"maybe_evicted":[0]')
_NOTHING = b'],"changed":[],"final":[]'
_lag = msgspec.json.Encoder().encode


class _Plan:
    """How to parse a key of one table from a URL, and how to write its rows."""

    def __init__(self, name: str, table: Table, shape: Shape) -> None:
        self.table = table
        self.shape = shape
        definition = table.definition
        reads = [(c.name, from_text(c.type, column=c.name), to_stored(c.type)) for c in definition.key]
        self.columns = {
            name.encode("utf-8", "surrogateescape"): (place, read, store) for place, (name, read, store) in enumerate(reads)
        }
        is_whole = KeyReader(definition).columns is not None
        self.is_plain = is_whole and not any(column.startswith(b"_") or column.endswith(b"__isnull") for column in self.columns)
        kinds = [c.type.kind for c in definition.key]
        self.text = next(iter(self.columns)) if kinds == ["string"] else None
        self._begin = b'{"table":' + encode_json(name) + b","
        self._frame: tuple[Any, str, bytes, bytes] | None = None
        self._binding: Binding | None = None
        self._writer: RowWriter

    def writer(self, binding: Binding) -> RowWriter:
        """The writer for rows of this generation."""
        if binding is not self._binding:
            self._binding, self._writer = binding, RowWriter(binding)
        return self._writer

    def key(self, query: bytes) -> tuple[Any, ...] | None:
        """The key row in stored form; None if the query isn't plainly the whole of it.  Raises WRONG_TYPE."""
        parts, key = query.split(b"&"), [None] * len(self.columns)
        if len(parts) != len(key):
            return None
        for part in parts:
            name, equals, text = part.partition(b"=")
            column = self.columns.get(name)
            if column is None or not equals or key[column[0]] is not None:
                return None
            key[column[0]] = column[2](column[1](_unquoted(text).decode("utf-8", "surrogateescape")))
        return tuple(key)

    def frame(self, cut: Cut) -> tuple[bytes, bytes]:
        """Headers and the beginning of the body, which all answers of a batch share."""
        frame = self._frame
        if frame is None or frame[0] is not cut.position or frame[1] != cut.generation:
            where = encode_json({"job": cut.job, "batch": cut.position.batch, "position": position_json(cut.position)})
            head = (
                f"etag: {etag(cut, self.shape, JSON)}\r\ncache-control: {CACHE_CONTROL}\r\nvary: {VARY}\r\n"
                f"{DEFINITION}: {self.shape.digest}\r\ncontent-type: application/json\r\ncontent-length: "
            )
            frame = self._frame = (cut.position, cut.generation, head.encode(), self._begin + where[1:-1] + b',"lag":')
        return frame[2], frame[3]


class _Moment:
    """Answers from one view of one table."""

    __slots__ = ("_encode", "_head", "_lookups", "_plan", "_text", "_where", "_writer")

    def __init__(self, plan: _Plan, lookups: Lookups) -> None:
        cut, binding = lookups.cut, lookups.binding
        self._plan, self._lookups, self._text = plan, lookups, plan.text
        self._encode, self._writer = binding.codec.encode, plan.writer(binding)
        self._head, where = plan.frame(cut)
        self._where = b'%b%b,"job_state":"%b","rows":[' % (where, _lag(cut.lag), cut.job_state.encode())

    def answer(self, query: bytes, limit: int) -> bytes | None:
        """Headers and body; None if the application must answer, as for a body of `limit` bytes or more.

        Raises:  WRONG_TYPE.
        """
        tail, key = _TAIL, None
        if self._text is not None:
            name, equals, text = query.partition(b"=")
            if name != self._text or not equals or b"&" in text:
                return None
            text = _unquoted(text)
            stored = self._lookups.get(text_key(text))
            row = self._writer.write_of_text(text, stored) if stored else None
        else:
            text, key = b"", self._plan.key(query)
            if key is None:
                return None
            stored = self._lookups.get(self._encode(key))
            row = self._writer.write(key, stored) if stored else None
        if stored is None:
            found = self._lookups.row(key if key is not None else (text.decode("utf-8", "surrogateescape"),))
            row = self._writer.write_row(found) if found else None
            if found.evicted is not False:
                tail = _EVICTED if found.evicted else _MAYBE_EVICTED
        if row is None:
            row = _NOTHING
        size = len(self._where) + len(row) + len(tail)
        return b"%b%d\r\n\r\n%b%b%b" % (self._head, size, self._where, row, tail) if size < limit else None

    def close(self) -> None:
        self._lookups.close()


class HotRows:
    """Answers the hot route for a door.

    defer:  calls a function before the event loop looks for requests again
    """

    def __init__(self, door: HttpDoor, defer: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._door = door
        self._defer = defer or (lambda function: asyncio.get_running_loop().call_soon(function))
        self._plans: dict[bytes, _Plan] = {}
        self._moments: dict[bytes, _Moment] = {}
        self._gzip_bytes = door.settings.gzip_bytes

    def answer(self, url: bytes, headers: Headers, client: str) -> bytes | None:
        """The answer after the status line and the server's own headers; None if the application must answer."""
        path, _, query = url.partition(b"?")
        found: dict[bytes, bytes] = dict(headers)
        if not query or not _UNUSUAL.isdisjoint(found) or found.get(b"accept", b"*/*") not in _ANY:
            return None
        began = time.perf_counter()
        door = self._door
        try:
            moment = self._moments.get(path) or self._begin(path)
            if moment is None:
                return None
            reader = door.access.peek(found)
            if reader is not EVERYBODY:
                check_reader(door.ponds, reader, path[len(_BEGIN) : -len(_END)].decode())
            answer = moment.answer(query, self._gzip_bytes)
            if answer is None:
                return None
            door.access.count(reader, client)
        except MillpondError:
            return None
        door.meter.count("rows", 200, time.perf_counter() - began)
        return answer

    def _begin(self, path: bytes) -> _Moment | None:
        """A view of the table that a path names; None if it isn't plainly one.  Raises as `Table.get`."""
        name = path[len(_BEGIN) : -len(_END)]
        if not (path.startswith(_BEGIN) and path.endswith(_END)) or b"%" in name or b"/" in name or not name.isascii():
            return None
        table = self._door.ponds[name.decode()]
        plan = self._plan(name, table)
        if not plan.is_plain:
            return None
        lookups = table.lookups()
        if lookups.binding.ttl:  # these answers change between two batches
            lookups.close()
            return None
        try:
            # Read the table in its present state.
            moment = _Moment(self._plan(name, table), lookups)
        except BaseException:
            lookups.close()
            raise
        if not self._moments:
            self._defer(self._end)
        self._moments[path] = moment
        return moment

    def _plan(self, name: bytes, table: Table) -> _Plan:
        plan = self._plans.get(name)
        if plan is None or plan.table is not table or plan.shape.definition is not table.definition:
            text = name.decode()
            plan = self._plans[name] = _Plan(text, table, self._door.shape(text, table))
        return plan

    def _end(self) -> None:
        for moment in self._moments.values():
            moment.close()
        self._moments.clear()


def _unquoted(text: bytes) -> bytes:
    """A decoded value of a query."""
    return unquote_to_bytes(text.replace(b"+", b" ")) if b"%" in text or b"+" in text else text

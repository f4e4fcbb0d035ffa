"""The quick route, answered below the framework: `GET /tables/{table}/rows` with the whole key.

1. The connection (`connection.py`) answers as soon as a request's headers are read: a task, a scope
   and three calls of `send` cost more than a lookup.
2. Requests that the event loop finds at the same time share one view of the replica.  It is opened
   for the first of them and closed before the loop looks for more, so it is never older than the
   requests.  The common part of these answers is written once; each key is read.
3. One call of compiled code reads a key and writes the answer, if it can read the table
   (`Lookups.compiled`).  It needs no view: for about a millisecond, it goes on with the next
   requests, unless there is a newer batch.  Python does it otherwise, and writes rows from their
   stored bytes (`row_json`).

The application answers any unusual request (another form, an ETag, a body, an unknown column, an
error).  Both give the same bytes, which a test compares over all tables.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from millpond.errors import MillpondError
from millpond.replica.keys.codec import text_key
from millpond.schema.convert import to_stored
from millpond.schema.values import encode_json, from_text
from millpond.serve.access.tokens import EVERYBODY
from millpond.serve.answers.replies import CACHE_CONTROL, DEFINITION, VARY, Shape, etag
from millpond.serve.app import HttpDoor, check_reader
from millpond.serve.formats import JSON
from millpond.serve.hot.row_json import RowWriters
from millpond.serve.hot.sql import HotSql
from millpond.serve.metrics.counts import Meter
from millpond.tables.answer import Cut
from millpond.tables.scan.keys import KeyReader
from millpond.tables.scan.raw_lookup import Lookups
from millpond.tables.table import Table
from millpond.wire.answers import position_json

Headers = list[tuple[bytes, bytes]]
_BEGIN, _END = b"/tables/", b"/rows"
_ANY = frozenset({b"*/*", b"application/json"})
# The application answers requests with one of these headers.
_UNUSUAL = frozenset({b"if-none-match", b"content-length", b"transfer-encoding", b"upgrade", b"expect"})
_OF_BODIES = frozenset({b"content-length"})
_TAIL = b',"evicted":[],"maybe_evicted":[],"more":false,"token":null}'
_EVICTED = _TAIL.replace(b'"evicted":[]', b'"evicted":[0]', 1)
_MAYBE_EVICTED = _TAIL.replace(b'"maybe_evicted":[]', b'"maybe_evicted":[0]')
_NOTHING = b'],"changed":[],"final":[]'
# An answer's lag may be of so long ago; as long, a poll of the checkpoint is valid.
_KEPT_SECONDS = 0.001
_lag = msgspec.json.Encoder().encode


class _Plan:
    """How to parse a key of one table from a URL, and how to write its rows."""

    def __init__(self, name: str, table: Table, shape: Shape) -> None:
        self.names = (unquote(name, errors="surrogateescape"),)
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
        self.column = next(iter(self.columns)) if len(kinds) == 1 else None
        self.text = self.column if kinds == ["string"] else None
        self._begin = b'{"table":' + encode_json(name) + b","
        self._frame: tuple[Any, str, bytes, bytes] | None = None
        self.writers = RowWriters()

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
    """Answers from one view of one table.

    is_quick:  whether compiled code can read its rows
    answered:  how many requests since `began`
    """

    __slots__ = (
        "_column",
        "_encode",
        "_head",
        "_lookups",
        "_number",
        "_opened",
        "_text",
        "_where",
        "_write",
        "_writer",
        "answered",
        "began",
        "is_quick",
        "plan",
    )

    def __init__(self, plan: _Plan, lookups: Lookups) -> None:
        self._opened = self.began = time.perf_counter()
        self.answered = 0
        cut, binding = lookups.cut, lookups.binding
        self.plan, self._lookups, self._text = plan, lookups, plan.text
        self._encode, self._writer = binding.codec.encode, plan.writers.of(binding)
        self._head, where = plan.frame(cut)
        self._column, self._number = plan.column, lookups.transaction
        self._write = None if lookups.compiled is None else lookups.compiled.http
        self._where = b'%b%b,"job_state":"%b","rows":[' % (where, _lag(cut.lag), cut.job_state.encode())
        self.is_quick = self._write is not None and plan.column is not None

    @property
    def is_kept(self) -> bool:
        """Whether its view has ended, and only compiled code may still read it."""
        return self._number < 0

    def quick(self, query: bytes, limit: int) -> bytes | None:
        """The answer of compiled code, without the view; None if it has none."""
        name, _, text = query.partition(b"=")
        if self._write is None or name != self._column or not text or b"&" in text:
            return None
        return self._write(self._number, text, self._head, self._where, _TAIL, limit)

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
            text, key = b"", self.plan.key(query)
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

    def end(self, meter: Meter) -> None:
        """End the view, if it hasn't; count what was answered, each request with its share of the time."""
        if self.answered:
            seconds = (time.perf_counter() - self.began) / self.answered
            meter.count("rows", 200, seconds, self.answered, tables=self.plan.names)
        if not self.is_kept:
            self._lookups.close()
            self._number = -self._number

    def again(self) -> bool:
        """Use it once more though its view has ended; False if its lag is of too long ago."""
        self.began, self.answered = time.perf_counter(), 0
        return self.began - self._opened < _KEPT_SECONDS


class HotRows:
    """Answers the hot route for a door.

    defer:  calls a function before the event loop looks for requests again
    """

    def __init__(self, door: HttpDoor, defer: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._door = door
        self._defer = defer or (lambda function: asyncio.get_running_loop().call_soon(function))
        self._plans: dict[bytes, _Plan] = {}
        # By path, those of this turn of the loop, and those of turns before that may be used again.
        self._moments: dict[bytes, _Moment] = {}
        self._kept: dict[bytes, _Moment] = {}
        self._gzip_bytes = door.settings.gzip_bytes
        self._sql = HotSql(door, self._defer)
        door.note_statement = self._sql.note

    def plain(self, headers: Headers) -> dict[bytes, bytes] | None:
        """The headers of a request by name; None if the application must answer it."""
        found: dict[bytes, bytes] = dict(headers)
        return found if _UNUSUAL.isdisjoint(found) and takes_json(found, headers) else None

    def answer(self, url: bytes, headers: dict[bytes, bytes], client: str) -> bytes | None:
        """The answer after the status line and the server's own headers; None if the application must answer.

        headers:  as `plain` gives them
        """
        path, _, query = url.partition(b"?")
        if not query:
            return None
        door, limit = self._door, self._gzip_bytes
        try:
            moment = self._moments.get(path) or self._begin(path)
            if moment is None:
                return None
            reader = door.access.peek(headers)
            if reader is not EVERYBODY:
                check_reader(door.ponds, reader, moment.plan.names[0])
            answer = moment.quick(query, limit)
            if answer is None and moment.is_kept:
                moment = self._open(path)
                if moment is None:
                    return None
                answer = moment.quick(query, limit)
            if answer is None:
                answer = moment.answer(query, limit)
            if answer is None:
                return None
            door.access.count(reader, client)
        except MillpondError:
            return None
        moment.answered += 1
        return answer

    def answer_sql(self, headers: Headers, body: bytes, client: str) -> bytes | None:
        """The same for `POST /sql`."""
        found: dict[bytes, bytes] = dict(headers)
        if not _UNUSUAL.isdisjoint(found.keys() - _OF_BODIES) or not takes_json(found, headers):
            return None
        return self._sql.answer(found, body, client)

    def _begin(self, path: bytes) -> _Moment | None:
        """The moment of this turn for the table that a path names; None if it isn't plainly one.  Raises as `Table.get`."""
        kept = self._kept.get(path)
        if kept is None or not kept.again() or not self._is_still(kept.plan):
            return self._open(path)
        return self._use(path, kept)

    def _use(self, path: bytes, moment: _Moment) -> _Moment:
        """Use a moment in this turn of the loop."""
        if not self._moments:
            self._defer(self._end)
        self._moments[path] = moment
        return moment

    def _open(self, path: bytes) -> _Moment | None:
        """As `_begin`, with a view of its own."""
        name = path[len(_BEGIN) : -len(_END)]
        if not (path.startswith(_BEGIN) and path.endswith(_END)) or b"%" in name or b"/" in name or not name.isascii():
            return None
        table = self._door.ponds[name.decode()]
        plan = self._plan(name, table)
        if not plan.is_plain:
            return None
        lookups = table.lookups()
        if lookups.is_judged:  # these answers change between two batches
            lookups.close()
            return None
        try:
            # Read the table in its present state.
            moment = _Moment(self._plan(name, table), lookups)
        except BaseException:
            lookups.close()
            raise
        before = self._moments.get(path)
        if before is not None:
            before.end(self._door.meter)
        return self._use(path, moment)

    def _is_still(self, plan: _Plan) -> bool:
        """Whether the plan's name still means its table, as it is defined now.  Raises as `Ponds[name]`."""
        return self._is_of(plan, self._door.ponds[plan.names[0]])

    @staticmethod
    def _is_of(plan: _Plan, table: Table) -> bool:
        return plan.table is table and plan.shape.definition is table.definition

    def _plan(self, name: bytes, table: Table) -> _Plan:
        plan = self._plans.get(name)
        if plan is None or not self._is_of(plan, table):
            text = name.decode()
            plan = self._plans[name] = _Plan(text, table, self._door.shape(text, table))
        return plan

    def _end(self) -> None:
        for path, moment in self._moments.items():
            moment.end(self._door.meter)
            if moment.is_quick:
                self._kept[path] = moment
            else:
                self._kept.pop(path, None)
        self._moments.clear()


def takes_json(found: dict[bytes, bytes], headers: Headers) -> bool:
    """Whether any form will do, or JSON; the application reads headers that are given several times."""
    return len(found) == len(headers) and found.get(b"accept", b"*/*") in _ANY


def _unquoted(text: bytes) -> bytes:
    """A decoded value of a query."""
    return unquote_to_bytes(text.replace(b"+", b" ")) if b"%" in text or b"+" in text else text

"""Answers as record batches: of whole tables, read here, and of statements, made in a process of their own.

`SELECT * FROM table` is a whole table: it comes as `Table.to_arrow` gives it, of one batch of the
job, a few rows at a time.  Whatever else is asked goes to a process for statements.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import structs

from millpond.errors import RequestError
from millpond.serve.answers import replies
from millpond.serve.asked import bounds_of_texts
from millpond.serve.flight.call import Call
from millpond.serve.flight.errors import Cancelled
from millpond.serve.flight.tickets import Handle
from millpond.serve.formats import ARROW
from millpond.serve.sql import messages as say
from millpond.serve.sql.process import SqlSession
from millpond.tables.forms.arrow import pyarrow
from millpond.tables.sql.end import SqlLimits
from millpond.tables.sql.reading.opened import OpenedTables, Opening, open_tables
from millpond.tables.sql.reading.order import Hint
from millpond.tables.sql.statement import TableName
from millpond.tables.table import Table
from millpond.wire.answers import CUTS, sql_cuts

# Clients take messages of some MiB: Go's library 4 of them, unless told otherwise.
_BATCH_BYTES = 1 << 20
# Answers up to so many bytes may be unread without a place among the large ones.
_WHOLE_BYTES = 8 << 20
_WHOLE = re.compile(r'\s*select\s+\*\s+from\s+(?:"((?:[^"]|"")+)"|([a-z_]\w*))\s*;?\s*', re.IGNORECASE | re.ASCII)
_HINT = "Add LIMIT, name fewer columns, or group the rows."


class Answer(NamedTuple):
    """A schema, and record batches of it."""

    schema: Any
    batches: Iterator[Any]


class _Tables(NamedTuple):
    call: Call

    def now(self, name: str) -> Table:
        """See `opened.Tables`."""
        return self.call.table(name)


def answer(call: Call, handle: Handle) -> Answer:
    """The answer of a statement.  Raises NOT_ALLOWED, TOO_MANY_DOWNLOADS, TOO_MANY_ANSWERS; as `run_sql`."""
    name = whole_table(call, handle)
    return _statement(call, handle) if name is None else _whole_table(call, handle, name)


def pieces(batch: Any) -> Iterator[Any]:
    """A record batch in parts of about a MiB."""
    rows = max(1, len(batch) * _BATCH_BYTES // max(1, batch.nbytes))
    for first in range(0, len(batch), rows):
        yield batch.slice(first, rows)


def whole_table(call: Call, handle: Handle) -> str | None:
    """The table that a statement reads wholly; None for other statements.  Raises NOT_ALLOWED."""
    if not call.door.settings.sql:
        raise RequestError("NOT_ALLOWED", "This server answers no SQL.", hint="Start it without --no-sql.")
    found = _WHOLE.fullmatch(handle.text)
    if found is None or handle.values is not None:
        return None
    name = found[2] or found[1].replace('""', '"')
    return name if name in call.door.names(call.caller.reader) else None


def opening_of(call: Call, handle: Handle, cache_bytes: int = SqlLimits().cache_bytes) -> Opening:
    """Opens the tables of a statement, with its bounds."""

    def open_(names: list[TableName], *, is_dry: bool) -> OpenedTables:
        settings = call.door.settings
        bounds = bounds_of_texts(handle.bounds.get, settings)
        if bounds is not None:
            bounds = structs.replace(bounds, wait_seconds=min(bounds.wait_seconds, settings.max_seconds))
        return open_tables(_Tables(call), names, bounds=bounds, separate=handle.separate, is_dry=is_dry, cache_bytes=cache_bytes)

    return open_


def _whole_table(call: Call, handle: Handle, name: str) -> Answer:
    call.take(call.door.patience.downloads)
    call.whole = (name,)
    at = handle.at
    wanted = TableName(name, at) if isinstance(at, int) else TableName(name, None, at)
    opened = call.resources.enter_context(opening_of(call, handle, 0)([wanted], is_dry=False))
    (relation,) = opened.relations

    def read() -> Iterator[Any]:
        size, most = 0, call.door.settings.max_answer_bytes
        for batch in relation.batches(relation.schema.names, None, Hint()):
            size += batch.nbytes
            if size > most:
                raise replies.too_large(call.door.settings, _HINT)
            yield batch

    return Answer(relation.schema.with_metadata({CUTS: sql_cuts(opened.cuts)}), read())


def session_of(call: Call, handle: Handle, opening: Opening, *, is_described: bool = False) -> SqlSession:
    """A statement that a process answers, in its turn."""
    door, settings = call.door, call.door.settings
    call.hold(door.patience.statements.come(call.asker, settings.max_seconds))

    def ask(number: int) -> say.Ask:
        return say.Ask(
            number,
            json.dumps([handle.text, None]),
            ARROW.name,
            settings.max_rows,
            settings.max_answer_bytes,
            settings.max_seconds,
            handle.at,
            values=handle.values,
            is_described=is_described,
        )

    session, close = door.statements.begin(ask, opening, settings)
    call.resources.callback(close)
    call.when_cancelled(session.end)
    return session


def _statement(call: Call, handle: Handle) -> Answer:
    session = session_of(call, handle, opening_of(call, handle))
    source = _Pieces(call, session)
    with source.raising():
        reader = pyarrow().ipc.open_stream(pyarrow().PythonFile(source, "r"))

    def read() -> Iterator[Any]:
        while True:
            with source.raising():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            if len(batch):  # the last one has none
                yield batch

    return Answer(reader.schema, read())


class _Pieces(io.RawIOBase):
    """The answer of a process as a file."""

    def __init__(self, call: Call, session: SqlSession) -> None:
        self._call, self._session = call, session
        self._rest = memoryview(b"")
        self._bytes = 0
        self._is_large = False
        self._error: BaseException | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or all that are left."""
        found = bytearray()
        while size < 0 or len(found) < size:
            if not self._rest:
                piece = self._next()
                if piece is None:
                    break
                self._rest = memoryview(piece)
            taken = self._rest[: len(self._rest) if size < 0 else size - len(found)]
            found += taken
            self._rest = self._rest[len(taken) :]
        return bytes(found)

    def raising(self) -> _Raising:
        """A context that raises the statement's own error: pyarrow hands on only its words."""
        return _Raising(self)

    def _next(self) -> bytes | None:
        try:
            piece = self._session.next()
            if piece is not None:
                self._count(len(piece))
            return piece
        except BaseException as error:
            self._error = error
            raise

    def _count(self, size: int) -> None:
        self._bytes += size
        settings = self._call.door.settings
        if self._bytes > settings.max_answer_bytes:
            raise replies.too_large(settings, _HINT)
        if self._bytes > _WHOLE_BYTES and not self._is_large:
            self._is_large = True
            self._call.take(self._call.door.patience.downloads)
            self._call.take(self._call.door.patience.statements_read)


class _Raising:
    def __init__(self, source: _Pieces) -> None:
        self._source = source

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, StopIteration):
            return
        own = self._source._error
        if self._source._call.is_cancelled:
            raise Cancelled from None
        if own is not None:
            raise own from None

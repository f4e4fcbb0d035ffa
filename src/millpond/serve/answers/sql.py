"""Answers to SQL statements, each made in a process of its own and ended when its client goes.

A small answer is there whole before the response begins, and so is JSON: an error is always one.  A
large one in another form is sent while it is made; the process waits for a client that reads slowly,
as long as the statement's time lasts.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from msgspec import structs
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from millpond.errors import RequestError
from millpond.schema.values import with_floats
from millpond.serve.answers import replies
from millpond.serve.formats import ARROW, JSON, ROW_FORMATS, Format, bounded, choose_format
from millpond.serve.sql import messages as say
from millpond.serve.sql.pool import SqlPool
from millpond.serve.sql.process import SqlSession
from millpond.serve.waiting.patience import Patience
from millpond.settings import ServeSettings
from millpond.tables.forms.arrow import pyarrow
from millpond.tables.job.bounds import Bounds
from millpond.tables.sql.answer import SqlAnswer
from millpond.tables.sql.end import SqlLimits
from millpond.tables.sql.reading.opened import OpenedTables, Opening, open_tables
from millpond.tables.sql.reading.scan import TableRead
from millpond.tables.sql.statement import TableName, check_batch
from millpond.tables.table import Table
from millpond.wire.answers import sql_ends
from millpond.wire.questions import AskSql

_LOOK_SECONDS = 0.25
# Answers up to so many bytes are whole before they are sent: their process is free by then.
_WHOLE_BYTES = 8 << 20

NoteStatement = Callable[[str, Any, say.Head, list[TableRead]], None]
"""(statement, parameters, head of the answer, how the tables were read)"""


def note_nothing(*_: object) -> None:
    """Notes of no statement how it was answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlCall:
    """A statement, with the means to answer it.

    opening_of: opens the tables of a question, if this reader may read them
    note:       learns how a statement was answered
    """

    request: Request
    question: AskSql
    opening_of: Callable[[AskSql], Opening]
    patience: Patience
    settings: ServeSettings
    pool: SqlPool
    note: NoteStatement = note_nothing

    def __post_init__(self) -> None:
        """Raises INVALID_STATEMENT for a batch that no message can have."""
        check_batch(self.question.at)

    @property
    def is_plain(self) -> bool:
        """Whether it reads the newest batch, whatever it is."""
        return self.question.bounds is None and self.question.at is None and not self.question.separate

    def open(self, names: list[TableName], *, is_dry: bool) -> OpenedTables:
        """Open tables.  Raises NOT_ALLOWED, and as `open_tables`."""
        return self.opening_of(self.question)(names, is_dry=is_dry)

    def ask(self, form: Format, number: int) -> say.Ask:
        """The question to a process."""
        question, settings = self.question, self.settings
        return say.Ask(
            number,
            json.dumps([question.statement, with_floats(question.parameters)]),
            form.name,
            settings.max_rows,
            settings.max_answer_bytes,
            settings.max_seconds,
            question.at,
        )


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables that a reader may read, by name."""

    now: Callable[[str], Table]


def opening_here(table_of: Callable[[str], Table], settings: ServeSettings) -> Callable[[AskSql], Opening]:
    """Opens tables of this process.

    table_of:  the table of a name, if the reader may read it
    """

    def opening_of(question: AskSql) -> Opening:
        def open_(names: list[TableName], *, is_dry: bool) -> OpenedTables:
            return open_tables(
                _Tables(table_of),
                names,
                bounds=within_time(question, settings),
                separate=question.separate,
                is_dry=is_dry,
                cache_bytes=SqlLimits().cache_bytes,
            )

        return open_

    return opening_of


def within_time(question: AskSql, settings: ServeSettings) -> Bounds | None:
    """The bounds of a question, which wait for no longer than a statement may take: its process waits as well."""
    bounds = question.bounds
    return None if bounds is None else structs.replace(bounds, wait_seconds=min(bounds.wait_seconds, settings.max_seconds))


async def answer_sql(call: SqlCall) -> Response:
    """The answer of a statement, in the form that the request accepts.

    Raises:    as `run_sql`; SQL_ENDED; NOT_ACCEPTABLE, NOT_ALLOWED, TOO_MANY_ANSWERS,
               TOO_MANY_DOWNLOADS.
    """
    scope, settings = call.request.scope, call.settings
    form = choose_format(",".join(call.request.headers.getlist("accept")), ROW_FORMATS)
    loop, begun = asyncio.get_running_loop(), list[Callable[[], None]]()
    leave, is_over = await call.patience.statements.come(scope["asker"], settings.max_seconds), threading.Event()

    def finish() -> None:
        is_over.set()
        if begun:
            loop.run_in_executor(None, begun[0]).add_done_callback(lambda _: leave())
        else:
            leave()

    def begin() -> SqlSession:
        session, close = call.pool.begin(lambda number: call.ask(form, number), call.open, settings)
        begun.append(close)
        if is_over.is_set():  # the client left meanwhile, and `finish` may not have seen it
            close()
        return session

    scope["resources"].callback(finish)
    session = await run_in_threadpool(begin)
    most = settings.max_answer_bytes if form is JSON else _WHOLE_BYTES
    reading = asyncio.ensure_future(run_in_threadpool(_read, session, most, settings))
    try:
        while not (await asyncio.wait([reading], timeout=_LOOK_SECONDS))[0]:
            if await call.request.is_disconnected():
                session.end()
    except asyncio.CancelledError:
        session.end()
        reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise
    pieces, is_whole = await reading
    assert isinstance(session.head, say.Head)
    if form is JSON:
        before, after = sql_ends(session.head.columns, session.tables.cuts, session.tables.reads)
        response = _whole(call, form, session, [before, *pieces, after])
        if call.is_plain:
            call.note(call.question.statement, call.question.parameters, session.head, session.tables.reads)
        return response
    if is_whole:
        return _whole(call, form, session, pieces)
    scope["resources"].enter_context(call.patience.downloads.taken(scope["asker"]))
    scope["resources"].enter_context(call.patience.statements_read.taken(scope["asker"]))
    rest = bounded(chain(pieces, iter(session.next, None)), settings.max_answer_bytes, lambda: _too_large(settings))
    return replies.ChunkedResponse(rest, headers=_headers(form, session))


async def whole_answer(call: SqlCall, asker: str) -> SqlAnswer:
    """The answer of a statement, whole; it ends when its task is cancelled.  Raises as `answer_sql`."""
    leave = await call.patience.statements.come(asker, call.settings.max_seconds)
    loop, begun = asyncio.get_running_loop(), list[SqlSession]()
    is_over = threading.Event()

    def run() -> SqlAnswer:
        session, close = call.pool.begin(lambda number: call.ask(ARROW, number), call.open, call.settings)
        try:
            begun.append(session)
            if is_over.is_set():
                session.end()
            pieces, _ = _read(session, call.settings.max_answer_bytes, call.settings)
            words = call.question.statement.split(None, 1)
            table = pyarrow().ipc.open_stream(b"".join(pieces)).read_all()
            is_plan = words[:1] != [] and words[0].lower() == "explain"
            return SqlAnswer(table, session.tables.cuts, tuple(session.tables.reads), is_plan)
        finally:
            close()

    running = loop.run_in_executor(None, run)
    running.add_done_callback(lambda _: leave())
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        is_over.set()
        if begun:
            begun[0].end()
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise


def _read(session: SqlSession, most: int, settings: ServeSettings) -> tuple[list[bytes], bool]:
    """The pieces of an answer up to so many bytes, and whether they are all."""
    pieces, size = list[bytes](), 0
    for piece in iter(session.next, None):
        pieces.append(piece)
        size += len(piece)
        if size > settings.max_answer_bytes:
            raise _too_large(settings)
        if size > most:
            return pieces, False
    return pieces, True


def _whole(call: SqlCall, form: Format, session: SqlSession, pieces: list[bytes]) -> Response:
    response = Response(b"".join(pieces), headers=_headers(form, session))
    if len(response.body) > call.settings.max_answer_bytes:
        raise _too_large(call.settings)
    return response


def _headers(form: Format, session: SqlSession) -> dict[str, str]:
    cut = {} if form is JSON else {replies.CUT: replies.cuts_header(session.tables.cuts)}
    return {"content-type": form.content_type, "cache-control": "no-store", **cut}


def _too_large(settings: ServeSettings) -> RequestError:
    return replies.too_large(settings, "Add LIMIT, name fewer columns, or group the rows.")

"""The answer to each question about one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from millpond.errors import ReplicaError, RequestError
from millpond.serve.answers import replies
from millpond.serve.answers.events import Event, event_of, event_stream
from millpond.serve.formats import ARROW, EVENTS, JSON, choose_format, write_pages, write_table
from millpond.serve.routes import RouteText
from millpond.serve.waiting.patience import Patience
from millpond.settings import ServeSettings
from millpond.tables.answer import Rows
from millpond.tables.buckets.answer import Series
from millpond.tables.job.bounds import Bounds
from millpond.tables.scan.deadline import too_long
from millpond.tables.table import Table
from millpond.wire.answers import ChangesAnswer, answer_json
from millpond.wire.parse import Asked
from millpond.wire.questions import Define, Keys, ListChanges, ListVersions, Question, Scan

# Lookups of up to so many keys run on the event loop: they take about a millisecond.
_SHORT = 64
# The most changes of one answer without a limit.
PAGE_CHANGES = 1000
# The client in `Turns` for reads on behalf of all streams of a table.
_STREAMS = "streams"
ShapeOf = Callable[[str, Table], replies.Shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request on one table, with the means to answer it.

    shape_of:   how to write the rows of a table under a name
    cut:        a context in which the newest batch of a job that meets bounds stays readable: its
                tables by name
    is_ending:  whether the server ends
    """

    request: Request
    route: RouteText
    name: str
    table: Table
    settings: ServeSettings
    patience: Patience
    shape_of: ShapeOf
    cut: Callable[[str, Bounds | None], Any]
    check: Callable[[Any, str], None]
    is_ending: Callable[[], bool]

    @property
    def shape(self) -> replies.Shape:
        """How to write rows of the table in its present state."""
        return self.shape_of(self.name, self.table)

    def ask(self) -> replies.Ask:
        """The requested form of rows.  Raises NOT_ACCEPTABLE."""
        headers = self.request.headers
        return replies.Ask(
            form=choose_format(",".join(headers.getlist("accept")), self.route.formats or (JSON,)),
            if_none_match=headers.get("if-none-match", ""),
            accept_encoding=headers.get("accept-encoding", ""),
            settings=self.settings,
        )

    def read(self, question: Question) -> Any:
        """The table's own answer."""
        return question.ask(question.state_of(self.table))

    async def within(self, bounds: Bounds | None, read: Callable[[Bounds | None], Any], *, is_large: bool = False) -> Any:
        """The result of a read that meets bounds, in a thread."""
        return await self.patience.read_within(self.request.scope, self.name, self.table, bounds, read, is_large=is_large)


async def answer_call(call: Call, asked: Asked[Any]) -> Response:
    """The answer to a question."""
    match asked.question:
        case Keys():
            return await _keys(call, asked)
        case Scan():
            return await _scan(call, asked.typed(call.table.definition))
        case ListChanges():
            return await _changes(call, asked.question)
        case question:
            question = asked.typed(call.table.definition)
    if isinstance(question, ListVersions) and question.limit is None:
        usual = call.settings.max_rows if call.route.has_body else call.settings.limit_rows
        question = structs.replace(question, limit=usual)

    def read(bounds: Bounds | None) -> Response:
        found = call.read(structs.replace(question, bounds=bounds))
        if isinstance(found, Series):
            check_series(found, call.name, call.settings)
        shape = call.shape
        is_definition = isinstance(question, Define)
        data = shape.definition.to_json() if is_definition else answer_json(call.name, found, shape.write)
        return replies.as_json(data, headers={replies.DEFINITION: shape.digest})

    return await call.within(question.bounds, read, is_large=question.is_large)  # type: ignore[no-any-return]


def check_series(series: Series, name: str, settings: ServeSettings) -> None:
    """Raise ANSWER_TOO_LARGE if one answer can't have all rows."""
    if len(series) > settings.max_rows:
        raise RequestError(
            "ANSWER_TOO_LARGE",
            f"The series has {len(series)} rows; one answer can have {settings.max_rows}.",
            hint="Use longer steps or a shorter time.",
            table=name,
        )


# ---------------------------------------------------------------- rows


async def _keys(call: Call, asked: Asked[Keys]) -> Response:
    question, ask = asked.question, call.ask()

    def read(bounds: Bounds | None) -> Response:
        rows = call.read(structs.replace(asked.typed(call.table.definition), bounds=bounds))
        return replies.reply(ask, call.name, call.shape, rows, gaps=True)

    if len(question.keys) <= _SHORT and question.bounds is None and question.is_newest:
        return read(None)
    is_large = call.patience.is_large(len(question.keys))
    return await call.within(question.bounds, read, is_large=is_large)  # type: ignore[no-any-return]


async def _scan(call: Call, question: Scan) -> Response:
    ask = call.ask()
    is_lookup = question.is_lookup(call.table.definition)
    read: Callable[[Scan], Response] = partial(_rows, call, ask)
    if is_lookup:
        read = partial(_lookup, call, ask)
        if question.bounds is None and question.is_newest:
            return read(question)
    elif ask.form is not JSON and question.limit is None and question.token is None:
        read = partial(_download, call, ask)
    elif question.limit is None:
        question = structs.replace(question, limit=call.settings.limit_rows if ask.form is JSON else call.settings.max_rows)
    is_large = not is_lookup and call.patience.is_large(question.limit)
    if is_large and ask.form is not JSON:
        call.request.scope["resources"].enter_context(call.patience.downloads.taken(call.request.scope["asker"]))
    return await call.within(  # type: ignore[no-any-return]
        question.bounds, lambda bounds: read(structs.replace(question, bounds=bounds)), is_large=is_large
    )


def _rows(call: Call, ask: replies.Ask, question: Scan) -> Response:
    rows: Rows = call.read(question)
    return replies.reply(ask, call.name, call.shape, rows)


def _lookup(call: Call, ask: replies.Ask, question: Scan) -> Response:
    rows = question.state_of(call.table).get_all([question.key], bounds=question.bounds)
    return replies.reply(ask, call.name, call.shape, rows)


def _download(call: Call, ask: replies.Ask, question: Scan) -> Response:
    """All rows of one batch in pieces, within the limits of bytes and time."""
    with ExitStack() as opened:
        table = call.table
        if question.is_newest:
            opened.enter_context(_in_time(table.name, call.settings.max_seconds))
            table = opened.enter_context(call.cut(call.name, question.bounds))[table.name]
            question = structs.replace(question, bounds=None)  # the cut meets them
        reads = question.state_of(table)
        pages = question.pages(reads)
        first = next(pages)  # reads the table in its present state
        shape = call.shape_of(call.name, reads)
        if (known := replies.try_known(ask, shape, first.cut, more=False)) is not None:
            return known
        if ask.form is ARROW and question.is_everything and not reads.definition.many:
            pieces = write_table(reads)
        else:
            pieces = write_pages(ask.form, shape.definition, chain([first], pages))
        return replies.stream(ask, shape, first.cut, _closing(pieces, opened.pop_all()), more=False)


@contextmanager
def _in_time(table: str, seconds: float) -> Iterator[None]:
    """Raise READ_TOO_LONG if the read's own cut ends by time, since no client asked for that cut."""
    ends = time.monotonic() + seconds
    try:
        yield
    except ReplicaError as error:
        if error.condition != "CUT_EXPIRED" or time.monotonic() < ends:
            raise
        raise too_long(table, seconds) from None


def _closing(pieces: Iterator[bytes], opened: ExitStack) -> Iterator[bytes]:
    with opened:
        yield from pieces


# ---------------------------------------------------------------- changes


async def _changes(call: Call, question: ListChanges) -> Response:
    if call.route.formats and call.ask().form is EVENTS:
        return await _stream(call, question)
    scope, limit = call.request.scope, question.limit or PAGE_CHANGES
    ends = scope.get("asked_at", time.monotonic()) + question.wait_seconds
    question = structs.replace(question, limit=limit)
    watch, is_large = call.patience.watch(call.table), call.patience.is_large(limit)
    with ExitStack() as seat:
        while True:
            count = watch.count
            page = await call.within(question.bounds, partial(_page, call, question), is_large=is_large)
            left = ends - time.monotonic()
            if page.changes or left <= 0:
                return replies.as_json(page, headers={replies.DEFINITION: call.shape.digest})
            question = structs.replace(question, since=page.token)
            await call.patience.next_batch(scope, call.name, seat, watch, count, left)


def _page(call: Call, question: ListChanges, bounds: Bounds | None) -> ChangesAnswer:
    """The present changes after a place."""
    page = answer_json(call.name, call.read(structs.replace(question, bounds=bounds)), call.shape.write)
    assert isinstance(page, ChangesAnswer)
    return page


async def _stream(call: Call, question: ListChanges) -> Response:
    """Changes as server-sent events."""
    scope, patience = call.request.scope, call.patience
    scope["resources"].enter_context(patience.streams.taken(scope["asker"]))
    watch = patience.watch(call.table)
    begin = structs.replace(question, limit=question.limit or PAGE_CHANGES)
    first = await patience.read(scope["asker"], partial(_page, call, begin, None), is_large=patience.is_large(begin.limit))

    async def look(token: str) -> Event:
        """The changes after a token, read once for all streams at the same place."""

        async def make() -> Event:
            on = structs.replace(question, since=token, limit=PAGE_CHANGES)
            return event_of(await patience.read(_STREAMS, partial(_page, call, on, None), is_large=True))

        return await watch.once((call.name, question.as_of(), token), make)

    headers = {"cache-control": "no-store", "content-type": EVENTS.content_type}

    def check() -> None:
        call.check(scope, call.name)
        if call.table.versions is not None:
            call.table.versions.check_current(call.table.job)

    return StreamingResponse(event_stream(event_of(first), look, watch, check, call.is_ending), headers=headers)

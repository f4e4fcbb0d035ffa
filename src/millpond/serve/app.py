"""The HTTP door: what each route answers.

Lookups run on the event loop (microseconds, no I/O but memory); whatever may take long runs in a thread.  A path is decoded
segment by segment from its raw bytes, so that a name may hold a slash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import unquote

from msgspec import structs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import Json, decode_json
from millpond.serve import replies
from millpond.serve.access.access import Access
from millpond.serve.access.gate import gate
from millpond.serve.access.tokens import EVERYBODY, Reader
from millpond.serve.events import Event, event_of, event_stream
from millpond.serve.formats import ARROW, EVENTS, JSON, choose_format, write_pages, write_table
from millpond.serve.forwarding import Neighbours
from millpond.serve.metrics.counts import Meter
from millpond.serve.openapi import openapi
from millpond.serve.ponds import Ponds
from millpond.serve.routes import ROUTE_OF, ROUTES
from millpond.serve.waits import Arrivals, Quota, Turns, Watch, Watches
from millpond.settings import ServeSettings
from millpond.tables.align import align
from millpond.tables.job.bounds import ARRIVING, Bounds, after, is_of_stopped, may_pass
from millpond.tables.pond import unknown_table
from millpond.tables.scan.deadline import too_long
from millpond.tables.table import Table
from millpond.wire.answers import (
    aligned_json,
    changes_json,
    count_json,
    describe_table,
    error_json,
    event_json,
    kept_cut_json,
    versions_json,
)
from millpond.wire.as_of import MEMBERS, AsOf, as_of_controls, as_of_members
from millpond.wire.history_questions import (
    ChangesQuestion,
    EventQuestion,
    VersionsQuestion,
    changes_of_json,
    changes_of_url,
    event_of_json,
    event_of_url,
    versions_of_json,
    versions_of_url,
)
from millpond.wire.keys import Key, parse_object, parse_pairs
from millpond.wire.query import Pairs, parse_query, parse_seconds, split_controls
from millpond.wire.questions import (
    Question,
    bounds_of_controls,
    check_members,
    iter_pages,
    parse_at,
    parse_bounds,
    parse_json,
    parse_url,
    wait_of_controls,
    wait_of_members,
)

# Lookups up to this many keys are answered on the event loop: about a millisecond.
_SHORT = 64
# So often a request that waits looks whether it still may, and a bound of time whether it holds.
_TICK_SECONDS = 1.0
# Changes of one answer where no limit is named.
_PAGE_CHANGES = 1000
# Whose turn it is where all streams of a table are read for.
_STREAMS = "streams"
Result = TypeVar("Result")


class HttpDoor:
    """Answers requests on ponds.  Each public method is the endpoint of one route."""

    def __init__(self, ponds: Ponds, settings: ServeSettings, meter: Meter, access: Access, neighbours: Neighbours) -> None:
        self.ponds = ponds
        self.neighbours = neighbours
        self.settings = settings
        self.meter = meter
        self.access = access
        self._shapes: dict[str, replies.Shape] = {}
        self.watches = Watches()
        self.arrivals = Arrivals(ponds.known_names)
        self.streams = Quota(
            settings.max_streams,
            settings.max_streams_per_client,
            condition="TOO_MANY_STREAMS",
            what="streams of events",
            option="--max-streams",
        )
        self.waits = Quota(
            settings.max_waits,
            settings.max_waits_per_client,
            condition="TOO_MANY_WAITS",
            what="requests that wait",
            option="--max-waits",
        )
        self.downloads = Quota(
            settings.max_downloads,
            settings.max_downloads_per_client,
            condition="TOO_MANY_DOWNLOADS",
            what="large answers in pieces",
            option="--max-downloads",
        )
        self.turns = Turns(settings.max_large_answers)
        self.is_ending = False

    def use(self, settings: ServeSettings) -> None:
        """Answer by these settings from here on."""
        self.settings = settings
        self.streams.use(settings.max_streams, settings.max_streams_per_client)
        self.waits.use(settings.max_waits, settings.max_waits_per_client)
        self.downloads.use(settings.max_downloads, settings.max_downloads_per_client)
        self.turns.use(settings.max_large_answers)

    def end(self) -> None:
        """The server ends: streams do, too."""
        self.is_ending = True

    async def index(self, request: Request) -> Response:
        _controls(request)
        routes = [{"method": r.method, "path": r.path, "summary": r.summary} for r in ROUTES]
        return replies.as_json({"millpond": "state you can query, for Spark streams", "routes": routes})

    async def openapi(self, request: Request) -> Response:
        _controls(request)
        return replies.as_json(openapi(self.settings, version("millpond")))

    async def tables(self, request: Request) -> Response:
        _controls(request)
        return await run_in_threadpool(self._list, _reader(request))

    async def table(self, request: Request) -> Response:
        _controls(request)
        name, table = self._table(request)
        return await run_in_threadpool(lambda: replies.as_json(describe_table(name, table.count(), table.definition)))

    async def definition(self, request: Request) -> Response:
        _, controls = _controls(request)
        bounds = bounds_of_controls(controls, self.settings)
        name, table = await self._arrived(request, bounds.wait_seconds if bounds else 0.0)
        return await self._in_thread(request, name, table, lambda _: self._definition(name, table), bounds)

    async def rows(self, request: Request) -> Response:
        columns, controls = _controls(request)
        ask = self._ask(request)
        name, table = await self._arrived(request, wait_of_controls(controls, self.settings))
        return await self._answer(request, ask, name, table, parse_url(table.definition, columns, controls, self.settings))

    async def rows_scan(self, request: Request) -> Response:
        _controls(request)
        ask = self._ask(request)
        body = await _read_body(request, self.settings.max_body_bytes)
        name, table = await self._arrived(request, wait_of_members(body, self.settings))
        return await self._answer(request, ask, name, table, parse_json(table.definition, body, self.settings))

    async def rows_get(self, request: Request) -> Response:
        _controls(request)
        ask = self._ask(request)
        body = check_members(await _read_body(request, self.settings.max_body_bytes), {"keys", "bounds"} | MEMBERS)
        objects, bounds, as_of = body.get("keys"), parse_bounds(body.get("bounds"), self.settings), as_of_members(body)
        if not isinstance(objects, list):
            raise RequestError("INVALID_REQUEST", "The body has no list of keys.", hint='Send {"keys": [{"column": "value"}]}.')
        if len(objects) > self.settings.max_keys:
            raise RequestError(
                "INVALID_LIMIT",
                f"A request may ask for {self.settings.max_keys} keys, not {len(objects)}.",
                hint=f"Send {self.settings.max_keys} keys at a time.",
                maximum=self.settings.max_keys,
            )
        name, table = await self._arrived(request, wait_of_members(body, self.settings))

        def answer(bounds: Bounds | None) -> Response:
            keys = [parse_object(table.definition, o) for o in objects]
            return self._lookup(ask, name, as_of.of(table), keys, bounds, gaps=True)

        short = len(objects) <= _SHORT and bounds is None and as_of.is_newest
        if short:
            return answer(None)
        return await self._in_thread(request, name, table, answer, bounds, is_large=self._is_large(len(objects)))

    async def count(self, request: Request) -> Response:
        columns, controls = _controls(request)
        name, table = await self._arrived(request, wait_of_controls(controls, self.settings))
        key, bounds = parse_pairs(table.definition, columns), bounds_of_controls(controls, self.settings)
        return await self._count(request, name, table, key, bounds, as_of_controls(controls))

    async def rows_count(self, request: Request) -> Response:
        _controls(request)
        body = check_members(await _read_body(request, self.settings.max_body_bytes), {"key", "bounds"} | MEMBERS)
        name, table = await self._arrived(request, wait_of_members(body, self.settings))
        key, bounds = parse_object(table.definition, body.get("key", {})), parse_bounds(body.get("bounds"), self.settings)
        return await self._count(request, name, table, key, bounds, as_of_members(body))

    async def cut(self, request: Request) -> Response:
        _, controls = _controls(request)
        name, table = await self._arrived(request, wait_of_controls(controls, self.settings))

        def answer(bounds: Bounds | None) -> Response:
            return replies.as_json(kept_cut_json(name, table.cut(bounds=bounds)))

        return await self._in_thread(request, name, table, answer, bounds_of_controls(controls, self.settings))

    async def at(self, request: Request) -> Response:
        _controls(request)
        names, offsets = parse_at(await _read_body(request, self.settings.max_body_bytes))
        tables = {name: self._named(name, _reader(request)) for name in names}
        return await run_in_threadpool(lambda: replies.as_json(aligned_json(align(tables, offsets))))

    async def changes(self, request: Request) -> Response:
        _, controls = _controls(request)
        form = self._ask(request).form
        name, table = await self._arrived(request, wait_of_controls(controls, self.settings))
        question = changes_of_url(controls, request.headers.get("last-event-id"), self.settings)
        if form is not EVENTS:
            return await self._changes(request, name, table, question)
        request.scope["resources"].enter_context(self.streams.taken(request.scope["asker"]))
        watch = self.watches.of(table.job_reads.replica)
        limit = question.limit or _PAGE_CHANGES
        begin = partial(self._page, name, table, question, question.since, limit)
        first = await self._read(request.scope["asker"], begin, is_large=self._is_large(limit))

        async def look(token: str) -> Event:
            """What there is behind a token: read once for all streams that have come as far."""

            async def make() -> Event:
                page = partial(self._page, name, table, question, token, _PAGE_CHANGES)
                return event_of(await self._read(_STREAMS, page, is_large=True))

            return await watch.once((name, question.as_of, token), make)

        headers = {"cache-control": "no-store", "content-type": EVENTS.content_type}
        check = partial(self._check_still, request, name)
        return StreamingResponse(event_stream(event_of(first), look, watch, check, lambda: self.is_ending), headers=headers)

    async def changes_post(self, request: Request) -> Response:
        _controls(request)
        body = await _read_body(request, self.settings.max_body_bytes)
        name, table = await self._arrived(request, wait_of_members(body, self.settings))
        return await self._changes(request, name, table, changes_of_json(body, self.settings))

    async def versions(self, request: Request) -> Response:
        columns, controls = _controls(request)
        name, table = await self._arrived(request, wait_of_controls(controls, self.settings))
        return await self._versions(request, name, table, versions_of_url(table.definition, columns, controls, self.settings))

    async def versions_post(self, request: Request) -> Response:
        _controls(request)
        body = await _read_body(request, self.settings.max_body_bytes)
        name, table = await self._arrived(request, wait_of_members(body, self.settings))
        return await self._versions(request, name, table, versions_of_json(table.definition, body, self.settings))

    async def event(self, request: Request) -> Response:
        columns, controls = _controls(request)
        name, table = await self._arrived(request, wait_of_controls(controls, self.settings))
        return await self._event(request, name, table, event_of_url(table.definition, columns, controls, self.settings))

    async def event_post(self, request: Request) -> Response:
        _controls(request)
        body = await _read_body(request, self.settings.max_body_bytes)
        name, table = await self._arrived(request, wait_of_members(body, self.settings))
        return await self._event(request, name, table, event_of_json(table.definition, body, self.settings))

    async def metrics(self, request: Request) -> Response:
        from millpond.serve.metrics.prometheus import MEDIA_TYPE, write_metrics

        _controls(request)
        if not _reader(request).metrics:
            raise RequestError(
                "NOT_ALLOWED",
                "This token doesn't open /metrics, which speaks of all jobs.",
                hint="Make one that does: millpond token FILE NAME --metrics",
            )
        statistics = await run_in_threadpool(self.ponds.statistics)
        self.meter.note_followers(statistics)
        text = await run_in_threadpool(lambda: write_metrics(statistics, self.meter.total()))
        return Response(text, headers={"content-type": MEDIA_TYPE, "cache-control": "no-store"})

    async def livez(self, request: Request) -> Response:
        _controls(request)
        return replies.as_json({"live": True})

    async def readyz(self, request: Request) -> Response:
        _, controls = _controls(request)
        bound = parse_seconds(controls.get("_max_behind_seconds"), default=self.settings.ready_behind_seconds)
        ready, reason = await run_in_threadpool(self.ponds.ready, bound)
        if not ready:
            # Who asks needs no token, and the reason names jobs.
            details = reason if self.settings.tokens is None else "/metrics says of which job"
            raise ReplicaError(
                "REPLICA_BEHIND",
                f"Not ready: {details}.",
                hint="Wait, or ask with a larger _max_behind_seconds; GET /tables shows each table's batch and lag.",
                max_behind_seconds=bound,
            )
        return replies.as_json({"ready": True, "max_behind_seconds": bound})

    async def refuse(self, request: Request, error: Exception) -> Response:
        """An error of ours; where another door can read what this one can't, that one's answer."""
        assert isinstance(error, MillpondError)
        if "holder" in error.context and "is_neighbours" not in request.scope:
            answer = await self.neighbours.try_ask(error.context["holder"], request.scope)
            if answer is not None:
                return answer
        return replies.answer_error(request, error)

    # ------------------------------------------------------------ tables

    def shape(self, name: str, table: Table) -> replies.Shape:
        """How the rows of a table are written that goes by this name, made once for each definition."""
        definition: TableDefinition = table.definition
        known = self._shapes.get(name)
        if known is None or known.definition is not definition:
            known = self._shapes[name] = replies.Shape(definition)
        return known

    def _table(self, request: Request) -> tuple[str, Table]:
        """The table that the path names, and the name it goes by there.  Raises NOT_ALLOWED, and as `Ponds`."""
        name = unquote(request.path_params["table"], errors="surrogateescape")
        return name, self._named(name, _reader(request))

    async def _arrived(self, request: Request, wait_seconds: float) -> tuple[str, Table]:
        """The same; where nobody has defined it yet, after so many seconds at most.  Raises TOO_MANY_WAITS; as `_check_still`.

        What is waited for afterwards is waited for in the same seconds.
        """
        try:
            return self._table(request)
        except MillpondError as error:
            if not wait_seconds or error.condition not in ARRIVING:
                raise
        began = request.scope["asked_at"] = time.monotonic()
        name = unquote(request.path_params["table"], errors="surrogateescape")
        seat: ExitStack = request.scope["resources"]
        while (left := began + wait_seconds - time.monotonic()) > 0:
            self._take_seat(request, seat)
            is_there = await self.arrivals.next(min(left, _TICK_SECONDS), name)
            self._check_still(request, name)
            if is_there:
                break
        return self._table(request)

    def _named(self, name: str, reader: Reader) -> Table:
        check_reader(self.ponds, reader, name)
        try:
            return self.ponds[name]
        except RequestError as error:
            if error.condition != "UNKNOWN_TABLE" or reader is EVERYBODY:
                raise
            raise unknown_table(name, "what this token opens", self._names(reader)) from None

    def _names(self, reader: Reader) -> list[str]:
        return [name for name in self.ponds.tables() if reader is EVERYBODY or reader.may_read(self.ponds.names_of(name))]

    def _list(self, reader: Reader) -> Response:
        return replies.as_json({"tables": [self._listed(name) for name in self._names(reader)]})

    def _listed(self, name: str) -> dict[str, Json]:
        # One table that can't be read mustn't hide the others.
        try:
            table = self.ponds[name]
            return describe_table(name, table.count(), table.definition)
        except MillpondError as error:
            return {"table": name, **error_json(error)}

    def _definition(self, name: str, table: Table) -> Response:
        table.count()  # a table that nobody defined takes its shape from the newest state
        shape = self.shape(name, table)
        return replies.as_json(shape.definition.to_json(), headers={replies.DEFINITION: shape.digest})

    # ------------------------------------------------------------ rows

    def _ask(self, request: Request) -> replies.Ask:
        headers = request.headers
        route = ROUTE_OF[request.scope["endpoint"].__name__]
        return replies.Ask(
            form=choose_format(",".join(headers.getlist("accept")), route.formats),
            if_none_match=headers.get("if-none-match", ""),
            accept_encoding=headers.get("accept-encoding", ""),
            settings=self.settings,
        )

    async def _answer(self, request: Request, ask: replies.Ask, name: str, table: Table, question: Question) -> Response:
        read: Callable[[Question], Response]
        if question.is_lookup(table.definition):
            read = partial(self._lookup_as_of, ask, name, table)
            if question.bounds is None and question.as_of.is_newest:
                return read(question)
        elif ask.form is not JSON and question.limit is None and question.token is None:
            read = partial(self._download, ask, name, table)
        else:
            usual = self.settings.limit_rows if ask.form is JSON else self.settings.max_rows
            question = replace(question, limit=usual if question.limit is None else question.limit)
            read = partial(self._scan, ask, name, table)

        def answer(bounds: Bounds | None) -> Response:
            return read(replace(question, bounds=bounds))

        is_large = not question.is_lookup(table.definition) and self._is_large(question.limit)
        if is_large and ask.form is not JSON:
            request.scope["resources"].enter_context(self.downloads.taken(request.scope["asker"]))
        return await self._in_thread(request, name, table, answer, question.bounds, is_large=is_large)

    def _is_large(self, rows: int | None) -> bool:
        """Whether an answer of so many rows, or of all, has to wait for its turn."""
        return rows is None or rows > self.settings.limit_rows

    async def _read(self, asker: str, read: Callable[[], Result], *, is_large: bool) -> Result:
        """What a read gives, in a thread; a large answer in its turn.  Raises TOO_MANY_ANSWERS."""
        if not is_large:
            return await run_in_threadpool(read)
        async with self.turns.turn(asker, self.settings.max_seconds):
            return await run_in_threadpool(read)

    async def _in_thread(
        self,
        request: Request,
        name: str,
        table: Table,
        answer: Callable[[Bounds | None], Result],
        bounds: Bounds | None,
        *,
        is_large: bool = False,
    ) -> Result:
        """The answer of a read, in a thread; where its bounds may be waited for, it is read again with each new batch."""
        asker = request.scope["asker"]
        if bounds is None or not bounds.wait_seconds:
            return await self._read(asker, partial(answer, bounds), is_large=is_large)
        wait_seconds, bounds = bounds.wait_seconds, structs.replace(bounds, wait_seconds=0.0)
        began, stopped_at = request.scope.get("asked_at", time.monotonic()), None
        watch, settle_seconds = self.watches.of(table.job_reads.replica), table.job_reads.settle_seconds
        with ExitStack() as seat:
            while True:
                count = watch.count
                try:
                    return await self._read(asker, partial(answer, bounds), is_large=is_large)
                except MillpondError as error:
                    if not may_pass(error):
                        raise
                    now = time.monotonic()
                    left = began + wait_seconds - now
                    stopped_at = (stopped_at or now) if is_of_stopped(error) else None
                    if left <= 0 or (stopped_at is not None and now - stopped_at >= settle_seconds):
                        raise after(error, min(wait_seconds, round(now - began, 3))) from None
                await self._wait(request, name, seat, watch, count, left if stopped_at is None else min(left, settle_seconds))
                # As long as that batch isn't there, nothing is read, but now and then, to see whether the job has stopped.
                look = time.monotonic() + _TICK_SECONDS
                while watch.is_below(bounds.min_batch) and stopped_at is None and (left := look - time.monotonic()) > 0:
                    await self._wait(request, name, seat, watch, watch.count, left)

    async def _wait(self, request: Request, name: str, seat: ExitStack, watch: Watch, count: int, seconds: float) -> None:
        """Wait for the next batch.  Raises TOO_MANY_WAITS; as `_check_still`."""
        self._take_seat(request, seat)
        await watch.beyond(count, min(seconds, _TICK_SECONDS))
        self._check_still(request, name)

    def _take_seat(self, request: Request, seat: ExitStack) -> None:
        """Count the request among those that wait, once.  Raises TOO_MANY_WAITS."""
        if "waits" not in request.scope:
            request.scope["waits"] = True
            seat.enter_context(self.waits.taken(request.scope["asker"]))

    def _check_still(self, request: Request, name: str) -> None:
        """Raise TOKEN_NEEDED or NOT_ALLOWED where whoever asked may not any more."""
        if request.scope["reader"] is not EVERYBODY and "is_neighbours" not in request.scope:
            check_reader(self.ponds, self.access.peek(dict(request.scope["headers"])), name)

    async def _count(self, request: Request, name: str, table: Table, key: Key, bounds: Bounds | None, as_of: AsOf) -> Response:
        def answer(bounds: Bounds | None) -> Response:
            return replies.as_json(count_json(name, as_of.of(table).count(key, bounds=bounds)))

        return await self._in_thread(request, name, table, answer, bounds)

    async def _changes(self, request: Request, name: str, table: Table, question: ChangesQuestion) -> Response:
        ends = request.scope.get("asked_at", time.monotonic()) + question.wait_seconds
        since, limit = question.since, question.limit or _PAGE_CHANGES
        watch = self.watches.of(table.job_reads.replica)

        def answer(bounds: Bounds | None) -> dict[str, Json]:
            return self._page(name, table, replace(question, bounds=bounds), since, limit)

        with ExitStack() as seat:
            while True:
                count = watch.count
                page = await self._in_thread(request, name, table, answer, question.bounds, is_large=self._is_large(limit))
                left = ends - time.monotonic()
                if page["changes"] or left <= 0:
                    return replies.as_json(page, headers={replies.DEFINITION: self.shape(name, table).digest})
                since = page["token"]
                await self._wait(request, name, seat, watch, count, left)

    def _page(self, name: str, table: Table, question: ChangesQuestion, since: str | int | None, limit: int) -> dict[str, Json]:
        """The changes that there are behind a place."""
        found = question.ask(question.as_of.of(table), since, limit, 0.0)
        return changes_json(name, found, self.shape(name, table).write)

    async def _versions(self, request: Request, name: str, table: Table, question: VersionsQuestion) -> Response:
        def read(bounds: Bounds | None) -> Response:
            found = replace(question, bounds=bounds).ask(question.as_of.of(table), self.settings.max_rows)
            shape = self.shape(name, table)
            return replies.as_json(versions_json(name, found, shape.write), headers={replies.DEFINITION: shape.digest})

        return await self._in_thread(request, name, table, read, question.bounds, is_large=True)

    async def _event(self, request: Request, name: str, table: Table, question: EventQuestion) -> Response:
        def read(bounds: Bounds | None) -> Response:
            return replies.as_json(event_json(name, replace(question, bounds=bounds).ask(question.as_of.of(table))))

        return await self._in_thread(request, name, table, read, question.bounds)

    def _lookup_as_of(self, ask: replies.Ask, name: str, table: Table, question: Question) -> Response:
        return self._lookup(ask, name, question.as_of.of(table), [question.key], question.bounds, gaps=False)

    def _lookup(self, ask: replies.Ask, name: str, table: Table, keys: list[Key], bounds: Bounds | None, *, gaps: bool) -> Response:
        rows = table.get_all(keys, bounds=bounds)
        return replies.reply(ask, name, self.shape(name, table), rows, gaps=gaps)

    def _scan(self, ask: replies.Ask, name: str, table: Table, question: Question) -> Response:
        rows = question.ask(question.as_of.of(table))
        return replies.reply(ask, name, self.shape(name, table), rows)

    def _download(self, ask: replies.Ask, name: str, table: Table, question: Question) -> Response:
        """All rows of one batch in pieces: as many as there are, within the limits of bytes and time."""
        with ExitStack() as opened:
            if question.as_of.is_newest:
                opened.enter_context(_in_time(table.name, self.settings.max_seconds))
                table = opened.enter_context(self.ponds.cut(name, question.bounds))[table.name]
                question = replace(question, bounds=None)  # the cut meets them
            reads = question.as_of.of(table)
            pages = iter_pages(reads, question)
            first = next(pages)  # the table is read as its state is now
            shape = self.shape(name, reads)
            if (known := replies.try_known(ask, shape, first.cut, more=False)) is not None:
                return known
            if ask.form is ARROW and question.is_everything and not reads.definition.many:
                pieces = write_table(reads)
            else:
                pieces = write_pages(ask.form, shape.definition, chain([first], pages))
            return replies.stream(ask, shape, first.cut, _closing(pieces, opened.pop_all()), more=False)


@contextmanager
def _in_time(table: str, seconds: float) -> Iterator[None]:
    """Where a cut that nobody asked for ends by time, the read was too long.  Raises READ_TOO_LONG for that."""
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


def create_app(door: HttpDoor) -> tuple[ASGIApp, ASGIApp]:
    """The HTTP door as an ASGI application, and what is behind its gate.  The caller opens the ponds and closes them."""
    routes = [Route(r.path, getattr(door, r.endpoint), methods=[r.method]) for r in ROUTES]
    handlers: Mapping[Any, Callable[[Request, Exception], Any]] = {
        MillpondError: door.refuse,
        HTTPException: replies.answer_routing,
        Exception: replies.answer_mistake,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return gate(app, door.access, door.meter), app


def check_reader(ponds: Ponds, reader: Reader, name: str) -> None:
    """Raise NOT_ALLOWED where this reader may not read that table, whether there is one or not."""
    if reader is not EVERYBODY and not reader.may_read(ponds.names_of(name)):
        raise RequestError(
            "NOT_ALLOWED",
            f"This token doesn't open the table {name!r}.",
            hint="GET /tables lists those that it opens; whoever runs the server changes that.",
            table=name,
        )


# ---------------------------------------------------------------- requests


def _reader(request: Request) -> Reader:
    reader = request.scope["reader"]
    assert isinstance(reader, Reader)
    return reader


def _controls(request: Request) -> tuple[Pairs, dict[str, str]]:
    """Columns and controls of the request.  Raises INVALID_REQUEST for what its route doesn't take."""
    query = request.scope["query_string"]
    if not query:
        return [], {}
    route = ROUTE_OF[request.scope["endpoint"].__name__]
    columns, controls = split_controls(parse_query(query), route.control_names)
    if columns and not route.columns:
        raise RequestError(
            "INVALID_REQUEST",
            f"This route takes no columns, but {columns[0][0]!r} is given.",
            hint="Ask for rows at /tables/{table}/rows.",
            parameter=columns[0][0],
        )
    return columns, controls


async def _read_body(request: Request, maximum: int) -> Json:
    """The decoded JSON of the body.  Raises REQUEST_TOO_LARGE, INVALID_REQUEST."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > maximum:
            raise RequestError(
                "REQUEST_TOO_LARGE",
                f"The body is larger than {maximum} bytes.",
                hint="Send fewer keys at a time.",
                maximum_bytes=maximum,
            )
    request.scope["asked_body"] = bytes(body)
    try:
        return decode_json(bytes(body))
    except ValueError as wrong:
        raise RequestError("INVALID_REQUEST", f"The body is no JSON: {wrong}.", hint="Send a JSON object as UTF-8.") from None

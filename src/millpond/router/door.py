"""The router's HTTP door: the reads that shards answer together, with the routes and answers of a server."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

import anyio
import msgspec
from msgspec import structs
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.router.pond import ShardedPond
from millpond.router.quick.asking import QuickServers
from millpond.router.quick.lookups import QuickLookups
from millpond.router.reads.table import ShardedTable
from millpond.router.sql import OpenedShards
from millpond.router.watch import ShardBatches
from millpond.schema.definition.table import TableDefinition
from millpond.serve.access.access import Access
from millpond.serve.access.gate import gate
from millpond.serve.access.tokens import EVERYBODY, Reader, check_may_read, check_sees_metrics
from millpond.serve.answers import replies
from millpond.serve.answers.events import Event, event_of, event_stream
from millpond.serve.answers.sql import SqlCall, answer_sql, within_time
from millpond.serve.answers.sql_events import Subscription, stream_sql
from millpond.serve.answers.tables import PAGE_CHANGES, check_series
from millpond.serve.asked import read_plain, read_question
from millpond.serve.formats import EVENTS, JSON, choose_format
from millpond.serve.metrics.counts import Meter
from millpond.serve.routes import ROUTE_OF, RouteText
from millpond.serve.sql.pool import SqlPool
from millpond.serve.waiting.patience import Patience
from millpond.serve.waiting.waits import Watch
from millpond.settings import ServeSettings
from millpond.tables.answer import Count, Rows
from millpond.tables.buckets.answer import Series
from millpond.tables.default_tables import unknown_table
from millpond.tables.job.bounds import Bounds, after, is_of_stopped, may_pass
from millpond.wire.answers import (
    ChangesAnswer,
    IndexAnswer,
    LiveAnswer,
    ReadyAnswer,
    RouteJson,
    TablesAnswer,
    answer_json,
    error_json,
    members,
    table_json,
)
from millpond.wire.parse import Asked
from millpond.wire.questions import (
    AskSql,
    CountRows,
    Define,
    FindEvent,
    FindTotal,
    KeepCut,
    Keys,
    ListChanges,
    ListVersions,
    Question,
    Ready,
    Scan,
    SubscribeSql,
)
from millpond.wire.shards import TableShard

ROUTED = (
    "index",
    "tables",
    "table",
    "definition",
    "rows",
    "rows_get",
    "rows_scan",
    "count",
    "rows_count",
    "changes",
    "changes_post",
    "versions",
    "versions_post",
    "cut",
    "event",
    "event_post",
    "total",
    "total_post",
    "series",
    "series_post",
    "sql",
    "sql_changes",
    "shards",
    "metrics",
    "livez",
    "readyz",
)
"""The endpoints of a server that a router answers."""
# Threads that wait for shards, and those of them that may have many rows in memory.
_READS, _LARGE_READS = 64, 2
# Threads that wait until servers know that a job has stopped.
_SETTLING = 16
Result = TypeVar("Result")


class ServerShards(msgspec.Struct, frozen=True, kw_only=True):
    """One server of the router: what it has of each table, or why it doesn't answer."""

    url: str
    tables: list[TableShard]
    error: str | None


class RouterShards(msgspec.Struct, frozen=True, kw_only=True):
    """Who has what, and how far each is."""

    servers: list[ServerShards]


class RouterDoor:
    """Answers requests from the tables of several servers.

    endpoints:  by name
    """

    def __init__(self, pond: ShardedPond, settings: ServeSettings, access: Access, meter: Meter, quick: QuickServers) -> None:
        self._pond = pond
        self.settings = settings
        self._access = access
        self._meter = meter
        self._quick = quick
        self.endpoints = {name: self._endpoint(ROUTE_OF[name]) for name in ROUTED}
        self._shapes: dict[str, replies.Shape] = {}
        self._reads = anyio.CapacityLimiter(_READS)
        self._large_reads = anyio.CapacityLimiter(_LARGE_READS)
        self._settling = anyio.CapacityLimiter(_SETTLING)
        self.patience = Patience(settings, lambda: set(pond.tables()), self._check_still)
        self.statements = SqlPool()
        self.is_ending = False

    def app(self) -> ASGIApp:
        """The door as an ASGI application."""
        return gate(QuickLookups(self.application(), self, self._quick), self._access, self._meter)

    def application(self) -> ASGIApp:
        """The same without the gate and the quick way, which change no answer of a reader who may read."""
        handlers: Mapping[Any, Callable[[Request, Exception], Any]] = {
            MillpondError: replies.answer_error,
            HTTPException: replies.answer_routing,
            Exception: replies.answer_mistake,
        }
        routes = [Route(r.path, self.endpoints[r.endpoint], methods=[r.method]) for r in map(ROUTE_OF.__getitem__, ROUTED)]
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return app

    def _endpoint(self, route: RouteText) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if issubclass(route.question, Question):
                return await self._of_table(request, route)
            question = await read_plain(request, route, self.settings)
            if isinstance(question, AskSql):
                return await answer_sql(self._sql_call(request, question))
            if isinstance(question, SubscribeSql):
                return await self._subscribed(request, question)
            return await self._in_thread(lambda: getattr(self, f"_{route.endpoint}")(request, question))

        answer.__name__ = route.endpoint
        return answer

    async def _of_table(self, request: Request, route: RouteText) -> Response:
        asked = await read_question(request, route, self.settings)
        name = self._readable(request)
        if isinstance(asked.question, ListChanges):
            return await self._changes(request, route, name, asked.question)
        large = isinstance(asked.question, Scan) and (asked.question.limit or 0) > self.settings.limit_rows
        bounds = asked.question.bounds
        if bounds is None or not bounds.wait_seconds:
            return await self._in_thread(lambda: self._answer(request, route, name, asked), is_large=large)

        def read(wait_seconds: float) -> Response:
            within = structs.replace(asked.question, bounds=structs.replace(bounds, wait_seconds=wait_seconds))
            return self._answer(request, route, name, asked._replace(question=within))

        return await self._once_met(request, name, read, bounds, is_large=large)

    async def _once_met(
        self, request: Request, name: str, read: Callable[[float], Response], bounds: Bounds, *, is_large: bool
    ) -> Response:
        """The answer of a read whose bounds may wait.

        It reads again with each batch that may meet them.  While it waits, it has no thread.

        read:    for at most so many seconds
        Raises:  TOO_MANY_WAITS; as `read`.
        """
        began, watch, scope = time.monotonic(), self._watch(name), request.scope
        with ExitStack() as seat:
            while True:
                count = watch.count
                try:
                    return await self._in_thread(partial(read, 0.0), is_large=is_large)
                except MillpondError as error:
                    passed = time.monotonic() - began
                    left = bounds.wait_seconds - passed
                    if left <= 0 or not may_pass(error):
                        raise after(error, min(bounds.wait_seconds, round(passed, 3))) from None
                    has_stopped = is_of_stopped(error)
                if has_stopped:  # servers find out in a moment whether that is so
                    self.patience.take_seat(scope, seat)
                    return await anyio.to_thread.run_sync(partial(read, left), limiter=self._settling)
                await self.patience.worth_a_read(scope, name, seat, watch, count, left, bounds.min_batch)

    def _watch(self, name: str) -> Watch:
        return self.patience.watches.of(ShardBatches(self._pond, name))

    async def _in_thread(self, read: Callable[[], Result], *, is_large: bool = False) -> Result:
        return await anyio.to_thread.run_sync(read, limiter=self._large_reads if is_large else self._reads)

    # ------------------------------------------------------------ changes

    async def _changes(self, request: Request, route: RouteText, name: str, question: ListChanges) -> Response:
        if route.formats and choose_format(_accepted(request), route.formats) is EVENTS:
            return await self._stream(request, name, question)
        scope, watch, ends = request.scope, self._watch(name), time.monotonic() + question.wait_seconds
        question = structs.replace(question, wait_seconds=0.0)
        count = watch.count
        page = await self._page(request, name, question)
        with ExitStack() as seat:
            while not page.changes and (left := ends - time.monotonic()) > 0:
                question = structs.replace(question, since=page.token)
                await self.patience.next_batch(scope, name, seat, watch, count, left)
                count = watch.count
                page = await self._page_once(request, name, question, watch)
        return replies.as_json(page, headers={replies.DEFINITION: self.shape(name, self.named(request, name).definition).digest})

    async def _page_once(self, request: Request, name: str, question: ListChanges, watch: Watch) -> ChangesAnswer:
        """The changes after a place, which all that waited for them at that place share."""
        if question.bounds is not None:
            return await self._page(request, name, question)
        page = await watch.once((name, question), lambda: self._page(request, name, question))
        if not page.changes and page.batch < (watch.batch or 0):  # of a server that hasn't got so far
            watch.forget((name, question))
        return page

    async def _stream(self, request: Request, name: str, question: ListChanges) -> Response:
        """Changes as server-sent events, as a server's.  Raises TOO_MANY_STREAMS."""
        scope, watch = request.scope, self._watch(name)
        scope["resources"].enter_context(self.patience.streams.taken(scope["asker"]))
        first = await self._page(request, name, question)

        async def look(token: str) -> Event:
            on = structs.replace(question, since=token, bounds=None, limit=PAGE_CHANGES, wait_seconds=0.0)
            return event_of(await self._page_once(request, name, on, watch))

        headers = {"cache-control": "no-store", "content-type": EVENTS.content_type}
        stream = event_stream(event_of(first), look, watch, lambda: self._check_still(scope, name), lambda: self.is_ending)
        return StreamingResponse(stream, headers=headers)

    async def _page(self, request: Request, name: str, question: ListChanges) -> ChangesAnswer:
        """The present changes after a place."""

        def read() -> ChangesAnswer:
            table, limit = question.state_of(self.named(request, name)), question.limit or PAGE_CHANGES
            found = table.changes(question.since, limit=limit, bounds=question.bounds)
            page = answer_json(name, found, self.shape(name, table.definition).write)
            assert isinstance(page, ChangesAnswer)
            return page

        return await self._in_thread(read)

    def _check_still(self, scope: Scope, name: str) -> None:
        """Raise TOKEN_NEEDED or NOT_ALLOWED if the request's reader may no longer read."""
        if scope["reader"] is not EVERYBODY:
            check_may_read(self._access.peek(dict(scope["headers"])), name, (name,))

    # ------------------------------------------------------------ SQL

    async def _subscribed(self, request: Request, question: SubscribeSql) -> Response:
        choose_format(_accepted(request), (EVENTS,))
        asked = AskSql(statement=question.statement, parameters=question.parameters)
        return await stream_sql(
            Subscription(
                call=self._sql_call(request, asked),
                question=question,
                room=self.patience.subscribed,
                watch_of=self._watch,
                check=lambda name: self._check_still(request.scope, name),
                is_ending=lambda: self.is_ending,
            )
        )

    def _sql_call(self, request: Request, question: AskSql) -> SqlCall:
        def opening_of(asked: AskSql) -> OpenedShards:
            return OpenedShards(_Readable(self, request), within_time(asked, self.settings), asked.separate)

        return SqlCall(
            request=request,
            question=question,
            opening_of=opening_of,
            patience=self.patience,
            settings=self.settings,
            pool=self.statements,
        )

    # ------------------------------------------------------------ of one table, in a thread

    def _answer(self, request: Request, route: RouteText, name: str, asked: Asked[Any]) -> Response:
        table = self.named(request, name)
        definition = table.definition
        question = asked.typed(definition)
        table = question.state_of(table)
        match question:
            case Define():
                shape = self.shape(name, table.definition)
                return replies.as_json(shape.definition.to_json(), headers={replies.DEFINITION: shape.digest})
            case CountRows() | FindTotal() | ListVersions() | FindEvent() | KeepCut():
                if isinstance(question, ListVersions) and question.limit is None:
                    usual = self.settings.max_rows if route.has_body else self.settings.limit_rows
                    question = structs.replace(question, limit=usual)
                found = question.ask(table)
                shape = self.shape(name, table.definition)
                if isinstance(found, Series):
                    check_series(found, name, self.settings)
                return replies.as_json(answer_json(name, found, shape.write), headers={replies.DEFINITION: shape.digest})
            case Scan() if question.is_lookup(definition):
                rows: Rows = table.get_all([question.key], bounds=question.bounds)
            case Scan():
                limit = question.limit or self.settings.limit_rows
                rows = structs.replace(question, limit=limit).ask(table)
            case Keys():
                rows = question.ask(table)
            case _:
                raise AssertionError(question)
        ask = replies.Ask(
            form=choose_format(_accepted(request), route.formats or (JSON,)),
            if_none_match="",  # the batch alone doesn't say that rows are the same
            accept_encoding=request.headers.get("accept-encoding", ""),
            settings=self.settings,
        )
        response = replies.reply(ask, name, self.shape(name, table.definition), rows, gaps=isinstance(question, Keys))
        del response.headers["etag"]
        return response

    def shape(self, name: str, definition: TableDefinition) -> replies.Shape:
        """How to write rows of a table by its present definition."""
        shape = self._shapes.get(name)
        if shape is None or shape.definition is not definition:
            shape = self._shapes[name] = replies.Shape(definition)
        return shape

    # ------------------------------------------------------------ of all, in a thread

    def _index(self, _request: Request, _question: msgspec.Struct) -> Response:
        routes = [RouteJson(method=r.method, path=r.path, summary=r.summary) for r in map(ROUTE_OF.__getitem__, ROUTED)]
        return replies.as_json(IndexAnswer(millpond="a router of shards", routes=routes))

    def _tables(self, request: Request, _question: msgspec.Struct) -> Response:
        names = [name for name in self._pond.tables() if _may_read(request, name)]
        found = []
        for name in names:
            try:
                found.append(members(self._described(name)))
            except MillpondError as error:
                found.append({"table": name, **members(error_json(error))})
        return replies.as_json(TablesAnswer(tables=found))

    def _table(self, request: Request, _question: msgspec.Struct) -> Response:
        name = self._readable(request)
        self.named(request, name)
        return replies.as_json(self._described(name))

    def _described(self, name: str) -> Any:
        table = self._pond[name]
        count: Count = table.count()
        return table_json(name, count, table.definition)

    def _shards(self, request: Request, _question: msgspec.Struct) -> Response:
        check_sees_metrics(request.scope["reader"], request.url.path)
        servers = [
            ServerShards(url=url, tables=[], error=said)
            if isinstance(said, str)
            else ServerShards(url=url, tables=[t for name, t in sorted(said.items()) if _may_read(request, name)], error=None)
            for url, said in self._pond.shards()
        ]
        return replies.as_json(RouterShards(servers=servers))

    def _metrics(self, request: Request, _question: msgspec.Struct) -> Response:
        from millpond.router.metrics import write_router_metrics
        from millpond.serve.metrics.prometheus import MEDIA_TYPE

        check_sees_metrics(request.scope["reader"], request.url.path)
        text = write_router_metrics(self._pond.look(), self._meter.total())
        return Response(text, headers={"content-type": MEDIA_TYPE, "cache-control": "no-store"})

    def _livez(self, _request: Request, _question: msgspec.Struct) -> Response:
        return replies.as_json(LiveAnswer(live=True))

    def _readyz(self, _request: Request, question: Ready) -> Response:
        bound = self.settings.ready_behind_seconds if question.max_behind_seconds is None else question.max_behind_seconds
        ready, reason = self._pond.ready(bound)
        if not ready:
            details = reason if self.settings.tokens is None else "GET /shards says of which table"
            raise ReplicaError(
                "REPLICA_BEHIND",
                f"Not ready: {details}.",
                hint="Wait, or ask with a larger _max_behind_seconds; GET /shards shows what each server has.",
                max_behind_seconds=bound,
            )
        return replies.as_json(ReadyAnswer(ready=True, max_behind_seconds=bound))

    def known_table(self, name: str) -> ShardedTable | None:
        """The table of that name, if it was asked for before; asks no server."""
        return self._pond.known(name)

    def named(self, request: Request, name: str) -> ShardedTable:
        """The table of that name.  Raises UNKNOWN_TABLE, which names only tables that the reader may read."""
        try:
            return self._pond[name]
        except RequestError as error:
            if error.condition != "UNKNOWN_TABLE":
                raise
            known = [each for each in self._pond.tables() if _may_read(request, each)]
            raise unknown_table(name, "the servers of this router", known) from None

    def _readable(self, request: Request) -> str:
        """The table in the path.  Raises NOT_ALLOWED."""
        name = unquote(request.path_params["table"], errors="surrogateescape")
        check_may_read(request.scope["reader"], name, (name,))
        return name


@dataclass(frozen=True, slots=True)
class _Readable:
    """The tables that the reader of a request may read."""

    door: RouterDoor
    request: Request

    def __getitem__(self, name: str) -> ShardedTable:
        """The table of a name.  Raises UNKNOWN_TABLE, NOT_ALLOWED."""
        check_may_read(self.request.scope["reader"], name, (name,))
        return self.door.named(self.request, name)


def _accepted(request: Request) -> str:
    return ",".join(request.headers.getlist("accept"))


def _may_read(request: Request, name: str) -> bool:
    reader: Reader = request.scope["reader"]
    return reader is EVERYBODY or reader.may_read((name,))

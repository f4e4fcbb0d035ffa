"""The HTTP door: dispatch of requests.

Lookups run on the event loop (microseconds, in memory only); reads that may take long run in a
thread.  A path is decoded segment by segment from its raw bytes, so that a name may have a slash.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.serve import replies
from millpond.serve.access.access import Access
from millpond.serve.access.gate import gate
from millpond.serve.access.tokens import EVERYBODY, Reader, SavepointRight
from millpond.serve.asked import read_plain, read_question
from millpond.serve.forwarding import Neighbours
from millpond.serve.metrics.counts import Meter
from millpond.serve.openapi import openapi
from millpond.serve.operations import Operations
from millpond.serve.patience import Patience
from millpond.serve.ponds import Ponds
from millpond.serve.routes import ROUTES, RouteText
from millpond.serve.table_answers import Call, answer_call
from millpond.settings import ServeSettings
from millpond.tables.align import align
from millpond.tables.default_tables import unknown_table
from millpond.tables.table import Table
from millpond.wire.answers import (
    IndexAnswer,
    LiveAnswer,
    ReadyAnswer,
    RouteJson,
    TableAnswer,
    TablesAnswer,
    UnreadTable,
    aligned_json,
    members,
    table_json,
    unread_json,
)
from millpond.wire.questions import Align, CreateSavepoint, Question, Ready


class HttpDoor:
    """Answers requests on ponds."""

    def __init__(
        self,
        ponds: Ponds,
        settings: ServeSettings,
        meter: Meter,
        access: Access,
        neighbours: Neighbours,
        operations: Operations,
    ) -> None:
        self.ponds = ponds
        self.operations = operations
        self.neighbours = neighbours
        self.settings = settings
        self.meter = meter
        self.access = access
        self.patience = Patience(settings, ponds.known_names, self._check_still)
        self._shapes: dict[str, replies.Shape] = {}
        self.is_ending = False

    def use(self, settings: ServeSettings) -> None:
        """Answer by these settings from here on."""
        self.settings = settings
        self.patience.use(settings)
        self.operations.use(settings)

    def end(self) -> None:
        """End the streams, since the server ends."""
        self.is_ending = True

    def endpoint(self, route: RouteText) -> Callable[[Request], Awaitable[Response]]:
        """The function that answers a route: a question about one table, or the method of that name."""
        if issubclass(route.question, Question):

            async def answer(request: Request) -> Response:
                return await self._of_table(request, route)

        else:
            own: Callable[[Request, Any], Awaitable[Response]] = getattr(self, route.endpoint)

            async def answer(request: Request) -> Response:
                return await own(request, await read_plain(request, route, self.settings))

        answer.__name__ = route.endpoint
        return answer

    async def _of_table(self, request: Request, route: RouteText) -> Response:
        asked = await read_question(request, route, self.settings)
        name = _name(request)
        table = await self.patience.until_there(
            request.scope, name, lambda: self._named(name, _reader(request)), asked.question.patience_seconds
        )
        for token in ("token", "cut"):  # they stay with the version that they began with
            table = table.of_token(getattr(asked.question, token, None))
        call = Call(
            request=request,
            route=route,
            name=name,
            table=table,
            settings=self.settings,
            patience=self.patience,
            shape_of=self.shape,
            cut=self.ponds.cut,
            check=self._check_still,
            is_ending=lambda: self.is_ending,
        )
        return await answer_call(call, asked)

    # ------------------------------------------------------------ what isn't of one table's rows

    async def index(self, _request: Request, _question: msgspec.Struct) -> Response:
        routes = [RouteJson(method=r.method, path=r.path, summary=r.summary) for r in ROUTES]
        return replies.as_json(IndexAnswer(millpond="state you can query, for Spark streams", routes=routes))

    async def openapi(self, _request: Request, _question: msgspec.Struct) -> Response:
        return replies.as_json(openapi(self.settings, version("millpond")))

    async def tables(self, request: Request, _question: msgspec.Struct) -> Response:
        names = self._names(_reader(request))
        return await run_in_threadpool(lambda: replies.as_json(TablesAnswer(tables=[members(self._listed(n)) for n in names])))

    async def table(self, request: Request, _question: msgspec.Struct) -> Response:
        name = _name(request)
        table = self._named(name, _reader(request))
        return await run_in_threadpool(lambda: replies.as_json(table_json(name, table.count(), table.definition)))

    async def at(self, request: Request, question: Align) -> Response:
        tables = {name: self._named(name, _reader(request)) for name in question.tables}
        return await run_in_threadpool(lambda: replies.as_json(aligned_json(align(tables, question.offsets))))

    async def savepoints(self, request: Request, _question: msgspec.Struct) -> Response:
        _need_savepoints(request, "read")
        return await run_in_threadpool(lambda: replies.as_json(self.operations.savepoints()))

    async def savepoint(self, request: Request, _question: msgspec.Struct) -> Response:
        _need_savepoints(request, "read")
        name = _name(request, "savepoint")
        return await run_in_threadpool(lambda: replies.as_json(self.operations.savepoint(name)))

    async def create_savepoint(self, request: Request, question: CreateSavepoint) -> Response:
        _need_savepoints(request, "create")
        return await run_in_threadpool(lambda: replies.as_json(self.operations.create(question)))

    async def verify_savepoint(self, request: Request, _question: msgspec.Struct) -> Response:
        _need_savepoints(request, "read")
        name = _name(request, "savepoint")
        return await run_in_threadpool(lambda: replies.as_json(self.operations.verify(name)))

    async def operation(self, request: Request, _question: msgspec.Struct) -> Response:
        _need_savepoints(request, "read")
        return replies.as_json(self.operations.operation(_name(request, "operation")))

    async def metrics(self, request: Request, _question: msgspec.Struct) -> Response:
        from millpond.serve.metrics.prometheus import MEDIA_TYPE, write_metrics

        if not _reader(request).metrics:
            raise RequestError(
                "NOT_ALLOWED",
                "This token doesn't open /metrics, which covers all jobs.",
                hint="Make one that does: millpond token FILE NAME --metrics",
            )
        statistics = await run_in_threadpool(self.ponds.statistics)
        self.meter.note_followers(statistics)
        text = await run_in_threadpool(lambda: write_metrics(statistics, self.meter.total()))
        return Response(text, headers={"content-type": MEDIA_TYPE, "cache-control": "no-store"})

    async def livez(self, _request: Request, _question: msgspec.Struct) -> Response:
        return replies.as_json(LiveAnswer(live=True))

    async def readyz(self, _request: Request, question: Ready) -> Response:
        given = question.max_behind_seconds
        bound = self.settings.ready_behind_seconds if given is None else given
        ready, reason = await run_in_threadpool(self.ponds.ready, bound)
        if not ready:
            # The route needs no token, but the reason names jobs.
            details = reason if self.settings.tokens is None else "/metrics says of which job"
            raise ReplicaError(
                "REPLICA_BEHIND",
                f"Not ready: {details}.",
                hint="Wait, or ask with a larger _max_behind_seconds; GET /tables shows each table's batch and lag.",
                max_behind_seconds=bound,
            )
        return replies.as_json(ReadyAnswer(ready=True, max_behind_seconds=bound))

    async def refuse(self, request: Request, error: Exception) -> Response:
        """An error of ours; or the answer of another door, if that one can read the batch."""
        assert isinstance(error, MillpondError)
        if "holder" in error.context and "is_neighbours" not in request.scope:
            answer = await self.neighbours.try_ask(error.context["holder"], request.scope)
            if answer is not None:
                return answer
        return replies.answer_error(request, error)

    # ------------------------------------------------------------ tables

    def shape(self, name: str, table: Table) -> replies.Shape:
        """How to write the rows of a table under this name; made once for each definition."""
        definition: TableDefinition = table.definition
        known = self._shapes.get(name)
        if known is None or known.definition is not definition:
            known = self._shapes[name] = replies.Shape(definition)
        return known

    def _named(self, name: str, reader: Reader) -> Table:
        """The table of a name.  Raises NOT_ALLOWED, and as `Ponds`."""
        check_reader(self.ponds, reader, name)
        try:
            return self.ponds[name]
        except RequestError as error:
            if error.condition != "UNKNOWN_TABLE" or reader is EVERYBODY:
                raise
            raise unknown_table(name, "the tables that this token opens", self._names(reader)) from None

    def _names(self, reader: Reader) -> list[str]:
        return [name for name in self.ponds.tables() if reader is EVERYBODY or reader.may_read(self.ponds.names_of(name))]

    def _listed(self, name: str) -> TableAnswer | UnreadTable:
        # One table that can't be read mustn't hide the others.
        try:
            table = self.ponds[name]
            return table_json(name, table.count(), table.definition)
        except MillpondError as error:
            return unread_json(name, error)

    def _check_still(self, scope: Scope, name: str) -> None:
        """Raise TOKEN_NEEDED or NOT_ALLOWED if the request's reader may no longer read."""
        if scope["reader"] is not EVERYBODY and "is_neighbours" not in scope:
            check_reader(self.ponds, self.access.peek(dict(scope["headers"])), name)


def create_app(door: HttpDoor) -> tuple[ASGIApp, ASGIApp]:
    """The HTTP door as an ASGI application, and what is behind its gate.

    The caller opens the ponds and closes them.
    """
    routes = [Route(r.path, door.endpoint(r), methods=[r.method]) for r in ROUTES]
    handlers: Mapping[Any, Callable[[Request, Exception], Any]] = {
        MillpondError: door.refuse,
        HTTPException: replies.answer_routing,
        Exception: replies.answer_mistake,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return gate(app, door.access, door.meter), app


def check_reader(ponds: Ponds, reader: Reader, name: str) -> None:
    """Raise NOT_ALLOWED if this reader may not read that table, even if it doesn't exist."""
    if reader is not EVERYBODY and not reader.may_read(ponds.names_of(name)):
        raise RequestError(
            "NOT_ALLOWED",
            f"This token doesn't open the table {name!r}.",
            hint="GET /tables lists those that it opens; ask the server's operator for more.",
            table=name,
        )


def _reader(request: Request) -> Reader:
    reader = request.scope["reader"]
    assert isinstance(reader, Reader)
    return reader


def _need_savepoints(request: Request, right: SavepointRight) -> None:
    """Raise NOT_ALLOWED if the request's reader has no such right: savepoints are of whole jobs."""
    reader = _reader(request)
    if reader.savepoints == "create" or (right == "read" and reader.savepoints == "read"):
        return
    raise RequestError(
        "NOT_ALLOWED",
        f"This request may not {right} savepoints, which cover all tables of a job.",
        hint=f"Make a token that may: millpond token FILE NAME --savepoints {right}, for a server with --tokens.",
    )


def _name(request: Request, what: str = "table") -> str:
    return unquote(request.path_params[what], errors="surrogateescape")

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
from millpond.operate.answers import ListSamples
from millpond.schema.definition.table import TableDefinition
from millpond.serve.access.access import Access
from millpond.serve.access.gate import gate
from millpond.serve.access.tokens import EVERYBODY, Reader, SavepointRight, check_may_read, check_sees_metrics
from millpond.serve.answers import replies
from millpond.serve.answers.sql import NoteStatement, SqlCall, answer_sql, note_nothing, opening_here
from millpond.serve.answers.sql_events import Subscription, stream_sql
from millpond.serve.answers.tables import Call, answer_call
from millpond.serve.asked import read_plain, read_question
from millpond.serve.console import files
from millpond.serve.formats import EVENTS, choose_format
from millpond.serve.forwarding import Neighbours
from millpond.serve.metrics.counts import Meter
from millpond.serve.openapi import openapi
from millpond.serve.operations import Operations
from millpond.serve.ponds import Ponds
from millpond.serve.routes import ROUTES, RouteText
from millpond.serve.sql.pool import SqlPool
from millpond.serve.waiting.patience import Patience
from millpond.serve.watched import Watched
from millpond.settings import ServeSettings
from millpond.tables.align import align
from millpond.tables.default_tables import unknown_table
from millpond.tables.table import Table
from millpond.wire.aggregates import AggregatesAnswer, AggregateVersion, version_json
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
from millpond.wire.questions import Align, AskSql, CreateSavepoint, Question, Ready, SubscribeSql
from millpond.wire.shards import ShardsAnswer, TableShard, table_shard


class HttpDoor:
    """Answers requests on ponds.

    note_statement:  see `SqlCall.note`
    """

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
        self.statements = SqlPool(meter.count_statement)
        self.note_statement: NoteStatement = note_nothing
        self.watched = Watched(ponds, settings.alerts)
        self._shapes: dict[str, replies.Shape] = {}
        self.is_ending = False

    def use(self, settings: ServeSettings) -> None:
        """Answer by these settings from here on."""
        self.settings = settings
        self.patience.use(settings)
        self.operations.use(settings)
        self.watched.use(settings.alerts)

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
            request.scope, name, lambda: self.named(name, _reader(request)), asked.question.patience_seconds
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

    async def index(self, request: Request, _question: msgspec.Struct) -> Response:
        if self.settings.console and files.is_page(request.url.path, dict(request.scope["headers"])):
            return replies.static(request, files.PAGE)
        routes = [RouteJson(method=r.method, path=r.path, summary=r.summary) for r in ROUTES]
        return replies.as_json(IndexAnswer(millpond="state you can query, for Spark streams", routes=routes))

    async def console_file(self, request: Request, _question: msgspec.Struct) -> Response:
        name = _name(request, "file")
        if not self.settings.console or name not in files.FILES:
            raise RequestError("UNKNOWN_ROUTE", f"There is nothing at {request.url.path}.", hint="GET / lists the routes.")
        return replies.static(request, files.FILES[name])

    async def openapi(self, _request: Request, _question: msgspec.Struct) -> Response:
        return replies.as_json(openapi(self.settings, version("millpond")))

    async def tables(self, request: Request, _question: msgspec.Struct) -> Response:
        names = self.names(_reader(request))
        return await run_in_threadpool(lambda: replies.as_json(TablesAnswer(tables=[members(self._listed(n)) for n in names])))

    async def table(self, request: Request, _question: msgspec.Struct) -> Response:
        name = _name(request)
        table = self.named(name, _reader(request))
        return await run_in_threadpool(lambda: replies.as_json(self._described(name, table)))

    async def shards(self, request: Request, _question: msgspec.Struct) -> Response:
        names = self.names(_reader(request))
        return await run_in_threadpool(lambda: replies.as_json(ShardsAnswer(tables=[members(self._shard_of(n)) for n in names])))

    async def aggregates(self, request: Request, _question: msgspec.Struct) -> Response:
        reader = _reader(request)

        def read() -> Response:
            found, unread = list[AggregateVersion](), list[UnreadTable]()
            for pond, name in self.ponds.aggregates():
                # One name that can't be read mustn't hide the others.
                try:
                    found += self._versions(pond, name, reader)
                except MillpondError as error:
                    full = self.ponds.prefix(pond) + name
                    unread += [unread_json(full, error)] if self._may_read(reader, full) else []
            return replies.as_json(AggregatesAnswer(versions=found, unread=unread))

        return await run_in_threadpool(read)

    async def aggregate(self, request: Request, _question: msgspec.Struct) -> Response:
        name, reader = _name(request, "aggregate"), _reader(request)
        check_reader(self.ponds, reader, name)

        def read() -> Response:
            found = self._versions(*self.ponds.find_aggregate(name), reader)
            return replies.as_json(AggregatesAnswer(versions=found, unread=[]))

        return await run_in_threadpool(read)

    async def at(self, request: Request, question: Align) -> Response:
        tables = {name: self.named(name, _reader(request)) for name in question.tables}
        return await run_in_threadpool(lambda: replies.as_json(aligned_json(align(tables, question.offsets))))

    async def sql(self, request: Request, question: AskSql) -> Response:
        return await answer_sql(self._sql_call(request, question))

    async def sql_changes(self, request: Request, question: SubscribeSql) -> Response:
        choose_format(",".join(request.headers.getlist("accept")), (EVENTS,))
        asked = AskSql(statement=question.statement, parameters=question.parameters)
        return await stream_sql(
            Subscription(
                call=self._sql_call(request, asked),
                question=question,
                room=self.patience.subscribed,
                watch_of=lambda name: self.patience.watch(self.named(name, _reader(request))),
                check=lambda name: self._check_still(request.scope, name),
                is_ending=lambda: self.is_ending,
            )
        )

    def _sql_call(self, request: Request, question: AskSql) -> SqlCall:
        """Raises NOT_ALLOWED if the server answers no SQL."""
        if not self.settings.sql:
            raise RequestError("NOT_ALLOWED", "This server answers no SQL.", hint="Start it without --no-sql.")
        reader = _reader(request)
        return SqlCall(
            request=request,
            question=question,
            opening_of=opening_here(lambda name: self.named(name, reader), self.settings),
            patience=self.patience,
            settings=self.settings,
            pool=self.statements,
            note=self.note_statement,
        )

    async def jobs(self, request: Request, _question: msgspec.Struct) -> Response:
        reader = _reader(request)
        return await self._watched(request, lambda: self.watched.jobs(lambda name: self._may_read(reader, name)))

    async def samples(self, request: Request, question: ListSamples) -> Response:
        return await self._watched(request, lambda: self.watched.samples(self._job(request), question))

    async def partitions(self, request: Request, _question: msgspec.Struct) -> Response:
        return await self._looked(request, self._job, self.watched.partitions)

    async def hot_keys(self, request: Request, _question: msgspec.Struct) -> Response:
        return await self._watched(request, lambda: self.watched.hot_keys(self._whole_job(request)))

    async def advice(self, request: Request, _question: msgspec.Struct) -> Response:
        return await self._looked(request, self._whole_job, self.watched.advice)

    def _job(self, request: Request) -> str:
        """The one name of the request's job, which rights and reads go by.  Raises INVALID_REQUEST."""
        return self.ponds.job_name(_name(request, "job"))

    def _whole_job(self, request: Request) -> str:
        """The same, if what names keys of any of its tables may be shown.

        Raises NOT_ALLOWED if one of them isn't open; as `Ponds.tables_of`, if they aren't all known.
        """
        job, reader = self._job(request), _reader(request)
        if reader.opens_all:
            return job
        tables = self.ponds.tables_of(job)
        for table in tables:
            check_reader(self.ponds, reader, table)
        if not tables:
            raise RequestError(
                "NOT_ALLOWED",
                f"No table of the job {job[:80]!r} is known, so only a token for all tables opens it.",
                hint="GET /jobs lists the jobs; a token for all tables: millpond token FILE NAME --tables '*' --metrics",
                job=job,
            )
        return job

    async def alerts(self, request: Request, _question: msgspec.Struct) -> Response:
        return await self._watched(request, self.watched.alerts)

    async def _watched(self, request: Request, read: Callable[[], msgspec.Struct]) -> Response:
        """What is measured of jobs.  It reads files, so it waits for its turn.  Raises NOT_ALLOWED; as `read`."""
        check_sees_metrics(_reader(request), request.url.path)
        asker = request.scope["asker"]
        return await self.patience.read(asker, lambda: replies.as_json(read()), is_large=True)

    async def _looked(self, request: Request, named: Callable[[Request], str], look: Callable[[str], msgspec.Struct]) -> Response:
        """What is looked at of a job and kept for a while: who asks the same waits without a turn.

        Raises NOT_ALLOWED; as `named` and `look`.
        """
        check_sees_metrics(_reader(request), request.url.path)
        job = await run_in_threadpool(named, request)
        return await self.patience.look(request.scope["asker"], (look.__name__, job), lambda: replies.as_json(look(job)))

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

        check_sees_metrics(_reader(request), request.url.path)
        statistics = await run_in_threadpool(self.ponds.statistics)
        self.meter.note_followers(statistics)
        samples = await run_in_threadpool(self.ponds.samples)
        counts = await run_in_threadpool(self.meter.total)
        measured = await run_in_threadpool(self.ponds.with_reads, statistics, dict(counts.reads))
        text = await run_in_threadpool(lambda: write_metrics(measured, counts, samples))
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

    def named(self, name: str, reader: Reader) -> Table:
        """The table of a name.  Raises NOT_ALLOWED, and as `Ponds`."""
        check_reader(self.ponds, reader, name)
        try:
            return self.ponds[name]
        except RequestError as error:
            if error.condition != "UNKNOWN_TABLE" or reader is EVERYBODY:
                raise
            raise unknown_table(name, "the tables that this token opens", self.names(reader)) from None

    def names(self, reader: Reader) -> list[str]:
        """The tables that a reader may read."""
        return [name for name in self.ponds.tables() if self._may_read(reader, name)]

    def _described(self, name: str, table: Table) -> TableAnswer:
        return table_json(name, table.count(bounds=table.here), table.definition, self.ponds.meant_by(name), table.shard)

    def _listed(self, name: str) -> TableAnswer | UnreadTable:
        # One table that can't be read mustn't hide the others.
        try:
            return self._described(name, self.ponds[name])
        except MillpondError as error:
            return unread_json(name, error)

    def _shard_of(self, name: str) -> TableShard | UnreadTable:
        try:
            return table_shard(name, self.ponds[name].state())
        except MillpondError as error:
            return unread_json(name, error)

    def _versions(self, pond: str, name: str, reader: Reader) -> list[AggregateVersion]:
        """The versions of a pond's name whose tables this reader may read.

        A reader may read a version by the name, or by the version's own table.  Raises as `Ponds`.
        """
        prefix = self.ponds.prefix(pond)
        found = [version_json(version, prefix) for version in self.ponds.versions(pond, name)]
        by_name = self._may_read(reader, prefix + name)
        return [each for each in found if (each.is_current and by_name) or self._may_read(reader, each.table)]

    def _may_read(self, reader: Reader, name: str) -> bool:
        return reader is EVERYBODY or reader.may_read(self.ponds.names_of(name))

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
    if reader is not EVERYBODY:
        check_may_read(reader, name, ponds.names_of(name))


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

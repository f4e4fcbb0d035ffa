"""The HTTP door: routes, and what each answers.

Lookups run on the event loop (microseconds, no I/O but memory); whatever may take long runs in a thread.  A path is decoded
segment by segment from its raw bytes, so that a name may hold a slash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millpond.errors import MillpondError, ReplicaError, RequestError, http_status
from millpond.serve.keys import parse_object, parse_pairs
from millpond.serve.query import parse_limit, parse_query, split_controls
from millpond.serve.shapes import WriteRow, answer_json, describe_table, error_json, row_writer
from millpond.settings import ServeSettings
from millpond.tables.pond import Pond
from millpond.tables.table import Table
from millpond.tables.values import Json, decode_json, encode_json

log = logging.getLogger(__name__)
# Lookups up to this many keys are answered on the event loop: about a millisecond.
_SHORT = 64
_HEADERS = {"cache-control": "no-store"}


class RouteText(NamedTuple):
    """A route as `GET /` and the manual show it; `endpoint` is the method of HttpDoor."""

    method: str
    path: str
    summary: str
    endpoint: str


ROUTES = (
    RouteText("GET", "/", "these routes", "index"),
    RouteText("GET", "/tables", "all tables", "tables"),
    RouteText("GET", "/tables/{table}", "what a table means: columns, types, key, warnings", "table"),
    RouteText("GET", "/tables/{table}/rows", "rows by column=value; ?_limit=n", "rows"),
    RouteText("POST", "/tables/{table}/rows:get", 'rows by {"keys": [{column: value}]}', "rows_get"),
    RouteText("GET", "/livez", "whether the process runs", "livez"),
    RouteText("GET", "/readyz", "whether answers are fresh enough; ?_max_behind_seconds=s", "readyz"),
)


class HttpDoor:
    """Answers requests on one pond.  Each method is the endpoint of one route."""

    def __init__(self, pond: Pond, settings: ServeSettings) -> None:
        self._pond = pond
        self._settings = settings
        self._writers: dict[str, tuple[object, WriteRow]] = {}

    async def index(self, request: Request) -> Response:
        _refuse_parameters(request)
        routes = [{"method": r.method, "path": r.path, "summary": r.summary} for r in ROUTES]
        return _json({"millpond": "state you can query, for Spark streams", "routes": routes})

    async def tables(self, request: Request) -> Response:
        _refuse_parameters(request)
        return await run_in_threadpool(lambda: _json({"tables": [self._listed(name) for name in self._pond.tables()]}))

    async def table(self, request: Request) -> Response:
        _refuse_parameters(request)
        return await run_in_threadpool(lambda: _json(describe_table(self._table(request))))

    async def rows(self, request: Request) -> Response:
        columns, controls = split_controls(parse_query(request.scope["query_string"]), ("_limit",))
        limit = parse_limit(controls.get("_limit"), default=self._settings.limit_rows, maximum=self._settings.max_rows)
        table = self._table(request)
        key = parse_pairs(table.definition, columns)
        if len(key) == len(table.definition.key) and all(c.name in key for c in table.definition.key):
            return self._lookup(table, [key], missing_as_null=False)
        return await run_in_threadpool(self._scan, table, key, limit)

    async def rows_get(self, request: Request) -> Response:
        _refuse_parameters(request)
        body = _parse_body(await _read_body(request, self._settings.max_body_bytes))
        if len(body) > self._settings.max_keys:
            raise RequestError(
                "INVALID_LIMIT",
                f"A request may ask for {self._settings.max_keys} keys, not {len(body)}.",
                hint=f"Send {self._settings.max_keys} keys at a time.",
                maximum=self._settings.max_keys,
            )
        table = self._table(request)
        answer = partial(self._lookup_objects, table, body)
        return answer() if len(body) <= _SHORT else await run_in_threadpool(answer)

    async def livez(self, request: Request) -> Response:
        _refuse_parameters(request)
        return _json({"live": True})

    async def readyz(self, request: Request) -> Response:
        columns, controls = split_controls(parse_query(request.scope["query_string"]), ("_max_behind_seconds",))
        _refuse_columns(columns)
        bound = _parse_seconds(controls.get("_max_behind_seconds"), default=self._settings.ready_behind_seconds)
        ready, reason = await run_in_threadpool(self._pond.ready, bound)
        if not ready:
            raise ReplicaError(
                "REPLICA_BEHIND",
                f"Not ready: {reason}.",
                hint="Wait, or ask with a larger _max_behind_seconds; GET /tables shows each table's batch and lag.",
                max_behind_seconds=bound,
            )
        return _json({"ready": True, "max_behind_seconds": bound})

    def _table(self, request: Request) -> Table:
        return self._pond[unquote(request.path_params["table"], errors="surrogateescape")]

    def _listed(self, name: str) -> dict[str, Json]:
        # One table that can't be read mustn't hide the others.
        try:
            return describe_table(self._pond[name])
        except MillpondError as error:
            return {"table": name, **error_json(error)}

    def _lookup_objects(self, table: Table, objects: list[Json]) -> Response:
        keys = [parse_object(table.definition, o) for o in objects]
        return self._lookup(table, keys, missing_as_null=True)

    def _lookup(self, table: Table, keys: list[dict[str, Any]], *, missing_as_null: bool) -> Response:
        rows = table.get_all(keys)
        shown = rows if missing_as_null else [row for row in rows if row]
        return _json(answer_json(table.name, rows.cut, shown, self._writer(table), more=False))

    def _scan(self, table: Table, key: dict[str, Any], limit: int) -> Response:
        rows = table.scan(key, limit=limit)
        return _json(answer_json(table.name, rows.cut, rows, self._writer(table), more=rows.more))

    def _writer(self, table: Table) -> WriteRow:
        known = self._writers.get(table.name)
        if known is None or known[0] is not table.definition:
            known = self._writers[table.name] = (table.definition, row_writer(table.definition))
        return known[1]


def create_app(pond: Pond, *, settings: ServeSettings | None = None) -> ASGIApp:
    """The HTTP door to a pond, as an ASGI application.  The caller opens the pond and closes it."""
    door = HttpDoor(pond, settings or ServeSettings())
    routes = [Route(r.path, getattr(door, r.endpoint), methods=[r.method]) for r in ROUTES]
    handlers: Mapping[Any, Callable[[Request, Exception], Response]] = {
        MillpondError: _answer_error,
        HTTPException: _answer_routing,
        Exception: _answer_mistake,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return _by_raw_path(app)


def _by_raw_path(app: ASGIApp) -> ASGIApp:
    """Route by the raw path with each segment in one canonical encoding, which the endpoints decode."""

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw is not None and b"%" in raw:
            segments = [quote(unquote_to_bytes(part), safe=":@!$&'()*+,;=~") for part in raw.split(b"/")]
            scope = {**scope, "path": "/".join(segments)}
        await app(scope, receive, send)

    return route


# ---------------------------------------------------------------- requests


async def _read_body(request: Request, maximum: int) -> bytes:
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
    return bytes(body)


def _parse_body(body: bytes) -> list[Json]:
    try:
        data = decode_json(body)
    except ValueError as wrong:
        raise RequestError("INVALID_REQUEST", f"The body is no JSON: {wrong}.", hint=_BODY_HINT) from None
    keys = data.get("keys") if isinstance(data, dict) and len(data) == 1 else None
    if not isinstance(keys, list):
        raise RequestError("INVALID_REQUEST", 'The body must be an object with one member, the list "keys".', hint=_BODY_HINT)
    return keys


_BODY_HINT = 'Send {"keys": [{"column": "value"}]} as UTF-8.'


def _refuse_parameters(request: Request) -> None:
    if request.scope["query_string"]:
        columns, _ = split_controls(parse_query(request.scope["query_string"]), ())
        _refuse_columns(columns)


def _refuse_columns(columns: list[tuple[str, str]]) -> None:
    if columns:
        raise RequestError(
            "INVALID_REQUEST",
            f"This route takes no columns, but {columns[0][0]!r} is given.",
            hint="Ask for rows at /tables/{table}/rows.",
            parameter=columns[0][0],
        )


def _parse_seconds(text: str | None, *, default: float) -> float:
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise RequestError("INVALID_REQUEST", f"{text[:40]!r} is no number of seconds.", hint="Write it like 2.5.")
    return seconds


# ---------------------------------------------------------------- responses


def _json(data: Json, *, status: int = 200, headers: Mapping[str, str] = _HEADERS) -> Response:
    return Response(encode_json(data), status_code=status, media_type="application/json", headers=headers)


def _answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, MillpondError)
    return _json(error_json(error), status=http_status(error))


def _answer_routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        wrong = RequestError(
            "METHOD_NOT_ALLOWED",
            f"{path} doesn't take {request.method}.",
            hint=f"Use {allowed or 'another method'}; GET / lists the routes.",
        )
        return _json(error_json(wrong), status=405, headers={**_HEADERS, **(error.headers or {})})
    return _answer_error(request, RequestError("UNKNOWN_ROUTE", f"There is nothing at {path}.", hint="GET / lists the routes."))


def _answer_mistake(_request: Request, error: Exception) -> Response:
    # Starlette raises it again once this is sent, so the server logs the traceback; the caller gets none of it.
    mistake = MillpondError(
        "INTERNAL_ERROR",
        f"Millpond made a mistake ({type(error).__name__}); the request may be all right.",
        hint="Report it with the server's log.",
    )
    return _json(error_json(mistake), status=500)

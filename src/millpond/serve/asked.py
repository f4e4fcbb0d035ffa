"""A request as a route's question, parsed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request

from millpond.errors import RequestError
from millpond.schema.values import Json, decode_json
from millpond.serve.routes import Nothing, RouteText
from millpond.settings import ServeSettings
from millpond.tables.job.bounds import Bounds
from millpond.wire.parse import Asked, parse_json, parse_url, parse_when
from millpond.wire.query import parse_query
from millpond.wire.questions import AskSql, ListChanges, Question, SubscribeSql

BOUNDS = tuple(each.name for each in msgspec.structs.fields(Bounds))


async def read_question(request: Request, route: RouteText, settings: ServeSettings) -> Asked[Question]:
    """A request's question about one table.

    Raises:  REQUEST_TOO_LARGE, INVALID_REQUEST, INVALID_LIMIT, INVALID_BOUND.
    """
    question, columns = await _read(request, route, settings)
    assert isinstance(question, Question)
    if isinstance(question, ListChanges) and question.since in (None, "") and not route.has_body:
        # A stream of events that broke off continues from here.
        question = msgspec.structs.replace(question, since=parse_when(request.headers.get("last-event-id") or None))
    return Asked(question, columns)


async def read_plain(request: Request, route: RouteText, settings: ServeSettings) -> msgspec.Struct:
    """A request's question that isn't about one table.  Raises as `read_question`."""
    question, _ = await _read(request, route, settings)
    if isinstance(question, SubscribeSql) and question.since is None:
        question = msgspec.structs.replace(question, since=request.headers.get("last-event-id"))
    return question


def bounds_of_texts(text_of: Callable[[str], str | None], settings: ServeSettings) -> Bounds | None:
    """Bounds of which each is a text, for doors without URLs.  Raises INVALID_REQUEST, INVALID_BOUND.

    text_of:  the text of a bound by its name; None or empty if it isn't given
    """
    texts = {name: text_of(name) for name in BOUNDS}
    given = {name: _decoded(name, text) for name, text in texts.items() if text}
    return parse_json(AskSql, {"statement": "SELECT", "bounds": given}, settings).bounds if given else None


def _decoded(name: str, text: str) -> Any:
    """A bound as JSON has it: a number, an object, or the text."""
    if name.startswith("contains_"):
        return text
    try:
        return decode_json(text)
    except ValueError:
        return text


async def _read(request: Request, route: RouteText, settings: ServeSettings) -> tuple[msgspec.Struct, list[tuple[str, str]]]:
    kind = Nothing if route.has_body else route.question
    question: msgspec.Struct
    question, columns = parse_url(kind, parse_query(request.scope["query_string"]), settings, only=route.only)
    if columns and not route.takes_columns:
        raise RequestError(
            "INVALID_REQUEST",
            f"This route takes no columns, but {columns[0][0]!r} is given.",
            hint="Ask for rows at /tables/{table}/rows.",
            parameter=columns[0][0],
        )
    if route.has_body:
        question = parse_json(route.question, await _read_body(request, settings.max_body_bytes), settings)
    return question, columns


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
        raise RequestError("INVALID_REQUEST", f"The body isn't JSON: {wrong}.", hint="Send a JSON object as UTF-8.") from None

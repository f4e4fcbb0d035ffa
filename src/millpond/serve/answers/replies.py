"""HTTP responses: forms, ETags, packing, and the one shape of errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from millpond.errors import MillpondError, RequestError, http_status
from millpond.logs import EventLog
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import Json, encode_json
from millpond.serve.console import files
from millpond.serve.console.files import StaticFile
from millpond.serve.formats import JSON, PIECE_BYTES, Format, bounded, packed, takes_gzip, write_pages
from millpond.serve.routes import ROUTE_OF, ROUTES
from millpond.settings import ServeSettings
from millpond.tables.answer import Cut, Rows
from millpond.wire.answers import answer_json, cut_json, error_json, members
from millpond.wire.rows import row_writer

log = EventLog(__name__)
# Clients encode and decode values by a table's definition; when this header changes, they get the
# definition again.
DEFINITION = "millpond-definition"
CUT = "millpond-cut"
_NOT_KEPT = {"cache-control": "no-store"}
# A client may keep an answer, but must ask each time whether it has changed.
CACHE_CONTROL = "private, no-cache"
VARY = "accept, accept-encoding, authorization"
_RETRY_SECONDS = 1


class Shape:
    """How to write the rows of one definition.

    digest:  tells this definition from others
    """

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.write = row_writer(definition)
        self.digest = definition.fingerprint()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The form in which a client wants an answer."""

    form: Format
    if_none_match: str
    accept_encoding: str
    settings: ServeSettings


def etag(cut: Cut, shape: Shape, form: Format) -> str:
    """An ETag that is the same as long as the rows are: of the batch, the replica's build and the form.

    It is weak, since the lag in an answer changes.  Between two batches rows with a TTL may expire,
    and buckets may be hidden.
    """
    judged = "" if cut.judged_ms is None else f".{cut.judged_ms}"
    judged += f".{cut.hidden}" if cut.hidden else ""
    return f'W/"{cut.position.batch}.{cut.generation}.{shape.digest}.{form.name}{judged}"'


def reply(ask: Ask, name: str, shape: Shape, rows: Rows, *, gaps: bool = False) -> Response:
    """An answer of rows, in the requested form; 304 if the client has it.

    gaps:    whether a missing row is shown as null
    Raises:  ANSWER_TOO_LARGE, and as `formats.write_pages`.
    """
    if (known := try_known(ask, shape, rows.cut, more=rows.more)) is not None:
        return known
    if ask.form is not JSON:
        present = rows if gaps else Rows([row for row in rows if row], rows.cut)
        return stream(ask, shape, rows.cut, write_pages(ask.form, shape.definition, [present]), more=rows.more)
    return written(ask, _headers(ask, shape, rows.cut), encode_json(answer_json(name, rows, shape.write, gaps=gaps)))


def written(ask: Ask, headers: dict[str, str], body: bytes) -> Response:
    """An answer in JSON, packed if it is long and the client takes that.  Raises ANSWER_TOO_LARGE."""
    if len(body) > ask.settings.max_answer_bytes:
        raise too_large(ask.settings)
    if len(body) >= ask.settings.gzip_bytes and takes_gzip(ask.accept_encoding):
        body, headers["content-encoding"] = b"".join(packed([body])), "gzip"
    return Response(body, headers=headers)


def stream(ask: Ask, shape: Shape, cut: Cut, pieces: Iterator[bytes], *, more: bool) -> Response:
    """An answer in pieces.  Raises the errors of its first pieces."""
    settings, headers = ask.settings, _headers(ask, shape, cut) | {CUT: _cut_header(cut, more)}
    pieces = bounded(pieces, settings.max_answer_bytes, lambda: too_large(settings))
    # Most errors happen here, before the response has begun.
    begun = list(_until(pieces, PIECE_BYTES))
    pieces = chain(begun, pieces)
    if sum(map(len, begun)) >= settings.gzip_bytes and takes_gzip(ask.accept_encoding):
        headers["content-encoding"] = "gzip"
        pieces = packed(pieces)
    return ChunkedResponse(pieces, headers=headers)


def try_known(ask: Ask, shape: Shape, cut: Cut, *, more: bool) -> Response | None:
    """304 if the client has this answer, else None."""
    if etag(cut, shape, ask.form) not in ask.if_none_match:
        return None
    headers = _headers(ask, shape, cut) | {CUT: _cut_header(cut, more)}
    del headers["content-type"]
    return Response(status_code=304, headers=headers)


def _headers(ask: Ask, shape: Shape, cut: Cut) -> dict[str, str]:
    return {"etag": etag(cut, shape, ask.form), **plain_headers(ask, shape)}


def plain_headers(ask: Ask, shape: Shape) -> dict[str, str]:
    """The headers of an answer without an ETag."""
    return {
        "cache-control": CACHE_CONTROL,
        "vary": VARY,
        DEFINITION: shape.digest,
        "content-type": ask.form.content_type,
    }


class ChunkedResponse(StreamingResponse):
    """An answer in pieces; after an error of ours, the last piece isn't sent."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except MillpondError as error:
            log.warning("answer.broken_off", condition=error.condition, message=error.message)


def _until(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        size -= len(piece)
        if size <= 0:
            return


def cuts_header(cuts: Iterable[Cut]) -> str:
    """The job and batch of each cut, as JSON in ASCII."""
    return json.dumps([{"job": cut.job, "batch": cut.position.batch} for cut in cuts])


def _cut_header(cut: Cut, more: bool) -> str:
    """The cut as JSON in ASCII, without the offsets, which may be too long for a header."""
    header = members(cut_json("", cut))
    del header["table"], header["position"]["offsets"]
    return json.dumps({**header, "more": more}, separators=(",", ":"))


def too_large(settings: ServeSettings, hint: str = "Ask for fewer rows with _limit or more key columns.") -> RequestError:
    """The error of an answer that has more bytes than the settings allow."""
    return RequestError(
        "ANSWER_TOO_LARGE",
        f"The answer is larger than {settings.max_answer_bytes} bytes.",
        hint=hint,
        maximum_bytes=settings.max_answer_bytes,
    )


def as_json(data: Json, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer that clients don't cache."""
    return Response(encode_json(data), status_code=status, media_type="application/json", headers={**_NOT_KEPT, **(headers or {})})


def static(request: Request, file: StaticFile) -> Response:
    """A file of the console; 304 if the client has it."""
    headers = {**files.HEADERS, "etag": file.etag, "content-type": file.form.content_type}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = file.content
    if file.packed is not None and takes_gzip(request.headers.get("accept-encoding", "")):
        body, headers["content-encoding"] = file.packed, "gzip"
    return Response(body, headers=headers)


def answer_error(_request: Request | None, error: Exception) -> Response:
    """An error of ours, with HTTP's headers for it."""
    assert isinstance(error, MillpondError)
    status, headers = http_status(error), {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    elif status in (429, 503):
        wait = error.context.get("retry_after_seconds", _RETRY_SECONDS)
        headers["retry-after"] = str(max(1, -int(-wait // 1)) if isinstance(wait, (int, float)) else _RETRY_SECONDS)
    return as_json(error_json(error), status=status, headers=headers)


def answer_routing(request: Request, error: Exception) -> Response:
    """The error of an unknown path or method."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 405:
        # Starlette names the methods of the first route at this path; there may be another.
        here = ROUTE_OF[request.scope["endpoint"].__name__].path
        allowed = ", ".join(m for r in ROUTES if r.path == here for m in ((r.method, "HEAD") if r.method == "GET" else (r.method,)))
        wrong = RequestError(
            "METHOD_NOT_ALLOWED",
            f"{path} doesn't take {request.method}.",
            hint=f"Use {allowed}; GET / lists the routes.",
        )
        return as_json(error_json(wrong), status=405, headers={"allow": allowed})
    return answer_error(request, RequestError("UNKNOWN_ROUTE", f"There is nothing at {path}.", hint="GET / lists the routes."))


def answer_mistake(_request: Request, error: Exception) -> Response:
    """The error of a bug in Millpond."""
    # Starlette raises it again after this response, so the server logs the traceback, which the
    # caller doesn't get.
    mistake = MillpondError(
        "INTERNAL_ERROR",
        f"This is a bug in Millpond ({type(error).__name__}); the request may be correct.",
        hint="Report it with the server's log.",
    )
    return as_json(error_json(mistake), status=500)

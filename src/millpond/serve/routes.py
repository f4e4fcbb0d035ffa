"""The routes of the HTTP door: one list, from which dispatch, `GET /` and the OpenAPI document come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.serve.formats import EVENTS, JSON, ROW_FORMATS, Format
from millpond.settings import ServeSettings

_DEFAULT = ServeSettings()


@dataclass(frozen=True, slots=True)
class Control:
    """A parameter that isn't a column; its name begins with an underscore.

    schema:  of its value, as OpenAPI has it
    """

    name: str
    text: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteText:
    """A route as dispatch, `GET /`, OpenAPI and the manual have it.

    endpoint:  the method of HttpDoor, and the route's name in metrics
    answer:    the schema of its JSON in the OpenAPI document; empty where it is no JSON
    controls:  parameters that it takes beside columns
    columns:   whether it takes key columns as parameters
    formats:   the forms it can answer in; empty where there is one
    open:      whether it answers without a token, as orchestrators ask
    body:      the schema of the body it takes; empty where it takes none
    """

    method: str
    path: str
    summary: str
    endpoint: str
    answer: str = ""
    media_type: str = "application/json"
    controls: tuple[Control, ...] = ()
    columns: bool = False
    formats: tuple[Format, ...] = ()
    open: bool = False
    body: str = ""

    @property
    def control_names(self) -> tuple[str, ...]:
        """The names of its controls."""
        return tuple(c.name for c in self.controls)


_LIMIT = Control("_limit", "at most so many rows", {"type": "integer", "minimum": 1, "maximum": _DEFAULT.max_rows})
_READY = Control("_max_behind_seconds", "how far behind a job may be", {"type": "number", "minimum": 0})
_SECONDS = {"type": "number", "minimum": 0}
_BOUNDS = (
    Control("_min_batch", "at least this batch", {"type": "integer"}),
    Control("_min_offsets", "at least these ends of sources, as JSON", {"type": "string", "contentMediaType": "application/json"}),
    Control("_contains_offset", "records that were read, topic:partition:offset, separated by commas", {"type": "string"}),
    Control("_contains_file", "a file that was read", {"type": "string"}),
    Control("_max_behind_seconds", "no commit waits for longer to be applied", _SECONDS),
    Control("_max_age_seconds", "the newest commit is no older", _SECONDS),
    Control("_wait_seconds", "wait so long for all of these", {**_SECONDS, "maximum": _DEFAULT.max_seconds}),
)
_AS_OF = (
    Control("_batch", "as of this batch, where history is kept", {"type": "integer"}),
    Control("_time", "as of the newest batch that was committed by then", {"type": "string"}),
    Control("_cut", "as of the batch of a cut", {"type": "string"}),
    Control("_closed", "1: with rows that expired, 0: without", {"type": "string", "enum": ["0", "1", "true", "false"]}),
)
_CHANGES = (
    Control("_since", "the token of an earlier answer, or a batch: all changes after it; begin now without it", {"type": "string"}),
    Control("_wait_seconds", "where there are none yet, wait so long", {**_SECONDS, "maximum": _DEFAULT.max_seconds}),
)
_VERSIONS = (
    Control("_start", "begin here: the next key columns, as a JSON object", {"type": "string"}),
    Control("_end", "end before this", {"type": "string"}),
    Control("_since", "versions that held at this batch or time, or later", {"type": "string"}),
    Control("_until", "versions that held then or before", {"type": "string"}),
)
_EVENT = (
    Control("_offset", "the event's own, topic:partition:offset", {"type": "string"}),
    Control("_file", "the file it was in", {"type": "string"}),
    Control("_line", "its line there, of a log that is read by lines", {"type": "integer", "minimum": 1}),
    Control("_event_time", "its own time, where the key isn't given", {"type": "string"}),
)
_RANGE = (
    Control("_reverse", "1: against the order of the key", {"type": "string", "enum": ["0", "1", "true", "false"]}),
    Control("_start", "begin here: the next key columns, as a JSON object", {"type": "string"}),
    Control("_end", "end before this", {"type": "string"}),
    Control("_since", "windows that begin then or later", {"type": "string"}),
    Control("_until", "windows that begin before", {"type": "string"}),
    Control("_token", "the page behind the answer that had this token", {"type": "string"}),
)

ROUTES = (
    RouteText(method="GET", path="/", summary="these routes", endpoint="index", answer="Index"),
    RouteText(
        method="GET", path="/openapi.json", summary="the same for programs, as OpenAPI 3.1", endpoint="openapi", answer="OpenApi"
    ),
    RouteText(method="GET", path="/tables", summary="all tables", endpoint="tables", answer="Tables"),
    RouteText(
        method="GET",
        path="/tables/{table}",
        summary="what a table means: columns, types, key, warnings",
        endpoint="table",
        answer="Table",
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/definition",
        summary="its definition, with which clients read and write values",
        endpoint="definition",
        answer="Definition",
        controls=(
            Control(
                "_wait_seconds", "wait so long for the table and its first batch", {**_SECONDS, "maximum": _DEFAULT.max_seconds}
            ),
        ),
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/rows",
        summary="rows by column=value, ranges, windows, pages",
        endpoint="rows",
        answer="Answer",
        controls=(_LIMIT, *_RANGE, *_AS_OF, *_BOUNDS),
        columns=True,
        formats=ROW_FORMATS,
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/rows:get",
        summary='rows by {"keys": [{column: value}]}',
        endpoint="rows_get",
        answer="AnswerWithGaps",
        formats=ROW_FORMATS,
        body="Keys",
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/rows:scan",
        summary="as GET …/rows, asked in JSON",
        endpoint="rows_scan",
        answer="Answer",
        formats=ROW_FORMATS,
        body="Scan",
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/count",
        summary="how many rows, of all or of those with column=value",
        endpoint="count",
        answer="Count",
        controls=(*_AS_OF, *_BOUNDS),
        columns=True,
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/rows:count",
        summary="the same, asked in JSON",
        endpoint="rows_count",
        answer="Count",
        body="CountOf",
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/changes",
        summary="what happened to rows, in order; as a stream of server-sent events, too",
        endpoint="changes",
        answer="Changes",
        controls=(_LIMIT, *_CHANGES, *_AS_OF),
        formats=(JSON, EVENTS),
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/changes",
        summary="the same, asked in JSON",
        endpoint="changes_post",
        answer="Changes",
        body="ChangesOf",
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/versions",
        summary="every version of a row, or of a range of keys, between two batches or times",
        endpoint="versions",
        answer="Versions",
        controls=(_LIMIT, *_VERSIONS, *_AS_OF, *_BOUNDS),
        columns=True,
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/versions",
        summary="the same, asked in JSON",
        endpoint="versions_post",
        answer="Versions",
        body="VersionsOf",
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/event",
        summary="is this event in: which batch read it, is it applied, was it late",
        endpoint="event",
        answer="Event",
        controls=(*_EVENT, *_AS_OF, *_BOUNDS),
        columns=True,
    ),
    RouteText(
        method="POST",
        path="/tables/{table}/event",
        summary="the same, asked in JSON",
        endpoint="event_post",
        answer="Event",
        body="EventOf",
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/cut",
        summary="keep the newest batch readable for a while: several reads of it, of all tables of the job",
        endpoint="cut",
        answer="Cut",
        controls=_BOUNDS,
    ),
    RouteText(
        method="POST",
        path="/at",
        summary="at which batches tables of several jobs have read the same input",
        endpoint="at",
        answer="Aligned",
        body="At",
    ),
    RouteText(
        method="GET",
        path="/metrics",
        summary="counts and lags for Prometheus",
        endpoint="metrics",
        media_type="text/plain",
    ),
    RouteText(method="GET", path="/livez", summary="whether the process runs", endpoint="livez", answer="Live", open=True),
    RouteText(
        method="GET",
        path="/readyz",
        summary="whether answers are fresh enough; ?_max_behind_seconds=s",
        endpoint="readyz",
        answer="Ready",
        controls=(_READY,),
        open=True,
    ),
)
ROUTE_OF = {route.endpoint: route for route in ROUTES}

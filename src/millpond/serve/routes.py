"""The routes of the HTTP door: one list, from which dispatch, `GET /` and the OpenAPI document come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.serve.formats import ROW_FORMATS, Format
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
    ),
    RouteText(
        method="GET",
        path="/tables/{table}/rows",
        summary="rows by column=value; ?_limit=n",
        endpoint="rows",
        answer="Answer",
        controls=(_LIMIT,),
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

"""The OpenAPI 3.1 document: paths from the list of routes, schemas of what `wire.answers` writes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from millpond.serve.routes import ROUTES, RouteText
from millpond.settings import ServeSettings

Json = dict[str, Any]


def _object(members: Json, *, more: bool = False) -> Json:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": more}


def _some(members: Json, *required: str) -> Json:
    return {"type": "object", "properties": members, "required": list(required), "additionalProperties": False}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


_TEXT: Json = {"type": "string"}
_WHOLE: Json = {"type": "integer"}
_SECONDS: Json = {"type": "number"}
_NOT_NEGATIVE: Json = {"type": "number", "minimum": 0}
_ROW: Json = {"type": "object"}
_WHEN: Json = {"type": ["integer", "string"]}
# What every question about one table may say beside itself.
_MEANT: Json = {
    "batch": _WHOLE,
    "time": _TEXT,
    "cut": _TEXT,
    "closed": {"type": "boolean"},
    "bounds": {"$ref": "#/components/schemas/Bounds"},
}
_PLACES: Json = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_PAGE: Json = {
    "changed": {"type": "array", "items": {"type": ["integer", "null"]}},
    "final": _PLACES,
    "evicted": _PLACES,
    "maybe_evicted": _PLACES,
    "more": {"type": "boolean"},
    "token": {"type": ["string", "null"]},
}
_CUT: Json = {
    "job": _TEXT,
    "batch": _WHOLE,
    "position": _ref("Position"),
    "lag": _ref("Lag"),
    "job_state": {"type": "string", "enum": ["running", "stopped", "unknown"]},
}
_MEANING: Json = {
    "key": {"type": "array", "items": _TEXT},
    "columns": {"type": "array", "items": _ref("Column")},
    "derived": {"type": "boolean"},
    "warnings": {"type": "array", "items": _TEXT},
    "retention": _or_null(_ref("Retention")),
}


def _limit(settings: ServeSettings) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": settings.max_rows}


def _schemas(settings: ServeSettings) -> Json:
    return {
        "Index": _object({"millpond": _TEXT, "routes": {"type": "array", "items": _ref("Route")}}),
        "Route": _object({"method": _TEXT, "path": _TEXT, "summary": _TEXT}),
        "OpenApi": _object({"openapi": _TEXT}, more=True),
        "Tables": _object({"tables": {"type": "array", "items": {"anyOf": [_ref("Table"), _ref("UnreadTable")]}}}),
        "Table": _object({"table": _TEXT, **_CUT, "row_count": _WHOLE, **_MEANING}),
        "Retention": _object(
            {
                "closed_seconds": _or_null(_NOT_NEGATIVE),
                "closed_bytes": {"type": "integer", "minimum": 0},
                "history_batches": _or_null({"type": "integer", "minimum": 0}),
                "history_seconds": _or_null(_NOT_NEGATIVE),
            }
        ),
        "UnreadTable": _object({"table": _TEXT, **_error()["properties"]}),
        "Column": _object({"name": _TEXT, "type": _TEXT, "key": {"type": "boolean"}, "raw": _or_null(_TEXT)}),
        "Definition": _object({"format": _WHOLE, "table": _TEXT}, more=True),
        "Answer": _object({"table": _TEXT, **_CUT, "rows": {"type": "array", "items": _ROW}, **_PAGE}),
        "AnswerWithGaps": _object({"table": _TEXT, **_CUT, "rows": {"type": "array", "items": _or_null(_ROW)}, **_PAGE}),
        "Count": _object({"table": _TEXT, **_CUT, "count": _WHOLE}),
        "Changes": _object(
            {
                "table": _TEXT,
                **_CUT,
                "changes": {"type": "array", "items": _ref("Change")},
                "more": {"type": "boolean"},
                "token": _TEXT,
            }
        ),
        "Change": _object(
            {
                "kind": {"type": "string", "enum": ["insert", "update", "delete", "expire", "remove"]},
                "batch": _WHOLE,
                "first_batch": _WHOLE,
                "old": _or_null(_ROW),
                "new": _or_null(_ROW),
                "final": _or_null(_ROW),
            }
        ),
        "Versions": _object(
            {"table": _TEXT, **_CUT, "versions": {"type": "array", "items": _ref("Version")}, "more": {"type": "boolean"}}
        ),
        "Version": _object(
            {
                "row": _ROW,
                "kind": _or_null({"type": "string", "enum": ["insert", "update", "expire"]}),
                **dict.fromkeys(("batch", "until_batch", "committed_ms", "until_ms"), _or_null(_WHOLE)),
            }
        ),
        "Event": _object(
            {
                "table": _TEXT,
                **_CUT,
                "batch_read": _or_null(_WHOLE),
                "applied": {"type": "boolean"},
                "late": {"type": "string", "enum": ["yes", "no", "unknown"]},
                "reason": _TEXT,
            }
        ),
        "Cut": _object({"table": _TEXT, **_CUT, "cut": _TEXT, "seconds": _SECONDS}),
        "Aligned": _object({"tables": {"type": "array", "items": _object({"table": _TEXT, **_CUT})}}),
        "Keys": _some({"keys": {"type": "array", "items": _ROW, "maxItems": settings.max_keys}, **_MEANT}, "keys"),
        "Scan": _some(
            {
                **dict.fromkeys(("key", "start", "end"), _ROW),
                **dict.fromkeys(("since", "until", "token"), _TEXT),
                "limit": _limit(settings),
                "reverse": {"type": "boolean"},
                **_MEANT,
            }
        ),
        "CountOf": _some({"key": _ROW, **_MEANT}),
        "VersionsOf": _some(
            {
                **dict.fromkeys(("key", "start", "end"), _ROW),
                **dict.fromkeys(("since", "until"), _WHEN),
                "limit": _limit(settings),
                **_MEANT,
            }
        ),
        "ChangesOf": _some(
            {
                "since": _WHEN,
                "limit": _limit(settings),
                "wait_seconds": {**_NOT_NEGATIVE, "maximum": settings.max_seconds},
                **_MEANT,
            }
        ),
        "EventOf": _some(
            {
                **dict.fromkeys(("offset", "file", "event_time"), _TEXT),
                "line": {"type": "integer", "minimum": 1},
                "key": _ROW,
                **_MEANT,
            }
        ),
        "At": _some({"tables": {"type": "array", "items": _TEXT, "minItems": 1}, "offsets": _ROW}, "tables"),
        "Bounds": _some(
            {
                "min_batch": _WHOLE,
                "min_offsets": _ROW,
                "contains_offset": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
                "contains_file": _TEXT,
                **dict.fromkeys(("max_behind_seconds", "max_age_seconds", "wait_seconds"), _NOT_NEGATIVE),
            }
        ),
        "Position": _object(
            {
                "offsets": {"type": "object"},
                "watermark_ms": _or_null(_WHOLE),
                "batch_started_ms": _WHOLE,
                "committed_ms": _WHOLE,
            }
        ),
        "Lag": _object(
            {
                "behind_batches": _WHOLE,
                "behind_seconds": _SECONDS,
                "age_seconds": _SECONDS,
                "age_from": {"type": "string", "enum": ["commit", "batch_start"]},
                "event_lag_seconds": _or_null(_SECONDS),
            }
        ),
        "Live": _object({"live": {"const": True}}),
        "Ready": _object({"ready": {"const": True}, "max_behind_seconds": _SECONDS}),
        "Error": _error(),
    }


def _error() -> Json:
    return _object({"error": _object({"condition": _TEXT, "message": _TEXT, "hint": _TEXT, "context": {"type": "object"}})})


@lru_cache(maxsize=2)
def openapi(settings: ServeSettings, version: str) -> Json:
    """The document of a server with these limits."""
    paths: Json = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Millpond", "version": version, "summary": "State you can query, for Spark streams"},
        "paths": paths,
        "components": {"schemas": _schemas(settings)},
    }
    if settings.tokens is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _operation(route: RouteText) -> Json:
    error = {"description": "what was wrong", "content": {"application/json": {"schema": _ref("Error")}}}
    operation: Json = {
        "operationId": route.endpoint,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {"200": {"description": route.summary, "content": _content(route)}, "4XX": error, "5XX": error},
    }
    if route.formats:
        operation["responses"]["304"] = {"description": "nothing is new since the ETag in If-None-Match"}
    if route.body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    if route.open:
        operation["security"] = []
    return operation


def _content(route: RouteText) -> Json:
    schema = _ref(route.answer) if route.answer else {"type": "string"}
    content: Json = {route.media_type: {"schema": schema}}
    return content | {form.media_type: {"schema": {"type": "string"}} for form in route.formats[1:]}


def _parameters(route: RouteText) -> list[Json]:
    parameters: list[Json] = []
    if "{table}" in route.path:
        parameters.append({"name": "table", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    for control in route.controls:
        parameters.append({"name": control.name, "in": "query", "description": control.text, "schema": control.schema})
    if route.columns:
        parameters.append(
            {
                "name": "columns",
                "in": "query",
                "description": "key columns by name: column=value, column__isnull=1 for NULL",
                "style": "form",
                "explode": True,
                "schema": {"type": "object", "additionalProperties": {"type": "string"}},
            }
        )
    return parameters

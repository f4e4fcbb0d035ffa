"""The OpenAPI 3.1 document: paths from the list of routes, schemas from the structs of `wire`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from millpond.serve.routes import ROUTES, RouteText
from millpond.settings import ServeSettings
from millpond.tables.job.bounds import Bounds
from millpond.wire.answers import ErrorAnswer, TableAnswer, UnreadTable
from millpond.wire.declare import fields
from millpond.wire.parse import LIMITS

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
# How a schema shows a limit of the server.
_MAXIMUM = {"array": "maxItems", "integer": "maximum", "number": "maximum"}


@lru_cache(maxsize=2)
def openapi(settings: ServeSettings, version: str) -> Json:
    """The document of a server with these limits."""
    paths: Json = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, settings)
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


def _schemas(settings: ServeSettings) -> Json:
    bodies = [route.question for route in ROUTES if route.has_body]
    answers = [route.answer for route in ROUTES if route.answer is not None]
    kinds = list(dict.fromkeys([*bodies, *answers, TableAnswer, UnreadTable, ErrorAnswer]))
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    bounds = {name: field.schema for name, field in fields(Bounds).items()}
    schemas["Bounds"] = {"type": "object", "properties": bounds, "additionalProperties": False}
    for schema in schemas.values():
        schema.setdefault("additionalProperties", False)
        for name, property_ in schema.get("properties", {}).items():
            _limit(name, property_, settings)
    return schemas


def _limit(name: str, schema: Json, settings: ServeSettings) -> None:
    """Add the server's limit to a field's schema."""
    if name in LIMITS:
        for form in schema.get("anyOf", [schema]):
            if form.get("type") in _MAXIMUM:
                form[_MAXIMUM[form["type"]]] = getattr(settings, LIMITS[name])


def _operation(route: RouteText, settings: ServeSettings) -> Json:
    error = {"description": "what was wrong", "content": {"application/json": {"schema": _ref(ErrorAnswer)}}}
    operation: Json = {
        "operationId": route.endpoint,
        "summary": route.summary,
        "parameters": _parameters(route, settings),
        "responses": {"200": {"description": route.summary, "content": _content(route)}, "4XX": error, "5XX": error},
    }
    if route.formats:
        operation["responses"]["304"] = {"description": "nothing is new since the ETag in If-None-Match"}
    if route.has_body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.question)}}}
    if route.open:
        operation["security"] = []
    return operation


def _content(route: RouteText) -> Json:
    is_json = route.media_type == "application/json"
    schema: Json = _ref(route.answer) if route.answer else {"type": "object" if is_json else "string"}
    content: Json = {route.media_type: {"schema": schema}}
    return content | {form.media_type: {"schema": {"type": "string"}} for form in route.formats[1:]}


def _ref(kind: type[msgspec.Struct]) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}


def _parameters(route: RouteText, settings: ServeSettings) -> list[Json]:
    parameters: list[Json] = []
    for name in route.names_in_path:
        parameters.append({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    for name, field in route.controls.items():
        schema = _in_url(field.kinds, field.schema)
        _limit(field.name, schema, settings)
        parameters.append({"name": name, "in": "query", "description": field.text, "schema": schema})
    if route.takes_columns:
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


def _in_url(kinds: frozenset[type], schema: Json) -> Json:
    """The schema of a control: values other than texts and numbers are texts in a URL."""
    if bool in kinds:
        return {"type": "string", "enum": ["0", "1", "true", "false"]}
    if dict in kinds:
        return {"type": "string", "contentMediaType": "application/json"}
    if str in kinds:
        return {"type": "string"}
    return {name: value for name, value in schema.items() if name != "description"}

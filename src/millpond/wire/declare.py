"""Declared fields: their descriptions, and the JSON types that they take.

JSON, URLs and the command line parse a field by these, and the OpenAPI document shows them.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

_KINDS: dict[Any, type] = {str: str, int: int, float: float, bool: bool, dict: dict, list: list, Mapping: dict, Iterable: list}


class Field(NamedTuple):
    """A declared field.

    text:   its description
    kinds:  the JSON types that it takes, among int, float, bool, str, list and dict
    schema: its JSON schema
    """

    name: str
    text: str
    kinds: frozenset[type]
    schema: dict[str, Any]


def says(text: str, **schema: Any) -> Meta:
    """The description of a field, with further members of its JSON schema.

    The schema only informs callers.  Values are checked where they are used, so that every door
    gives the same error.
    """
    return Meta(description=text, extra_json_schema=schema or None)


@lru_cache
def fields(kind: type[msgspec.Struct]) -> dict[str, Field]:
    """The fields of a declared struct by name, in order."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _field(name, hints[name]) for name in kind.__struct_fields__}


def _field(name: str, hint: Any) -> Field:
    type_, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    parts = get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)
    kinds = frozenset(_KINDS[get_origin(part) or part] for part in parts if (get_origin(part) or part) in _KINDS)
    meta = next((note for note in notes if isinstance(note, Meta)), Meta())
    schemas = [msgspec.json.schema(k) for k in (int, float, bool, str, dict, list) if k in kinds]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    described = {"description": meta.description} if meta.description else {}
    return Field(name, meta.description or "", kinds, {**described, **schema, **(meta.extra_json_schema or {})})

"""Keys from callers: pairs of texts (URLs, the command line) or JSON, read by the key columns' types.

    column=value       the value as text; `column=` is the empty string
    column__isnull=1   NULL
    column.member=…    a member of a struct, if a part of a key is enough

This only checks the form.  The table checks whether a column exists, belongs to the key, or is
missing, so that every door gives the same error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition, key_parts
from millpond.schema.types import SparkType
from millpond.schema.values import from_json, from_text

Key = dict[str, Any]
NULL_SUFFIX = "__isnull"


def parse_pairs(definition: TableDefinition, pairs: Iterable[tuple[str, str]], *, by_value: bool = False) -> Key:
    """A key, or a part of one, from pairs of column and text.

    by_value:  of a read by an index: the columns may be any of the table
    Raises:  WRONG_TYPE; INVALID_REQUEST if a column is named twice or `__isnull` isn't 1.
    """
    types = _types(definition, by_value=by_value)
    key: Key = {}
    for name, text in pairs:
        column = name.removesuffix(NULL_SUFFIX)
        if column in key:
            raise RequestError(
                "INVALID_REQUEST",
                f"{column} is named twice.",
                hint="Name each column once; ask for several rows with several keys in one POST …/rows:get.",
                column=column,
            )
        if column != name:
            if text != "1":
                raise RequestError(
                    "INVALID_REQUEST",
                    f"{name}={text} isn't possible in a key.",
                    hint=f"Write {name}=1 for NULL, or {column}=VALUE.",
                    column=column,
                )
            key[column] = None
        elif column in types:
            key[column] = from_text(types[column], column=column)(text)
        else:
            key[column] = text
    return key


def parse_object(definition: TableDefinition, data: Any, *, by_value: bool = False) -> Key:
    """A key, or a part of one, from a decoded JSON object with a member for each column.

    by_value:  as for `parse_pairs`
    Raises:  WRONG_TYPE; INVALID_REQUEST if it isn't an object.
    """
    if not isinstance(data, dict):
        raise RequestError(
            "INVALID_REQUEST",
            "A key must be a JSON object with a member for each key column.",
            hint="Write it like {" + ", ".join(f'"{c.name}": …' for c in definition.key) + "}.",
        )
    types = _types(definition, by_value=by_value)
    return {n: from_json(types[n], column=n)(v) if n in types else v for n, v in data.items()}


def _types(definition: TableDefinition, *, by_value: bool) -> dict[str, SparkType]:
    return {**{c.name: c.type for c in key_parts(definition)}, **(definition.types if by_value else {})}

"""Types in the state of schema_of_variant_agg are shown as Spark shows them; wrong bytes give a typed error."""

from __future__ import annotations

import json

import pytest

from millpond.errors import CheckpointError
from millpond.schema.definition.expression import Expression
from millpond.schema.types import atomic
from millpond.tables.variant_schema import compile_variant_schema

SHOW = compile_variant_schema(Expression("aggregate", atomic("string")))


def struct_of(**types):
    return {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]}


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        ("void", "VOID"),
        ("long", "BIGINT"),
        ("decimal(3,1)", "DECIMAL(3,1)"),
        ("timestamp_ntz", "TIMESTAMP_NTZ"),
        ("variant", "VARIANT"),
        ({"type": "array", "elementType": "string", "containsNull": True}, "ARRAY<STRING>"),
        (struct_of(a="long", **{"b c": "double", "d`e": "boolean"}), "OBJECT<a: BIGINT, `b c`: DOUBLE, `d``e`: BOOLEAN>"),
    ],
)
def test_a_type_is_shown_as_sql_has_it(kept, shown):
    assert SHOW(json.dumps(kept).encode()) == shown


def test_a_group_without_a_value_has_the_type_of_null():
    assert SHOW(None) == "VOID"


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"\xff\xfe",
        b'"weird"',
        b"[]",
        b"7",
        b"null",
        b'{"type":"struct"}',
        b'{"type":"array"}',
        b'{"type":"struct","fields":[1]}',
    ],
)
def test_bytes_that_are_no_type_are_a_typed_error(data):
    with pytest.raises(CheckpointError) as caught:
        SHOW(data)
    assert caught.value.condition == "CORRUPT_FILE"

"""A store's schema survives JSON; anything else is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from millpond.errors import CheckpointError
from millpond.schema.store import StoreSchema, parse_store
from millpond.schema.types import Field, atomic, struct_of

TIME = struct_of((Field("start", atomic("timestamp")), Field("end", atomic("timestamp"))))
STORE = StoreSchema(
    operator=3,
    operator_name="transformWithStateInPySparkExec",
    store="default",
    family="seen",
    index=1,
    key=(Field("page", atomic("string"), nullable=False), Field("window", TIME, window=True)),
    value=(Field("n", atomic("decimal(10,2)")),),
    single=True,
    variable="map",
    ttl=True,
    many=True,
    encoder="range",
    ordinals=(1, 0),
    watermarked=(1,),
    writers=((0, (Field("n", atomic("long")),)), (1, (Field("n", atomic("decimal(10,2)")),))),
    schema_file="state/3/_stateSchema/default/0_x",
)


def test_every_field_but_the_file_survives_json() -> None:
    again = parse_store(json.loads(json.dumps(STORE.to_json())))
    defaults = StoreSchema(operator=0, operator_name="", store="", index=0, key=(), value=(), single=False)
    for field in dataclasses.fields(StoreSchema):
        assert getattr(STORE, field.name) != getattr(defaults, field.name), f"this test says nothing of {field.name}"
        assert getattr(again, field.name) == (getattr(STORE, field.name) if field.name != "schema_file" else "")
    assert again.key[1].window, "Spark's word for a window survives as well"
    assert again.to_json() == STORE.to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        {"operator": "3"},
        {"key": None},
        {"value": {"type": "struct"}},
        {"encoder": "other"},
        {"single": 1},
        {"writers": [[0]]},
        {"ordinals": [None]},
    ],
)
def test_what_is_no_schema_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, LookupError, TypeError, CheckpointError)):
        parse_store({**STORE.to_json(), **wrong})

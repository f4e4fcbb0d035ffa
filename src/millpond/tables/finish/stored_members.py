"""The columns that compiled code writes straight from a stored row."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.native import rows as native
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.schema.values import encode_json
from millpond.tables.finish.aggregate import AS_STORED
from millpond.tables.finish.buffers.hllpp import sketch

WHOLE_BYTES = {"byte": 1, "short": 2, "integer": 4, "long": 8}
_FLOATING = {"float": 4, "double": 8}
# Sketches of more registers have tables of megabytes, and are rare.
_FINEST_SKETCH = 14


def stored_members(definition: TableDefinition) -> list[native.Member] | None:
    """The value columns for the library; None if it can't write them, or if the key has no columns."""
    members = [_member(definition, place) for place in range(len(definition.values))]
    found = [member for member in members if member is not None]
    return found if definition.key and len(found) == len(members) else None


def _member(definition: TableDefinition, place: int) -> native.Member | None:
    column = definition.values[place]
    name, expression, schema = b"," + encode_json(column.name) + b":", column.expression, definition.value_schema
    if expression.op == "buffer":
        return _plain_member(name, expression.options["index"], column.type, schema[expression.options["index"]].type)
    if expression.op != "aggregate":
        return None
    function, buffers = expression.options["function"], expression.options["buffers"]
    types = [schema[buffer].type for buffer in buffers]
    if function in AS_STORED or (function == "sum" and len(buffers) == 1):
        return _plain_member(name, buffers[0], column.type, types[0])
    if function == "avg" and column.type.kind == "double" and [t.kind for t in types] == ["double", "long"]:
        return native.Member(name=name, kind=native.AVERAGE, place=buffers[0], width=buffers[1])
    if function == "approx_count_distinct" and column.type.kind == "long":
        return _sketch_member(name, expression.options["precision"], buffers)
    return None


def _plain_member(name: bytes, place: int, result: SparkType, buffer: SparkType) -> native.Member | None:
    kind = result.kind
    if kind != buffer.kind:
        return None
    if kind in WHOLE_BYTES:
        return native.Member(name=name, kind=native.NUMBER, place=place, width=WHOLE_BYTES[kind])
    if kind in _FLOATING:
        return native.Member(name=name, kind=native.FLOATING, place=place, width=_FLOATING[kind])
    if kind in ("boolean", "string"):
        return native.Member(name=name, kind=native.TEXT if kind == "string" else native.BOOLEAN, place=place)
    return None


def _sketch_member(name: bytes, precision: int, buffers: Sequence[int]) -> native.Member | None:
    if precision > _FINEST_SKETCH:
        return None
    facts = sketch(precision)
    if list(buffers) != list(range(buffers[0], buffers[0] + facts.words)):
        return None
    linear = [0.0] + [facts.linear(zeros) for zeros in range(1, facts.registers + 1)]
    packed = native.Sketch(
        neighbours=facts.neighbours,
        alpha_m2=facts.alpha_m2,
        threshold=facts.threshold,
        estimates=facts.estimates,
        biases=facts.biases,
        linear=linear,
    )
    return native.Member(name=name, kind=native.DISTINCT, place=buffers[0], width=facts.words, sketch=packed)

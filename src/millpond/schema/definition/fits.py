"""Whether the types in a definition fit each other, and the rows that it is for: a file may say anything."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.schema.definition.expression import Expression
from millpond.schema.types import Field, SparkType

# What is in their first buffer is the value, whatever its type is.
_OF_A_BUFFER = frozenset({"min", "max", "first", "last", "max_by", "min_by"})


def check_key_column(name: str, type_: SparkType, field: Field, path: tuple[str, ...]) -> None:
    """Raise ValueError where a key column isn't of the type of that member of the state's key."""
    if not same_shape(type_, _member(field.type, path)):
        raise ValueError(f"the key column {name!r:.80} isn't of the state's type")


def check_value_column(name: str, type_: SparkType, expression: Expression) -> None:
    """Raise ValueError where a column isn't of the type that it is computed as."""
    if not same_shape(type_, expression.type):
        raise ValueError(f"the column {name!r:.80} isn't of its expression's type")


def check_expressions(expressions: Iterable[Expression], keys: tuple[Field, ...], buffers: tuple[Field, ...]) -> None:
    """Raise ValueError where something is read out of a row as another type than it is."""
    for node in (node for expression in expressions for node in expression.walk()):
        stored = _stored_type(node, keys, buffers)
        if stored is not None and not same_shape(node.type, stored):
            raise ValueError(f"it reads {stored.kind} as {node.type.kind}")


def same_shape(one: SparkType, other: SparkType) -> bool:
    """Whether values of both look alike: names, precisions and which of them may be NULL don't count."""
    # The start of a session of local times is stored as a timestamp: both are microseconds.
    if {one.kind, other.kind} == {"timestamp", "timestamp_ntz"}:
        return True
    if one.kind != other.kind or len(one.fields) != len(other.fields):
        return False
    pairs = [(a.type, b.type) for a, b in zip(one.fields, other.fields, strict=True)]
    pairs += [(a, b) for a, b in ((one.element, other.element), (one.key, other.key), (one.value, other.value)) if a and b]
    return all(same_shape(a, b) for a, b in pairs)


def _stored_type(node: Expression, keys: tuple[Field, ...], buffers: tuple[Field, ...]) -> SparkType | None:
    """The type of what a node takes out of the row as it is; None where it computes something."""
    place: int
    if node.op == "key":
        return _member(keys[node.options["index"]].type, node.options["path"])
    if node.op == "buffer":
        place = node.options["index"]
        return buffers[place].type
    if node.op == "aggregate" and node.options["function"] in _OF_A_BUFFER:
        place = node.options["buffers"][0]
        return buffers[place].type
    return None


def _member(type_: SparkType, path: tuple[str, ...]) -> SparkType:
    for name in path:
        found = next((field.type for field in type_.fields if field.name == name), None)
        if found is None:
            raise ValueError(f"{name!r:.80} is no member of a key's column")
        type_ = found
    return type_

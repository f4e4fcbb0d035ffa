"""Whether the types in a definition fit each other and its rows: a file may say anything."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.schema.definition.expression import Expression
from millpond.schema.types import Field, SparkType

# Functions whose first buffer is the value, of any type.
_OF_A_BUFFER = frozenset({"min", "max", "first", "last", "max_by", "min_by"})


def check_key_column(name: str, type_: SparkType, field: Field, path: tuple[str, ...]) -> None:
    """Raise ValueError if a key column hasn't the type of its member of the state's key."""
    if not same_shape(type_, _member(field.type, path)):
        raise ValueError(f"the key column {name!r:.80} isn't of the state's type")


def check_value_column(name: str, type_: SparkType, expression: Expression) -> None:
    """Raise ValueError if a column hasn't the type of its expression."""
    if not same_shape(type_, expression.type):
        raise ValueError(f"the column {name!r:.80} isn't of its expression's type")


def check_expressions(expressions: Iterable[Expression], keys: tuple[Field, ...], buffers: tuple[Field, ...]) -> None:
    """Raise ValueError if an expression reads a value of a row as another type."""
    for node in (node for expression in expressions for node in expression.walk()):
        stored = _stored_type(node, keys, buffers)
        if stored is not None and not same_shape(node.type, stored):
            raise ValueError(f"it reads {stored.kind} as {node.type.kind}")


def same_shape(one: SparkType, other: SparkType) -> bool:
    """Whether values of both have the same form: names, precisions and nullability don't count."""
    # The start of a session of local times is stored as a timestamp: both are microseconds.
    if {one.kind, other.kind} == {"timestamp", "timestamp_ntz"}:
        return True
    if one.kind != other.kind or len(one.fields) != len(other.fields):
        return False
    pairs = [(a.type, b.type) for a, b in zip(one.fields, other.fields, strict=True)]
    pairs += [(a, b) for a, b in ((one.element, other.element), (one.key, other.key), (one.value, other.value)) if a and b]
    return all(same_shape(a, b) for a, b in pairs)


def _stored_type(node: Expression, keys: tuple[Field, ...], buffers: tuple[Field, ...]) -> SparkType | None:
    """The type of the value that a node takes from the row; None if it computes something."""
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
            raise ValueError(f"{name!r:.80} isn't a member of a key's column")
        type_ = found
    return type_

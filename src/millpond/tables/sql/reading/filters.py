"""What a filter of DuckDB's says about single columns.

DuckDB hands the conditions that it leaves to a scan as one pyarrow expression.  pyarrow shows no
parts of it, but writes it as a record batch: its metadata has calls, columns and the places of
literals in order, and its columns have the literals.

What isn't understood here is left out.  So the conditions found hold for all rows of the answer, but
not every row for which they hold is in the answer: the whole filter is applied to what was read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_MOST_VALUES = 10_000


@dataclass(slots=True)
class Condition:
    """What holds for one column.

    values:     it has one of these; None if that isn't known
    low, high:  it is at least and at most this; None without a limit
    """

    values: list[Any] | None = None
    low: Any = None
    high: Any = None


@dataclass(slots=True)
class Filter:
    """What a filter says.

    conditions:  by column, which all hold
    columns:     that it needs; None if they aren't known
    """

    conditions: dict[str, Condition] = field(default_factory=dict)
    columns: set[str] | None = field(default_factory=set)


def filter_bytes(expression: Any) -> bytes | None:
    """A pyarrow expression as `parse_filter` reads it; None stands for no filter."""
    return None if expression is None else bytes(expression.__reduce__()[1][0])


def parse_filter(pa: Any, data: bytes | None) -> Filter:
    """The conditions of an expression, of `filter_bytes`."""
    found = Filter()
    if data is None:
        return found
    try:
        tree = _Reader(pa, data).read()
    except (ValueError, TypeError, IndexError, KeyError, StopIteration, OverflowError, RecursionError):
        found.columns = None
        return found
    found.columns = set(_fields(tree))
    if "" in found.columns:
        found.columns = None
    for one in _conjuncts(tree):
        _note(one, found.conditions)
    return found


# A node is ("field", name), ("literal", value) or ("call", function, arguments, options).
_Node = tuple[Any, ...]


class _Reader:
    """Reads the pairs of the metadata as a tree."""

    def __init__(self, pa: Any, data: bytes) -> None:
        reader = pa.ipc.open_file(data)
        self._batch = reader.get_batch(0)
        self._pairs = iter(_metadata(reader.schema))

    def read(self) -> _Node:
        word, value = next(self._pairs)
        return self._node(word, value)

    def _node(self, word: str, value: str) -> _Node:
        if word == "field_ref":
            return "field", value
        if word == "nested_field_ref":  # of a member of a struct: how many names follow, and the names
            names = [next(self._pairs)[1] for _ in range(int(value))]
            return "member", names[0] if names else ""
        if word == "literal":
            return "literal", self._batch.column(int(value))[0].as_py()
        if word != "call":
            raise ValueError(word)
        arguments: list[_Node] = []
        options = None
        while True:
            following, text = next(self._pairs)
            if following == "end":
                return "call", value, arguments, options
            if following == "options":
                options = self._batch.column(int(text))[0].as_py()
            else:
                arguments.append(self._node(following, text))


class _ArrowSchema(ctypes.Structure):
    """The beginning of the C data interface's struct.  Python's dict of metadata drops repeated keys."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: Any) -> list[tuple[str, str]]:
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = _ArrowSchema.from_address(pointer(capsule, b"arrow_schema")).metadata
    if not at:
        return []

    def number() -> int:
        nonlocal at
        value = ctypes.c_int32.from_address(at).value
        at += 4
        return value

    def text() -> str:
        nonlocal at
        size = number()
        value = ctypes.string_at(at, size).decode()
        at += size
        return value

    return [(text(), text()) for _ in range(number())]


def _fields(node: _Node) -> Iterator[str]:
    if node[0] in ("field", "member"):
        yield node[1]
    elif node[0] == "call":
        for argument in node[2]:
            yield from _fields(argument)


def _conjuncts(node: _Node) -> Iterator[_Node]:
    if node[0] == "call" and node[1] in ("and", "and_kleene"):
        for argument in node[2]:
            yield from _conjuncts(argument)
    elif node[0] == "call" and node[1] == "if_else" and node[2][2] == ("literal", None):
        yield from _conjuncts(node[2][1])  # NULL isn't true, so the row isn't in the answer
    else:
        yield node


_TURNED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal", "equal": "equal"}


def _note(node: _Node, conditions: dict[str, Condition]) -> None:
    values = _values(node)
    if values is not None:
        name, some = values
        condition = conditions.setdefault(name, Condition())
        condition.values = some if condition.values is None else [value for value in condition.values if value in some]
        return
    compared = _compared(node)
    if compared is None:
        return
    name, function, value = compared
    condition = conditions.setdefault(name, Condition())
    if function.startswith("greater"):
        condition.low = value if condition.low is None else max(condition.low, value)
    elif function.startswith("less"):
        condition.high = value if condition.high is None else min(condition.high, value)


def _compared(node: _Node) -> tuple[str, str, Any] | None:
    """(column, function, value) of a comparison with a value that isn't NULL."""
    if node[0] != "call" or node[1] not in _TURNED or len(node[2]) != 2:
        return None
    function, (left, right) = node[1], node[2]
    if left[0] == "literal":
        function, left, right = _TURNED[function], right, left
    if left[0] != "field" or right[0] != "literal" or right[1] is None:
        return None
    return left[1], function, right[1]


def _values(node: _Node) -> tuple[str, list[Any]] | None:
    """(column, values) if the column must have one of these values."""
    if node[0] != "call":
        return None
    if node[1] == "is_null" and node[2][0][0] == "field":
        return node[2][0][1], [None]
    if node[1] == "is_in" and node[2][0][0] == "field" and node[3] is not None:
        values = list(node[3]["value_set"])
        return (node[2][0][1], values) if len(values) <= _MOST_VALUES and None not in values else None
    if node[1] in ("or", "or_kleene"):
        each = [_values(next(iter(_conjuncts(argument)))) if _is_one(argument) else None for argument in node[2]]
        names = {one[0] for one in each if one is not None}
        if None in each or len(names) != 1:
            return None
        merged = list(dict.fromkeys(value for one in each if one is not None for value in one[1]))
        return (names.pop(), merged) if len(merged) <= _MOST_VALUES else None
    compared = _compared(node)
    return (compared[0], [compared[2]]) if compared is not None and compared[1] == "equal" else None


def _is_one(node: _Node) -> bool:
    return sum(1 for _ in _conjuncts(node)) == 1

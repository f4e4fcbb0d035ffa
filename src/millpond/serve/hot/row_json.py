"""One row of an answer as JSON, straight from the replica's bytes.

    {"page": "/", "hits": 5}],"changed":[41],"final":[]      follows `"rows":[`, without spaces

If the compiled library can write all value columns of a table, it does.  Values that it rejects (a
text that isn't UTF-8, a number with several forms), and all rows of other tables, are decoded and
written as in every other answer.  Both write the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millpond.native import rows as native
from millpond.replica.row_stamp import changed_batch, is_final, without_stamp
from millpond.schema.definition.expression import key_column
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import SparkType
from millpond.schema.values import encode_json, to_json
from millpond.tables.answer import Row
from millpond.tables.finish.aggregate import AS_STORED
from millpond.tables.finish.definition import compile_shown
from millpond.tables.finish.hllpp import sketch
from millpond.tables.scan.binding import Binding
from millpond.wire.rows import row_writer

Key = tuple[Any, ...]
"""key row in stored form"""

_NUMBERS = {"byte": 1, "short": 2, "integer": 4, "long": 8}
_FLOATING = {"float": 4, "double": 8}
# Sketches of more registers have tables of megabytes, and are rare.
_FINEST_SKETCH = 14
_ROW = b'%b],"changed":[%b],"final":[%b]'
_encode = msgspec.json.Encoder().encode


class RowWriter:
    """Writes rows of one table and generation, whose keys have no list."""

    def __init__(self, binding: Binding) -> None:
        definition = binding.definition
        self._decode, self._finish, self._show = binding.decode_value, binding.finish, row_writer(definition)
        self._heads = _heads(definition)
        self._first = self._heads[0][0] if self._heads else b""
        members = None if definition.having else _members(definition)
        self._native = native.row_writer(len(definition.value_schema), members) if members is not None else None

    def write(self, key: Key, stored: bytes) -> bytes | None:
        """A row and its stamp; None if HAVING hides it."""
        if self._native is not None:
            try:
                head = b"".join([name + _encode(value(key)) for name, value in self._heads])
            except UnicodeEncodeError:
                return self._write_plainly(key, stored)
            written = self._native(stored, head, None)
            if written is not None:
                return written
        return self._write_plainly(key, stored)

    def write_of_text(self, key: bytes, stored: bytes) -> bytes | None:
        """The same for a table whose key is one text, given as its bytes."""
        if self._native is not None:
            written = self._native(stored, self._first, key)
            if written is not None:
                return written
        return self._write_plainly((key.decode("utf-8", "surrogateescape"),), stored)

    def write_row(self, row: Row) -> bytes:
        """The same for a row that was already read."""
        return self._stamp(row, row.changed_batch, final=row.final)

    def _write_plainly(self, key: Key, stored: bytes) -> bytes | None:
        row = self._finish(key, self._decode(without_stamp(stored)))
        return None if row is None else self._stamp(row, changed_batch(stored), final=is_final(stored))

    def _stamp(self, row: Any, batch: int | None, *, final: bool) -> bytes:
        changed = b"null" if batch is None else b"%d" % batch
        return _ROW % (encode_json(self._show(row)), changed, b"0" if final else b"")


def _heads(definition: TableDefinition) -> list[tuple[bytes, Callable[[Key], Any]]]:
    """The text before each key column, and a function from key row to its JSON."""
    out: list[tuple[bytes, Callable[[Key], Any]]] = []
    for place, column in enumerate(definition.key):
        compute, write = compile_shown(definition, key_column(column.index, column.type, column.path)), to_json(column.type)

        def value(key: Key, compute: Any = compute, write: Any = write) -> Any:
            return write(compute(key, ()))

        out.append(((b"," if place else b"{") + encode_json(column.name) + b":", value))
    return out


def _members(definition: TableDefinition) -> list[native.Member] | None:
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
    if kind in _NUMBERS:
        return native.Member(name=name, kind=native.NUMBER, place=place, width=_NUMBERS[kind])
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

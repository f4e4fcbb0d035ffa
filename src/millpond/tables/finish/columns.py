"""From columns of state rows to the columns that a reader sees, for all rows at once.

This handles columns that are a key, a buffer, a member of one, or a count, sum, minimum, maximum or
average of floats.  `definition` computes every other column, and HAVING, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from millpond.checkpoint.rows.columns import Array, Column, Spans, read_columns
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.errors import RequestError
from millpond.native.memory import Memory
from millpond.replica.keys.codec import KeyCodec
from millpond.replica.keys.columns import read_ordered
from millpond.scalar.number.ranges import overflow
from millpond.schema.definition.expression import Expression, key_column
from millpond.schema.definition.table import TableDefinition
from millpond.schema.types import Field, SparkType, atomic
from millpond.tables.finish.aggregate import AS_STORED
from millpond.tables.finish.definition import MISFITS, compile_definition, compile_shown, misfit, try_value
from millpond.tables.forms.arrow import column_array, python_array
from millpond.tables.forms.arrow_errors import Failures

Columns = dict[int, Column]
Vector = Callable[[Columns, Columns], Column]
"""(columns of the key row, of the value row) -> the column"""
_INTEGER = atomic("integer")


class Keys(Protocol):
    """The keys of rows."""

    def columns(self, wanted: set[int]) -> Columns:
        """Some of their columns."""

    def rows(self) -> list[tuple[Any, ...]]:
        """Each key in stored form."""

    def select(self, chosen: Array) -> Keys:
        """Some of them, by index."""


class RowKeys:
    """Keys that are UnsafeRows.

    places:  for lists: each row's place in its list, which is the last column of its key
    memory:  where columns are written; it must stay
    """

    def __init__(self, fields: tuple[Field, ...], rows: Spans, places: Array | None = None, memory: Memory | None = None) -> None:
        self._fields, self._rows, self._places, self._memory = fields, rows, places, memory

    def columns(self, wanted: set[int]) -> Columns:
        count = len(self._fields)
        found = read_columns(self._fields, self._rows, [i for i in wanted if i < count], self._memory)
        if self._places is not None and count in wanted:
            found[count] = Column(type=_INTEGER, size=len(self._places), valid=None, numbers=self._places)
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        decode = decoder(self._fields)
        decoded = [decode(row) for row in self._rows.tolist()]
        if self._places is None:
            return decoded
        return [(*row, place) for row, place in zip(decoded, self._places.tolist(), strict=True)]

    def select(self, chosen: Array) -> RowKeys:
        places = None if self._places is None else self._places[chosen]
        return RowKeys(self._fields, self._rows.select(chosen), places, self._memory)


class OrderedKeys:
    """Keys in a replica's encoding."""

    def __init__(self, fields: tuple[Field, ...], codec: KeyCodec, keys: list[bytes]) -> None:
        self._fields, self._codec, self._keys = fields, codec, keys

    def columns(self, wanted: set[int]) -> Columns:
        found = read_ordered(self._fields, self._keys)
        if found is None:
            rows = self.rows()
            kept = {i: [row[i] for row in rows] for i in wanted}
            found = {i: Column(type=self._fields[i].type, size=len(c), valid=None, stored=c) for i, c in kept.items()}
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        return [self._codec.decode(key) for key in self._keys]

    def select(self, chosen: Array) -> OrderedKeys:
        return OrderedKeys(self._fields, self._codec, [self._keys[i] for i in chosen.tolist()])


class ColumnFinish:
    """Makes the arrays of a table out of rows."""

    def __init__(self, definition: TableDefinition) -> None:
        self._definition, self._names, self._value_schema = definition, definition.columns, definition.value_schema
        expressions = [key_column(c.index, c.type, c.path) for c in definition.key] + [c.expression for c in definition.values]
        self._expressions, self._types = expressions, [e.type for e in expressions]
        self._vectors = [vector_of(e, definition) for e in expressions]
        self._by_row = {i: compile_shown(definition, e) for i, e in enumerate(expressions) if self._vectors[i] is None}
        self._having = None if definition.having is None else compile_shown(definition, definition.having)
        self._key_places, self._value_places = places_of(
            e for e, vector in zip(expressions, self._vectors, strict=True) if vector is not None
        )

    def arrays(self, pa: Any, keys: Keys, values: Spans, memory: Memory | None, failures: Failures) -> list[Any]:
        """A pyarrow array for each column of the table, from keys and value rows.

        memory:    where columns are written; it must stay
        failures:  collects values that can't be computed; they are NULL in their arrays
        Raises:    CORRUPT_FILE.
        """
        try:
            return self._arrays(pa, keys, values, memory, failures)
        except MISFITS as broken:  # Arrow's own errors are among these
            raise misfit(broken) from broken

    def _arrays(self, pa: Any, keys: Keys, values: Spans, memory: Memory | None, failures: Failures) -> list[Any]:
        import numpy as np

        pairs: list[tuple[Any, Any]] = []
        if self._by_row or self._having is not None:
            pairs = self._pairs(keys, values)
        if self._having is not None:
            try:
                having = self._having
                chosen = np.array([i for i, pair in enumerate(pairs) if having(*pair) is True], np.int64)
            except RequestError:
                return self._arrays_by_row(pa, pairs, failures)
            pairs, keys, values = [pairs[i] for i in chosen.tolist()], keys.select(chosen), values.select(chosen)
        key_columns = keys.columns(self._key_places)
        value_columns = read_columns(self._value_schema, values, self._value_places, memory)
        out = []
        for i, (name, vector) in enumerate(zip(self._names, self._vectors, strict=True)):
            if vector is not None:
                try:
                    column = vector(key_columns, value_columns)
                except RequestError:  # of some row
                    pairs = pairs or self._pairs(keys, values)
                else:
                    out.append(column_array(pa, column, memory, failures=failures, name=name))
                    continue
            if i not in self._by_row:
                self._by_row[i] = compile_shown(self._definition, self._expressions[i])
            evaluate = self._by_row[i]
            finished = [try_value(evaluate, name, *pair) for pair in pairs]
            out.append(python_array(pa, self._types[i], finished, failures, name))
        return out

    def _pairs(self, keys: Keys, values: Spans) -> list[tuple[Any, Any]]:
        decode = decoder(self._value_schema)
        return [(key, decode(row)) for key, row in zip(keys.rows(), values.tolist(), strict=True)]

    def _arrays_by_row(self, pa: Any, pairs: list[tuple[Any, Any]], failures: Failures) -> list[Any]:
        """The same if the filter fails for some row."""
        finish = compile_definition(self._definition)
        rows = [row for pair in pairs if (row := finish(*pair)) is not None]
        return [
            python_array(pa, type_, [dict.__getitem__(row, name) for row in rows], failures, name)
            for name, type_ in zip(self._names, self._types, strict=True)
        ]


def _buffers(node: Expression) -> Iterable[int]:
    if node.op == "buffer":
        return (node.options["index"],)
    return tuple(node.options["buffers"]) if node.op == "aggregate" else ()


def places_of(expressions: Iterable[Expression]) -> tuple[set[int], set[int]]:
    """The columns of the key row and of the value row from which expressions are computed, by place."""
    nodes = [n for e in expressions for n in e.walk()]
    return {n.options["index"] for n in nodes if n.op == "key"}, {place for n in nodes for place in _buffers(n)}


def always_has_value(e: Expression) -> bool:
    """Whether an expression can be computed for every row: a key, a buffer, a count, an average of doubles, …"""
    if e.op in ("key", "buffer"):
        return True
    if e.op == "get_field" or (e.op == "aggregate" and e.args):
        return always_has_value(e.args[0])
    if e.op != "aggregate":
        return False
    function = e.options["function"]
    is_sum = function == "sum" and len(e.options["buffers"]) == 1
    return function in AS_STORED or is_sum or (function == "avg" and e.type.kind == "double")


def vector_of(e: Expression, definition: TableDefinition) -> Vector | None:
    """The function that computes an expression for all rows; None if there is none."""
    if e.op == "key":
        return _key(e, definition.key_fields)
    if e.op == "buffer":
        return _buffer(e.options["index"], e.type, definition.value_schema)
    if e.op == "aggregate":
        return _aggregate(e, definition.value_schema)
    if e.op == "get_field":
        return _member_of(vector_of(e.args[0], definition), e.args[0].type, e.options["ordinal"], e.type)
    if e.op == "timestamp_micros" and e.args[0].type.kind == "long":
        inner = vector_of(e.args[0], definition)
        return None if inner is None else (lambda keys, buffers: replace(inner(keys, buffers), type=e.type))
    return None


def _alike(left: SparkType, right: SparkType) -> bool:
    """Whether a column of one type is also one of the other, without conversion."""
    if left.kind in ("struct", "array", "map"):
        return left == right
    return (left.kind, left.precision, left.scale) == (right.kind, right.precision, right.scale)


def _key(e: Expression, fields: tuple[Field, ...]) -> Vector | None:
    index: int = e.options["index"]
    type_, vector = fields[index].type, _of_key(index)
    for name in e.options["path"]:
        ordinal = next((i for i, f in enumerate(type_.fields) if f.name == name), None)
        if ordinal is None:
            return None
        inner = _member_of(vector, type_, ordinal, type_.fields[ordinal].type)
        if inner is None:
            return None
        type_, vector = type_.fields[ordinal].type, inner
    return vector if _alike(type_, e.type) else None


def _of_key(index: int) -> Vector:
    return lambda keys, _: keys[index]


def _member_of(whole: Vector | None, struct: SparkType, ordinal: int, type_: SparkType) -> Vector | None:
    """A member of a struct; NULL if the struct is NULL."""
    if whole is None or ordinal >= len(struct.fields) or not _alike(struct.fields[ordinal].type, type_):
        return None
    outer = whole

    def member(keys: Columns, buffers: Columns) -> Column:
        column = outer(keys, buffers)
        if column.stored is not None:
            stored = [None if value is None else value[ordinal] for value in column.stored]
            return Column(type=type_, size=column.size, valid=None, stored=stored)
        return column.members[ordinal]

    return member


def _buffer(place: int, type_: SparkType, fields: tuple[Field, ...]) -> Vector | None:
    if place >= len(fields) or not _alike(fields[place].type, type_):
        return None
    return lambda _, buffers: buffers[place]


def _aggregate(e: Expression, fields: tuple[Field, ...]) -> Vector | None:
    function, places = e.options["function"], list(e.options["buffers"])
    if function in AS_STORED or (function == "sum" and len(places) == 1):
        return _buffer(places[0], e.type, fields)
    if function == "sum" and _alike(fields[places[0]].type, e.type) and fields[places[1]].type.kind == "boolean":
        return _sum(e, *places)
    kinds = [fields[place].type.kind for place in places]
    if function == "avg" and e.type.kind == "double" and kinds == ["double", "long"]:
        return _average(e, *places)
    return None


def _sum(e: Expression, place: int, empty: int) -> Vector:
    """A sum with `isEmpty`; see `finish_aggregate`."""
    type_, strict = e.type, e.options["mode"] == "ansi"

    def vector(_: Columns, buffers: Columns) -> Column:
        total, flag = buffers[place], buffers[empty]
        some: Array = flag.numbers == 0 if flag.valid is None else (flag.numbers == 0) | ~flag.valid
        valid: Array = some if total.valid is None else some & total.valid
        if strict and (valid != some).any():
            raise overflow(type_)
        return replace(total, valid=valid)

    return vector


def _average(e: Expression, place: int, count_place: int) -> Vector:
    def vector(_: Columns, buffers: Columns) -> Column:
        import numpy as np

        total, count = buffers[place], buffers[count_place]
        assert total.numbers is not None
        assert count.numbers is not None
        valid = count.numbers != 0
        for column in (total, count):
            valid = valid if column.valid is None else valid & column.valid
        with np.errstate(all="ignore"):
            numbers = total.numbers / np.where(valid, count.numbers, 1)
        return Column(type=e.type, size=total.size, valid=valid, numbers=numbers)

    return vector

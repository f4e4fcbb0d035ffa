"""What a replica writes into the indexes of a table: its columns' values as readers see them, as bytes in their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from millpond.checkpoint.rows.columns import Column, read_columns, span
from millpond.errors import DefinitionError, RequestError
from millpond.replica.indexes import StoreIndexes
from millpond.replica.keys.codec import Write, column_writer
from millpond.replica.keys.columns import write_ordered
from millpond.replica.record import IndexRecord
from millpond.schema.definition.expression import key_column
from millpond.schema.definition.indexes import Indexes, check_indexes, digest_of
from millpond.schema.types import SparkType
from millpond.tables.failed import FailedValue
from millpond.tables.finish.columns import OrderedKeys, places_of, vector_of
from millpond.tables.finish.definition import MISFITS, compile_stored
from millpond.tables.scan.binding import Binding

# With fewer rows, columns take longer than one row after the other.
_FEW_ROWS = 32
_FLOATS = ("float", "double")


def store_indexes(binding: Binding, indexes: Indexes) -> StoreIndexes:
    """The indexes of a table's store.

    Raises:  what `check_indexes` raises; DEFINITION_MISMATCH.
    """
    definition = binding.definition
    check_indexes(definition, indexes)
    names = tuple({name: None for index in indexes for name in index})
    places = [[names.index(name) for name in index] for index in indexes]
    by_row, by_column = _ByRow(binding, names), _ByColumn(binding, names)

    def heads(ordered: list[bytes], rows: list[bytes]) -> list[list[bytes | None]]:
        columns = by_column.encode(ordered, rows) if len(rows) >= _FEW_ROWS else None
        if columns is not None:
            return [columns[chosen[0]] if len(chosen) == 1 else _joined([columns[i] for i in chosen]) for chosen in places]
        each = [by_row.encode(key, row) for key, row in zip(ordered, rows, strict=True)]
        return [[None if one is None else b"".join([one[i] for i in chosen]) for one in each] for chosen in places]

    fingerprint = definition.fingerprint()
    return StoreIndexes(tuple(IndexRecord(index, digest_of(fingerprint, index)) for index in indexes), heads)


def _joined(columns: list[list[bytes | None]]) -> list[bytes | None]:
    return [b"".join(values) for values in zip(*columns, strict=True)]


class _ByRow:
    """Encodes the columns of one row after the other."""

    def __init__(self, binding: Binding, names: Sequence[str]) -> None:
        types = binding.definition.types
        self._writers = [value_writer(types[name]) for name in names]
        self._finish = compile_stored(binding.definition, names)
        self._decode_key, self._decode_value = binding.codec.decode, binding.decode_value
        self._unknown = (None,) * len(names)

    def encode(self, key: bytes, row: bytes) -> list[bytes] | None:
        """The bytes of each column; None if readers don't see the row."""
        values: tuple[Any, ...] | None
        try:
            values = self._finish(self._decode_key(key), self._decode_value(row))
        except DefinitionError:  # a read of this row says why
            values = self._unknown
        return None if values is None else [write(value) for write, value in zip(self._writers, values, strict=True)]


class _ByColumn:
    """Encodes the columns of many rows at once, where each can be computed so."""

    def __init__(self, binding: Binding, names: Sequence[str]) -> None:
        definition = binding.definition
        expressions = {c.name: key_column(c.index, c.type, c.path) for c in definition.key}
        expressions |= {c.name: c.expression for c in definition.values}
        wanted = [expressions[name] for name in names]
        self._vectors = [vector_of(expression, definition) for expression in wanted]
        self._can = definition.having is None and all(vector is not None for vector in self._vectors)
        self._key_places, self._value_places = places_of(wanted)
        self._fields, self._schema, self._codec = definition.key_fields, binding.schema.value, binding.codec

    def encode(self, ordered: list[bytes], rows: list[bytes]) -> list[list[bytes | None]] | None:
        """For each column, the bytes of each row; None if that can't be done so."""
        if not self._can:
            return None
        try:
            keys = OrderedKeys(self._fields, self._codec, ordered).columns(self._key_places)
            values = read_columns(self._schema, span(rows), self._value_places)
            found = [vector(keys, values) for vector in self._vectors if vector is not None]
        except (RequestError, DefinitionError, *MISFITS):  # of some row
            return None
        written = [write_ordered(_normal(column)) for column in found]
        return None if any(each is None for each in written) else written  # type: ignore[return-value]


def _normal(column: Column) -> Column:
    """The same with all zeros as 0.0, and all NaN as one."""
    import numpy as np

    if column.numbers is None or column.type.kind not in _FLOATS:
        return column
    numbers = column.numbers
    return replace(column, numbers=np.where(np.isnan(numbers), np.nan, numbers + 0.0).astype(numbers.dtype))


def value_writer(type_: SparkType) -> Write:
    """A function from a value in stored form to its ordered bytes.

    A value that can't be computed is written as NULL, all zeros as 0.0, all NaN as one.
    """
    write = column_writer(type_)
    if type_.kind not in _FLOATS:
        return lambda value: write(None if type(value) is FailedValue else value)

    def write_float(value: Any) -> bytes:
        if value is None or type(value) is FailedValue:
            return write(None)
        return write(math.nan if value != value else value or 0.0)

    return write_float

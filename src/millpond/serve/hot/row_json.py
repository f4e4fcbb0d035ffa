"""One row of an answer as JSON, straight from the replica's bytes.

    {"page": "/", "hits": 5}],"changed":[41],"final":[]      follows `"rows":[`, without spaces

If the compiled library can write all value columns of a table, it does.  Values that it rejects (a
text that isn't UTF-8, a number with several forms), and all rows of other tables, are decoded and
written as in every other answer.  Both write the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millpond.native import rows as native
from millpond.replica.row_stamp import changed_batch, is_final, without_stamp
from millpond.schema.definition.expression import key_column
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import encode_json, to_json
from millpond.tables.answer import Row
from millpond.tables.finish.definition import compile_shown
from millpond.tables.finish.stored_members import stored_members
from millpond.tables.scan.binding import Binding
from millpond.wire.rows import row_writer

Key = tuple[Any, ...]
"""key row in stored form"""

_ROW = b'%b],"changed":[%b],"final":[%b]'
_encode = msgspec.json.Encoder().encode


class RowWriter:
    """Writes rows of one table and generation, whose keys have no list."""

    def __init__(self, binding: Binding) -> None:
        definition = binding.definition
        self._decode, self._finish, self._show = binding.decode_value, binding.finish, row_writer(definition)
        self._heads = _heads(definition)
        self._first = self._heads[0][0] if self._heads else b""
        members = None if definition.having else stored_members(definition)
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


class RowWriters:
    """The writer for rows of the generation that is read now."""

    def __init__(self) -> None:
        self._binding: Binding | None = None
        self._writer: RowWriter

    def of(self, binding: Binding) -> RowWriter:
        """The writer for rows of this generation."""
        if binding is not self._binding:
            self._binding, self._writer = binding, RowWriter(binding)
        return self._writer


def _heads(definition: TableDefinition) -> list[tuple[bytes, Callable[[Key], Any]]]:
    """The text before each key column, and a function from key row to its JSON."""
    out: list[tuple[bytes, Callable[[Key], Any]]] = []
    for place, column in enumerate(definition.key):
        compute, write = compile_shown(definition, key_column(column.index, column.type, column.path)), to_json(column.type)

        def value(key: Key, compute: Any = compute, write: Any = write) -> Any:
            return write(compute(key, ()))

        out.append(((b"," if place else b"{") + encode_json(column.name) + b":", value))
    return out

"""Lookups of whole keys in one view, for a door that writes its answers from the stored bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.native.lookup import TableLookup
from millpond.replica.backends.lmdb import LmdbSnapshot
from millpond.replica.history.delete_cause import loses_rows
from millpond.replica.keys.codec import MAX_KEY_BYTES
from millpond.tables.answer import Row
from millpond.tables.scan.open_read import OpenRead

GetRow = Callable[[OpenRead, dict[str, Any]], Row]
"""(read, key columns in stored form) -> the row that `Table.get` returns"""


class Lookups:
    """One table at one batch.

    cut:      where answers come from
    binding:  how keys and rows are read
    is_judged:  whether rows may be left out that are stored
    compiled:   the same in compiled code, None if only Python can; it doesn't keep the view open, and
                answers for about a millisecond, unless a newer batch comes first
    transaction:  the number of LMDB's transaction that the view reads, for `compiled`
    """

    __slots__ = (
        "_get_row",
        "_is_plain",
        "_may_expire",
        "_read",
        "_rows",
        "_table",
        "binding",
        "compiled",
        "cut",
        "is_judged",
        "transaction",
    )

    def __init__(self, read: OpenRead, get_row: GetRow, compiled: TableLookup | None) -> None:
        self._read = read
        rows = read.view.rows
        self.compiled = compiled
        self.transaction = rows.transaction.id() if isinstance(rows, LmdbSnapshot) else 0
        self._get_row = get_row
        self.binding = binding = read.binding
        self.cut = read.cut
        self._rows, self._table = read.stored(), binding.table
        self.is_judged = read.judge is not None
        self._is_plain = not (binding.many or self.is_judged or binding.stores.shard)
        self._may_expire = binding.may_expire or loses_rows(binding.schema)

    def get(self, ordered: bytes) -> bytes | None:
        """The stored bytes under an ordered key, with their stamp; empty if there is no such row.

        None if only `row` can tell: rows that may have expired or be hidden, that lie in a list,
        under a hash of their key, or in another shard.
        """
        if self._is_plain and len(ordered) < MAX_KEY_BYTES:
            found = self._rows.get(self._table, ordered)
            if found is not None:
                return found
            return None if self._may_expire else b""
        return None

    def row(self, key: tuple[Any, ...]) -> Row:
        """The row that `Table.get` returns; the key is in stored form, in the table's order."""
        columns = {column.name: value for column, value in zip(self.binding.definition.key, key, strict=True)}
        return self._get_row(self._read, columns)

    def row_of(self, columns: dict[str, Any]) -> Row:
        """The same by the key's columns in stored form."""
        return self._get_row(self._read, columns)

    def close(self) -> None:
        """End the view."""
        self._read.close()

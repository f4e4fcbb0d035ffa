"""A user's edit of rows that stand alone: all but those of joins.  What Spark keeps beside them follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from millpond.checkpoint.whole.rows import FamilyCodec, StoreCodec
from millpond.errors import RequestError
from millpond.savepoint.change.user_edit import Edit, EditCounts, Merge, StateRow, UserTable, is_same
from millpond.savepoint.rewrite.form import unsupported
from millpond.savepoint.rewrite.row_edit import Row, RowEdit
from millpond.savepoint.rewrite.row_values import wrong
from millpond.savepoint.rewrite.twins import BY_KEY, EXPIRES, family_beside, has_expiry, rows_beside


class StoreEdit(RowEdit):
    """A `RowEdit` by the user's functions.

    tables:    column family -> the name of its table; rows of others stay as they are
    may_move:  whether a row may get another key
    """

    def __init__(
        self, operator: int, store: str, tables: Mapping[str, str], edit: Edit, merge: Merge | None, *, may_move: bool
    ) -> None:
        self.operator, self.store = operator, store
        self.counts = {table: EditCounts() for table in tables.values()}
        self._tables, self._edit, self._merge, self._may_move = tables, edit, merge, may_move
        self._open: dict[str, _TableRows] = {}

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        for row in rows:
            table = self._table(row[0], codec)
            if table is None:
                if family_beside(codec.family_of(row[0])) not in self._tables:
                    yield row  # else it is made anew from the edited rows
                continue
            edited = self._edited(table, row)
            if edited is not None:
                yield edited
                yield from table.beside(edited)

    def _edited(self, table: _TableRows, row: Row) -> Row | None:
        def before() -> StateRow:
            return table.read(row)

        counts = table.counts
        counts.rows += 1
        after = table.call("The edit", before, self._edit, before())
        edited = None if after is None else table.write(after, row)
        if edited is None:
            counts.removed += 1
        elif edited != row:
            counts.changed += 1
            if edited[0] != row[0] and not self._may_move and not table.is_same_timer(edited, row):
                raise unsupported(
                    f"A row of {table.name} gets another key, and Spark keeps more than this row under its key.",
                    "Leave its key as it is.",
                )
        if edited != row:
            table.sample(before, after)
        return edited

    def merge(self, rows: list[Row], codec: StoreCodec) -> Row:
        table = self._table(rows[0][0], codec)
        if table is None:
            return rows[0]  # a row beside timers that are one now
        if table.is_of_timers:
            table.counts.merged += len(rows) - 1
            return rows[0]
        merged = table.read(rows[0])
        if self._merge is None:
            raise RequestError(
                "INVALID_REQUEST",
                f"{len(rows)} rows of {table.name} have the same key after the edit: {merged.key!r:.300}.",
                hint="Give a function that merges two rows into one.",
            )
        for row in rows[1:]:
            found = table.call("The merge", lambda: table.read(rows[0]), self._merge, merged, table.read(row))
            if found is None:
                raise wrong(f"The merge of two rows of {table.name} gives None", "Return the row that takes the place of both.")
            merged = found
        table.counts.merged += len(rows) - 1
        written = table.write(merged, rows[0])
        if written is None or written[0] != rows[0][0]:
            raise wrong(f"The merge of two rows of {table.name} gives another key", "Leave the key as it is.")
        return written

    def _table(self, key: bytes, codec: StoreCodec) -> _TableRows | None:
        family = codec.family_of(key)
        if family not in self._tables:
            return None
        if family not in self._open:
            name = self._tables[family]
            self._open[family] = _TableRows(name, codec, family, self.counts[name])
        return self._open[family]


class _TableRows(UserTable):
    """Rows of one table, between bytes and `StateRow`."""

    def __init__(self, name: str, store: StoreCodec, family: str, counts: EditCounts) -> None:
        self._codec: FamilyCodec = store.of(family)
        super().__init__(name, self._codec.schema.key, self._codec.schema.value, counts)
        self.is_of_timers = family.endswith(BY_KEY)
        self._store, self._family = store, family
        self._expires = has_expiry(store, family)

    def read(self, row: Row) -> StateRow:
        key, value = self._codec.read_key(row[0]), [self.value.read(v) for v in self._codec.read_value(row[1])]
        return StateRow(self.name, self.key.read(key), value if self._codec.is_list else value[0])

    def write(self, row: StateRow, before: Row) -> Row | None:
        """The row's bytes; None for a list without elements."""
        key_before = self._codec.read_key(before[0])
        key = self.key.write(row.key, key_before)
        elements, was = row.value if self._codec.is_list else [row.value], self._codec.read_value(before[1])
        if not isinstance(elements, list):
            raise wrong(f"The value of a row of {self.name} isn't a list", "Give a list of dicts.")
        if not elements:
            return None
        stored = [self.value.write(v, was[i] if i < len(was) else None) for i, v in enumerate(elements)]
        if self._expires and any(element[-1] is None for element in stored):
            raise wrong(f"A row of {self.name} has no time at which it expires", f"Give {EXPIRES} in milliseconds since 1970.")
        return (
            before[0] if is_same(key, key_before) else self._codec.write_key(key),
            # A row in Avro may have been written by an older schema.
            before[1] if len(stored) == len(was) and all(map(is_same, stored, was)) else self._codec.write_value(stored),
        )

    def is_same_timer(self, edited: Row, before: Row) -> bool:
        """Whether two rows are timers of the same key, so that only the time may differ."""
        return self.is_of_timers and self._codec.read_key(edited[0])[0] == self._codec.read_key(before[0])[0]

    def beside(self, row: Row) -> Iterator[Row]:
        """The rows that Spark keeps beside it."""
        return rows_beside(self._store, self._family, self._codec.read_key(row[0]), self._codec.read_value(row[1]))

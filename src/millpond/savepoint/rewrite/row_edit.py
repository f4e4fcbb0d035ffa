"""What is done to the rows of a store while it is rewritten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from millpond.checkpoint.rocksdb.snapshot import SnapshotMetadata
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.checkpoint.whole.store import WholeStore
from millpond.savepoint.rewrite.row_values import NamedColumns, call_user, wrong
from millpond.schema.value_change import ValueChange

MergeValues = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
Row = tuple[bytes, bytes]
"""a key with its column family, and its value without checksums, as the provider has them"""


class RowEdit(ABC):
    """Other rows for one store.

    operator:  Spark's operator id
    store:     Spark's name of the store
    follows:   whether its rows follow from those of another store of the operator, which comes first
    """

    operator: int
    store: str
    follows = False

    @abstractmethod
    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterable[Row]:
        """The rows in place of those of one partition, in any order."""

    def last(self, codec: StoreCodec) -> Iterable[Row]:  # noqa: ARG002
        """Rows to add after those of all partitions."""
        return ()

    def merge(self, rows: list[Row], codec: StoreCodec) -> Row:  # noqa: ARG002
        """One row in place of several that have the same key now."""
        raise AssertionError("no two rows get the same key")

    def store_after(self, store: WholeStore) -> WholeStore:
        """The store with the columns and column families that it gets."""
        return store

    def numbers_after(self, numbers: SnapshotMetadata) -> SnapshotMetadata:
        """The numbers of its column families."""
        return numbers


class NewColumns(RowEdit):
    """A `RowEdit` that gives the rows of an aggregation other columns."""

    def __init__(self, change: ValueChange) -> None:
        self.operator, self.store, self._change = change.operator, change.store, change

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        (read, _), (_, write) = codec.rows_of(self._change.before), codec.rows_of(self._change.after)
        apply = self._change.apply
        for key, value in rows:
            yield key, write(apply(read(value)))


class NewKey(RowEdit):
    """A `RowEdit` that gives the rows of an aggregation fewer key columns, and other columns.

    change:   of the values
    places:   for each column of the new key, which old one it is
    becomes:  the store of the new query
    merge:    makes one value of two, by column, where rows get the same key; None: no two may
    """

    def __init__(self, change: ValueChange, places: tuple[int, ...], becomes: WholeStore, merge: MergeValues | None) -> None:
        self.operator, self.store = change.operator, change.store
        self._change, self._places, self._becomes, self._merge = change, places, becomes, merge
        self._columns = NamedColumns(change.after, f"the state of operator {change.operator}")

    def store_after(self, store: WholeStore) -> WholeStore:  # noqa: ARG002
        return self._becomes

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        old, new = codec.of(self.store), codec.over(self._becomes, {}).of(self.store)
        for key, value in rows:
            columns = old.read_key(key)
            after = self._change.apply(old.read_row(value))
            yield new.write_key(tuple(columns[place] for place in self._places)), new.write_row(after)

    def merge(self, rows: list[Row], codec: StoreCodec) -> Row:
        new = codec.over(self._becomes, {}).of(self.store)
        if self._merge is None:
            what = f"{len(rows)} rows have the key {new.read_key(rows[0][0])!r:.200} in the new query"
            raise wrong(what, "Give a function `merge`, which makes one value of two.")
        merged = self._columns.read(new.read_row(rows[0][1]))
        for _, value in rows[1:]:
            merged = call_user(lambda: "The merge", self._merge, merged, self._columns.read(new.read_row(value)))
        return rows[0][0], new.write_row(self._columns.write(merged, None))

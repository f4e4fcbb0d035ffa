"""What is done to the rows of a store while it is rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from millpond.checkpoint.whole_rows import StoreCodec
from millpond.schema.value_change import ValueChange

Row = tuple[bytes, bytes]
"""a key with its column family, and its value without checksums, as the provider has them"""


class RowEdit(Protocol):
    """Other rows for one store."""

    @property
    def operator(self) -> int:
        """Spark's operator id."""

    @property
    def store(self) -> str:
        """Spark's name of the store."""

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterable[Row]:
        """The rows in place of those of one partition, in any order."""

    def last(self, codec: StoreCodec) -> Iterable[Row]:
        """Rows to add after those of all partitions."""

    def merge(self, rows: list[Row], codec: StoreCodec) -> Row:
        """One row in place of several that have the same key now."""


@dataclass(frozen=True, slots=True)
class NewColumns:
    """A `RowEdit` that gives the rows other columns."""

    change: ValueChange

    @property
    def operator(self) -> int:
        return self.change.operator

    @property
    def store(self) -> str:
        return self.change.store

    def rows(self, rows: Iterable[Row], codec: StoreCodec) -> Iterator[Row]:
        (read, _), (_, write) = codec.rows_of(self.change.before), codec.rows_of(self.change.after)
        apply = self.change.apply
        for key, value in rows:
            yield key, write(apply(read(value)))

    def last(self, codec: StoreCodec) -> Iterable[Row]:  # noqa: ARG002
        return ()

    def merge(self, rows: list[Row], codec: StoreCodec) -> Row:  # noqa: ARG002
        raise AssertionError("no key changes")

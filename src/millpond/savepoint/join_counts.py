"""Joins whose counts name other rows than there are: a hole in the rows that wait for the other side.

    formats 1 to 3   keyToNumValues: key -> n; keyWithIndexToValue: (key, 0 to n - 1) -> a row
    format 4         tsWithKey: (key, the row's event time) -> as many empty rows;
                     keyWithTsToValues: the same key -> its rows

Spark reads the rows of a key by number, up to the count, and in format 4 finds by time what it
removes.  Each file may be whole and yet another one's: then both don't agree.

Both sides of the comparison are sums over all keys: of hash(key) times how many rows it has, and of
another hash times the sum of their places.  So they need no memory and no order, and a damaged count
costs no time, however large.  Of n places that differ, only 0 to n - 1 have the least sum.

Source:  SymmetricHashJoinStateManager, Spark 4.3; every golden join agrees, at every batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.rows.unsaferow import encoder
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole.rows import Columns, FamilyCodec, StoreCodec
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError
from millpond.savepoint.change.edit_join import BESIDE, COUNTS, INDEXED, family_beside_side
from millpond.savepoint.rewrite.rewrite import open_state
from millpond.storage import Storage

_JOIN = "symmetricHashJoin"
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A partition of a join whose counts and rows don't agree.

    operator, partition:  where it is
    family:   the rows: left- or right-, and the name of their store or column family
    counted:  so many rows are named by the counts
    there:    so many rows are there
    """

    operator: int
    partition: int
    family: str
    counted: int
    there: int

    @property
    def folder(self) -> str:
        """The partition's folder, below the checkpoint."""
        return f"state/{self.operator}/{self.partition}"

    def __str__(self) -> str:
        counts = family_beside_side(self.family)
        if self.counted == self.there:
            return f"{self.family} has other rows than {counts} names."
        return f"{self.family} has {self.there:,} rows, and {counts} names {self.counted:,}."


def join_holes(storage: Storage, batch: CommittedBatch) -> Iterator[Hole]:
    """Each partition of a join that has a hole.  All rows of joins are read; partitions that can't be read are left out.

    Raises:  FILE_GONE, CORRUPT_FILE for the logs and schemas.
    """
    for operator in read_operator_files(storage, batch.batch):
        if operator.name != _JOIN:
            continue
        stores = {store.name: store for store in read_whole_stores(storage, operator)}
        by_family = {family: store for store in stores.values() for family in store.families}
        sides = [family for family in by_family if family.endswith(tuple(BESIDE)) and family_beside_side(family) in by_family]
        for partition in partitions_of(batch, next(iter(stores.values())).files):
            try:
                sums = {f: _Sum() for side in sides for f in (side, family_beside_side(side))}
                for store in stores.values():
                    _add_rows(storage, batch, store, partition, sums)
            except CheckpointError:  # whoever counts the rows says so
                continue
            for side in sides:
                rows, counts = sums[side], sums[family_beside_side(side)]
                if rows != counts:
                    yield Hole(operator=operator.operator, partition=partition, family=side, counted=counts.count, there=rows.count)


@dataclass(slots=True)
class _Sum:
    """So many rows, and a sum of hashes of their keys and places."""

    count: int = 0
    hashes: int = 0

    def add(self, key: bytes, rows: int, places: int) -> None:
        """Rows of a key.

        places:  their sum
        """
        self.count += rows
        self.hashes = (self.hashes + hash((key, 0)) * rows + hash((key, 1)) * places) & _MASK


def _add_rows(storage: Storage, batch: CommittedBatch, store: WholeStore, partition: int, sums: dict[str, _Sum]) -> None:
    state = open_state(storage, batch, store)
    codec = StoreCodec(store, batch.settings, state.numbers)
    here = [f for f in sums if f in store.families and (not store.has_families or codec.has(f))]
    places = {family: _Places(codec.of(family), family) for family in here}
    for key, value in state.iter_rows(partition):
        family = codec.family_of(key)
        if family in places:
            sums[family].add(*places[family].of(key, value))


class _Places:
    """The rows that an entry of a family is, or names.

    of:  the join's key, in format 4 with the time; how many rows; the sum of their places
    """

    def __init__(self, codec: FamilyCodec, family: str) -> None:
        self._codec = codec
        self._is_indexed, self._is_count = family.endswith(INDEXED), family.endswith(COUNTS)
        self._write = encoder(codec.schema.key[:-1] if self._is_indexed else codec.schema.key)

    def of(self, key: bytes, value: bytes) -> tuple[bytes, int, int]:
        columns = self._codec.read_key(key)
        if self._is_indexed:
            return self._write(columns[:-1]), 1, _whole(columns[-1:])
        count = _whole(self._codec.read_row(value)) if self._is_count else len(self._codec.rows_in(value))
        return self._write(columns), count, count * (count - 1) // 2


def _whole(columns: Columns) -> int:
    (found,) = columns
    assert isinstance(found, int), "counts and places are whole numbers"
    return found

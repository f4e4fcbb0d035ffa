"""Partitions with rows of another one: a file of another partition stands in the place of its own.

Each file may be whole; what shows it is Spark's hash of the rows' keys.  Queries whose rows needn't
lie by it aren't looked at, and of transformWithStateInPandas no row with a NULL in its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.partition import hashed_columns
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole.rows import StoreCodec
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError
from millpond.savepoint.rewrite.rewrite import State, open_state
from millpond.savepoint.rewrite.straight import hasher_of, is_straight
from millpond.schema.store import PANDAS_TRANSFORM
from millpond.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """A partition of a store in which a row of another partition lies.

    folder:     the partition's files, below the checkpoint
    belongs_to:  the partition of the first such row
    """

    folder: str
    belongs_to: int

    def __str__(self) -> str:
        return f"It has rows of partition {self.belongs_to}: one of its files is another partition's."


def misplaced_rows(storage: Storage, batch: CommittedBatch) -> Iterator[Misplaced]:
    """Each partition with such rows.  All rows are read; partitions that can't be read are left out.

    Raises:  FILE_GONE, CORRUPT_FILE for the logs and schemas.
    """
    if not batch.settings.is_strict:
        return
    for operator in read_operator_files(storage, batch.batch):
        for store in read_whole_stores(storage, operator):
            if store.is_single:
                continue
            state = open_state(storage, batch, store)
            for partition in partitions_of(batch, store.files):
                try:
                    other = _other_partition(state, batch, store, partition)
                except CheckpointError:  # whoever counts the rows says so
                    continue
                if other is not None:
                    yield Misplaced(folder=store.files.folder(partition), belongs_to=other)


def _other_partition(state: State, batch: CommittedBatch, store: WholeStore, partition: int) -> int | None:
    """The partition of the first key that doesn't belong here; also of keys that a change deletes."""
    count = len(partitions_of(batch, store.files))
    hash_key, may_lie_anywhere = state.hasher(), _NullKeys(state, batch, store)

    def elsewhere(keys: Iterable[bytes]) -> Iterator[int]:
        for key in keys:
            place = hash_key(key) % count
            if place != partition and key not in may_lie_anywhere:
                yield place

    changed = next(elsewhere(state.changed_keys(partition)), None)
    if changed is not None:
        return changed
    if is_straight(batch, batch, store):
        hashes = hasher_of(state, batch, store)
        for chunk in state.iter_chunks(partition):
            places = hashes(chunk.keys) % count
            if (others := places[places != partition]).size:
                return int(others[0])
        return None
    return next(elsewhere(key for key, _ in state.iter_rows(partition)), None)


class _NullKeys:
    """The keys that pandas may have turned into other ones before Spark hashed them."""

    def __init__(self, state: State, batch: CommittedBatch, store: WholeStore) -> None:
        self._store, self._codec = store, StoreCodec(store, batch.settings, state.numbers)

    def __contains__(self, key: bytes) -> bool:
        if self._store.operator.name != PANDAS_TRANSFORM:
            return False
        name = self._codec.family_of(key)
        _, take = hashed_columns(self._store.operator.name, self._store.families[name], self._store.families)
        return None in take(self._codec.of(name).read_key(key))

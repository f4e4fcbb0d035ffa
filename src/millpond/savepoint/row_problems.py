"""Rows of state that can't be read, or that are another partition's: a file stands in the place of another one.

Each file may be whole; what shows it is Spark's hash of the rows' keys.  It isn't asked of queries
whose rows needn't lie by it, and of transformWithStateInPandas for no row with a NULL in its key.
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
class RowProblem:
    """What is wrong with the rows of a partition of a store.

    folder:  the partition's files, below the checkpoint
    what:    is wrong
    error:   why they can't be read; None if they can
    """

    folder: str
    what: str
    error: CheckpointError | None = None

    def __str__(self) -> str:
        return self.what


def row_problems(storage: Storage, batch: CommittedBatch) -> Iterator[RowProblem]:
    """What is wrong with the rows of each store, those that only Spark needs among them.  All rows are read.

    Raises:  FILE_GONE, CORRUPT_FILE for the logs and schemas.
    """
    for operator in read_operator_files(storage, batch.batch):
        for store in read_whole_stores(storage, operator):
            state = open_state(storage, batch, store)
            for partition in partitions_of(batch, store.files):
                folder = store.files.folder(partition)
                try:
                    other = _other_partition(state, batch, store, partition)
                except CheckpointError as error:
                    if error.condition != "UNSUPPORTED":
                        yield RowProblem(folder=folder, what=error.message, error=error)
                    continue
                if other is not None:
                    what = f"It has rows of partition {other}: one of its files is another partition's."
                    yield RowProblem(folder=folder, what=what)


def _other_partition(state: State, batch: CommittedBatch, store: WholeStore, partition: int) -> int | None:
    """The partition of the first key that doesn't belong here; also of keys that a change deletes."""
    count = len(partitions_of(batch, store.files))
    if store.is_single or not batch.settings.is_strict:
        for _ in state.iter_rows(partition):  # only read
            pass
        return None
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

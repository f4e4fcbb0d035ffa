"""Rows of state that can't be read, or that are another partition's: a file stands in the place of another one.

Each file may be whole; what shows it is Spark's hash of the rows' keys.  It isn't asked of queries
whose rows needn't lie by it, and of transformWithStateInPandas for no row with a NULL in its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

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
    is_hashed = batch.settings.is_strict and not store.is_single  # else rows are only read
    if is_straight(batch, batch, store):
        hashes = hasher_of(state, batch, store)
        for keys in state.iter_key_chunks(partition):
            places = hashes(keys) % count if is_hashed else None
            if places is not None and (others := places[places != partition]).size:
                return int(others[0])
        return None
    hash_key, codec = state.hasher(), StoreCodec(store, batch.settings, state.numbers)
    for key in chain(state.changed_keys(partition), (key for key, _ in state.iter_rows(partition))):
        place = hash_key(key) % count if is_hashed else partition
        if place != partition and not _may_lie_anywhere(store, codec, key):
            return place
    return None


def _may_lie_anywhere(store: WholeStore, codec: StoreCodec, key: bytes) -> bool:
    """As `partition.may_lie_anywhere`, for the keys of any family."""
    if store.operator.name != PANDAS_TRANSFORM:
        return False
    name = codec.family_of(key)
    _, take = hashed_columns(store.operator.name, store.families[name], store.families)
    return None in take(codec.of(name).read_key(key))

"""How many rows each partition of a batch has: a full decode of its files."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.checkpoint.bulk.newest import read_newest
from millpond.checkpoint.files.records import DELETE
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.operators import read_each_operator
from millpond.checkpoint.state import StateReader, partitions_of
from millpond.errors import CheckpointError
from millpond.native.memory import Memory
from millpond.schema.store import StoreSchema
from millpond.storage import Storage

PartitionId = tuple[int, str, int]
"""(operator, store, partition)"""


def count_rows(storage: Storage, batch: CommittedBatch) -> Iterator[tuple[PartitionId, int | CheckpointError]]:
    """Each partition of each column family, with its number of keys, or why it can't be read.

    Stores that only Spark needs, and operators that Millpond doesn't know, aren't among them.

    Raises:  nothing for a store that can't be read; FILE_GONE, CORRUPT_FILE for the logs.
    """
    reader, memory = StateReader(storage), Memory()
    stores, _ = read_each_operator(storage, batch.batch)
    for store in stores:
        for partition in partitions_of(batch, store):
            where = (store.operator, store.store, partition)
            try:
                yield where, _count(reader, batch, store, partition, memory)
            except CheckpointError as error:
                yield where, error


def _count(reader: StateReader, batch: CommittedBatch, store: StoreSchema, partition: int, memory: Memory) -> int:
    chunks = read_newest(reader, batch, store, partition, memory)
    if chunks is not None:
        return sum(map(len, chunks))
    keys: set[bytes] = set()
    for kind, key, _ in reader.iter_state(batch, store, partition):
        if kind == DELETE:
            keys.discard(key)
        else:
            keys.add(key)
    return len(keys)

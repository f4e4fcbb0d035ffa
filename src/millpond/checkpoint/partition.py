"""In which partition of a store a key lies: Spark hashes the columns that rows were grouped or joined by."""

from __future__ import annotations

from millpond.checkpoint.rows.unsaferow import Stored
from millpond.schema.murmur import partition_of
from millpond.schema.store import StoreSchema

# Operators whose keys end with a column that isn't hashed: the session's start, a place or a time.
_ENDS_OTHERWISE = frozenset({"sessionWindowStateStoreSaveExec", "symmetricHashJoin"})


def partition_of_key(store: StoreSchema, key: tuple[Stored, ...], partitions: int) -> int:
    """The partition of a key of a store.

    Raises:  as `partition_of`.
    """
    fields = store.key
    if store.variable in ("map", "timer"):  # a struct of the grouping columns stands first
        return partition_of(fields[0].type.fields, key[0], partitions)
    if store.operator_name in _ENDS_OTHERWISE:
        fields, key = fields[:-1], key[:-1]
    return partition_of(fields, key, partitions)

"""In which partition of a store a key lies: Spark hashes the columns that rows were grouped or joined by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millpond.checkpoint.rows.unsaferow import Stored
from millpond.checkpoint.schemas import FamilySchema
from millpond.schema.murmur import partition_of
from millpond.schema.store import PANDAS_TRANSFORM, StoreSchema
from millpond.schema.types import Field

# Operators whose keys end with a column that isn't hashed: the session's start, a place or a time.
_ENDS_OTHERWISE = frozenset({"sessionWindowStateStoreSaveExec", "symmetricHashJoin"})
# A join counts the rows of each key: all columns of these keys are hashed.
_JOIN_COUNTS = "-keyToNumValues"
_TTL = "$ttl_"
Columns = tuple[Stored, ...]


def partition_of_key(store: StoreSchema, key: tuple[Stored, ...], partitions: int) -> int:
    """The partition of a key of a store.

    Raises:  as `partition_of`.
    """
    count = hashed_fields(store)
    return partition_of(store.key[:count], key[:count], partitions)


def hashed_fields(store: StoreSchema) -> int:
    """How many fields of its key, from the first on, Spark hashes."""
    if store.variable in ("map", "timer"):  # a struct of the grouping columns stands first
        return 1
    return len(store.key) - 1 if store.operator_name in _ENDS_OTHERWISE else len(store.key)


def may_lie_anywhere(store: StoreSchema, key: tuple[Stored, ...]) -> bool:
    """Whether a row of this key may lie in any partition.

    If a chunk has a NULL, pandas turns its whole numbers into floats, and Spark hashes these.
    """
    return store.operator_name == PANDAS_TRANSFORM and None in (key[0] if store.variable in ("map", "timer") else key)


def hashed_columns(
    operator_name: str, family: FamilySchema, families: Mapping[str, FamilySchema]
) -> tuple[tuple[Field, ...], Callable[[Columns], Columns]]:
    """The columns of a family's keys that Spark hashes, and a function that takes them from a key.

    This knows the families that only Spark needs as well: counts, timers, expiry.

    family:    named by its store where the store has no families
    families:  all families of the store, by name
    Source:    SymmetricHashJoinStateManager, TimerStateImpl, TTLState, Spark 4.3; every row of the
               golden checkpoints.
    """
    fields = family.key
    if operator_name.startswith("transformWithState"):
        if family.encoder == "plain":
            return fields, _all
        # Of maps and timers a struct of the grouping columns stands first; where a time stands
        # first, it is the second column, for a map together with the map's key.
        place = 0 if family.encoder == "prefix" else 1
        fields = fields[place].type.fields
        of = families.get(family.name.removeprefix(_TTL)) if family.name.startswith(_TTL) else None
        if of is not None and of.encoder == "prefix":
            return fields[0].type.fields, lambda key: key[place][0]
        return fields, lambda key: key[place]
    if operator_name in _ENDS_OTHERWISE and not family.name.endswith(_JOIN_COUNTS):
        return fields[:-1], lambda key: key[:-1]
    return fields, _all


def _all(key: Columns) -> Columns:
    return key

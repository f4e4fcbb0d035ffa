"""Values to group by, each with a partition of its own.

Spark sends a row to a partition by the hash of its group, and small numbers collide: of two
partitions, 0 and 1 get the same one.
"""

from __future__ import annotations

from itertools import count

from millpond.errors import RequestError
from millpond.schema.murmur import partition_of
from millpond.schema.types import Field, atomic

SHARD = "shard"
"""The column to group by."""
_COLUMN = (Field(SHARD, atomic("integer")),)


def shard_values(shards: int, partitions: int) -> tuple[int, ...]:
    """The smallest whole numbers from 0 on with different partitions; they depend on the arguments alone.

    Shape:   one for each shard, ascending; 32 bits in Spark
    Raises:  INVALID_REQUEST if there is no shard, or not a partition for each.
    """
    if type(shards) is not int or type(partitions) is not int or not 1 <= shards <= partitions:
        raise RequestError(
            "INVALID_REQUEST",
            f"{shards!r} shards can't each have one of {partitions!r} partitions.",
            hint="Use whole numbers: at least one shard, and at most as many as the state has partitions.",
            shards=shards,
            partitions=partitions,
        )
    values: dict[int, int] = {}
    for value in count():
        values.setdefault(partition_of(_COLUMN, (value,), partitions), value)
        if len(values) == shards:
            return tuple(sorted(values.values()))
    raise AssertionError("count never ends")

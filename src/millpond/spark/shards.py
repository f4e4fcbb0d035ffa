"""Values to group by so that each has a partition of its own.

Spark sends a row to the partition that its group's hash names, and small numbers collide: of 0 and 1 both fall into one of two
partitions.
"""

from __future__ import annotations

from itertools import count

from millpond.errors import RequestError
from millpond.schema.murmur import partition_of
from millpond.schema.types import Field, atomic

_COLUMN = (Field("shard", atomic("integer")),)


def shard_values(shards: int, partitions: int) -> tuple[int, ...]:
    """The smallest whole numbers from 0 on whose partitions all differ; always the same for the same two numbers.

    Shape:   one for each shard, ascending; 32 bits in Spark
    Raises:  INVALID_REQUEST where there is no shard, or not a partition for each.
    """
    if not 1 <= shards <= partitions:
        raise RequestError(
            "INVALID_REQUEST",
            f"{shards} shards can't each have one of {partitions} partitions.",
            hint="Use at least one shard, and at most as many as the state has partitions.",
            shards=shards,
            partitions=partitions,
        )
    values: dict[int, int] = {}
    for value in count():
        values.setdefault(partition_of(_COLUMN, (value,), partitions), value)
        if len(values) == shards:
            return tuple(sorted(values.values()))
    raise AssertionError("count never ends")

"""Values to group by, each with a partition of its own, and which of them a row gets.

Spark sends a row to a partition by the hash of its group, and small numbers collide: of two
partitions, 0 and 1 get the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from millpond.errors import RequestError
from millpond.schema.murmur import partition_of
from millpond.schema.types import Field, atomic

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType, StructType

SHARD = "shard"
"""The column to group by."""
_COLUMN = (Field(SHARD, atomic("integer")),)


def pick_shards(spark: SparkSession, shards: int | None, partitions: int | None) -> tuple[int, ...]:
    """The values of a job's shards.

    shards:      None for one per core, or one per partition if there are fewer of these
    partitions:  None for as many as shards
    Raises:      INVALID_REQUEST.
    """
    if shards is None:
        cores = int(spark.sparkContext.defaultParallelism)
        shards = min(partitions, cores) if isinstance(partitions, int) else cores
    return shard_values(shards, shards if partitions is None else partitions)


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


def place_of(names: Iterable[str], parts: int) -> Column:
    """The part of a row among so many, from 0.

    It is a hash of the row's columns, never a random number: with that, a task that runs again
    would choose other parts.
    """
    from pyspark.sql import functions as F

    columns = [F.col(quoted(name)) for name in names]
    return F.pmod(F.xxhash64(*columns), F.lit(parts)).cast("int")


def quoted(name: str) -> str:
    """A column's name quoted for Spark's expressions."""
    return "`" + name.replace("`", "``") + "`"


def shard_of(names: Iterable[str], values: Sequence[int]) -> Column:
    """The shard of a row."""
    from pyspark.sql import functions as F

    return F.element_at(F.array(*[F.lit(value) for value in values]), place_of(names, len(values)) + 1)


def unhashable(schema: StructType, names: Iterable[str]) -> list[str]:
    """Those of the columns that Spark can't hash: maps, variants, and types that contain one."""
    return [name for name in names if _holds_unhashable(schema[name].dataType)]


def _holds_unhashable(type_: DataType) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(type_, ArrayType):
        return _holds_unhashable(type_.elementType)
    if isinstance(type_, StructType):
        return any(_holds_unhashable(field.dataType) for field in type_.fields)
    return type_.typeName() in ("map", "variant")

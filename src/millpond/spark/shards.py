"""Values to group by so that each has a partition of its own, and which of them a row goes to.

Spark sends a row to the partition that its group's hash names, and small numbers collide: of 0 and 1 both fall into one of two
partitions.
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
"""The column that is grouped by."""
_COLUMN = (Field(SHARD, atomic("integer")),)


def pick_shards(spark: SparkSession, shards: int | None, partitions: int | None) -> tuple[int, ...]:
    """The values of a job's shards.

    shards:      None for one a core, or a partition where these are fewer
    partitions:  None for as many as shards
    Raises:      INVALID_REQUEST.
    """
    if shards is None:
        cores = int(spark.sparkContext.defaultParallelism)
        shards = min(partitions, cores) if isinstance(partitions, int) else cores
    return shard_values(shards, shards if partitions is None else partitions)


def shard_values(shards: int, partitions: int) -> tuple[int, ...]:
    """The smallest whole numbers from 0 on whose partitions all differ; always the same for the same two numbers.

    Shape:   one for each shard, ascending; 32 bits in Spark
    Raises:  INVALID_REQUEST where there is no shard, or not a partition for each.
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
    """Which of so many parts a row goes to, from 0.

    A hash of its columns, never a random number, by which a task that is tried again would send it elsewhere.
    """
    from pyspark.sql import functions as F

    columns = [F.col(quoted(name)) for name in names]
    return F.pmod(F.xxhash64(*columns), F.lit(parts)).cast("int")


def quoted(name: str) -> str:
    """A column's name as Spark's expressions take it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def shard_of(names: Iterable[str], values: Sequence[int]) -> Column:
    """Which of these shards a row goes to."""
    from pyspark.sql import functions as F

    return F.element_at(F.array(*[F.lit(value) for value in values]), place_of(names, len(values)) + 1)


def unhashable(schema: StructType, names: Iterable[str]) -> list[str]:
    """Those of the columns that Spark has no hash of: maps, variants, and what holds one."""
    return [name for name in names if _holds_unhashable(schema[name].dataType)]


def _holds_unhashable(type_: DataType) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(type_, ArrayType):
        return _holds_unhashable(type_.elementType)
    if isinstance(type_, StructType):
        return any(_holds_unhashable(field.dataType) for field in type_.fields)
    return type_.typeName() in ("map", "variant")

"""How many shards a job has, and which of them a row gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millpond.schema.shards import shard_values

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType, StructType


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

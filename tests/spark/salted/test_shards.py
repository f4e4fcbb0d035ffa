"""Every shard has a partition of its own, by Spark's own count; a row's columns decide its shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType, VariantType

from millpond.errors import RequestError
from millpond.schema.shards import shard_values
from millpond.spark.shards import pick_shards, place_of, shard_of, unhashable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("shards", "partitions"), [(1, 1), (2, 2), (3, 7), (8, 8), (64, 64), (64, 200)])
def test_no_two_shards_meet(shards: int, partitions: int) -> None:
    values = shard_values(shards, partitions)
    assert len(values) == shards
    assert values == tuple(sorted(set(values)))
    assert values == shard_values(shards, partitions)


@pytest.mark.parametrize(("shards", "partitions"), [(0, 4), (-1, 4), (5, 4)])
def test_shards_that_cant_be(shards: int, partitions: int) -> None:
    with pytest.raises(RequestError) as refused:
        shard_values(shards, partitions)
    assert refused.value.condition == "INVALID_REQUEST"


def test_what_spark_cant_hash_is_found_by_its_type_and_not_by_a_name() -> None:
    tags, json, text = MapType(StringType(), LongType()), VariantType(), StringType()
    schema = StructType(
        [
            StructField("tags", tags),
            StructField("json", json),
            StructField("deep", ArrayType(StructType([StructField("a", ArrayType(json))]))),
            StructField("a", StructType([StructField("variant", text)])),
            StructField("map<", text),
        ]
    )
    assert unhashable(schema, schema.names) == ["tags", "json", "deep"]
    assert unhashable(schema, ["a", "json"]) == ["json"]


def test_a_row_goes_where_its_columns_say(spark: SparkSession) -> None:
    rows = [(n, f"text {n % 5}") for n in range(100)] * 2
    df = spark.createDataFrame(rows, "`a.b` long, `c``d` string")
    values = shard_values(3, 7)
    placed = df.select("*", place_of(df.columns, 3).alias("place"), shard_of(df.columns, values).alias("shard")).collect()
    assert len({tuple(row) for row in placed}) == 100
    assert {row.place for row in placed} == {0, 1, 2}
    assert all(row.shard == values[row.place] for row in placed)
    by_one = df.select("*", place_of(["c`d"], 3).alias("place")).collect()
    assert len({(row["c`d"], row.place) for row in by_one}) == 5


def test_shards_that_nobody_chose_are_as_many_as_cores_or_partitions(spark: SparkSession) -> None:
    cores = spark.sparkContext.defaultParallelism
    assert pick_shards(spark, None, None) == shard_values(cores, cores)
    assert pick_shards(spark, None, 1) == shard_values(1, 1)
    assert pick_shards(spark, None, cores + 5) == shard_values(cores, cores + 5)
    assert pick_shards(spark, 3, None) == shard_values(3, 3)
    for shards, partitions in [(0, None), (2, 1), (None, 0), (1, 0), (None, "2"), (None, True)]:
        with pytest.raises(RequestError) as refused:
            pick_shards(spark, shards, partitions)
        assert refused.value.condition == "INVALID_REQUEST"

"""The partition of a key, by which shards and routers find rows, is the one into which Spark's own shuffle puts it."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from millpond.schema.convert import to_stored
from millpond.schema.murmur import row_hasher
from millpond.schema.types import SparkType, parse_fields
from suite.sizes import IS_EVERY, IS_LONG, a_few

pytestmark = pytest.mark.spark
ROWS = 1_000_000 if IS_EVERY else 100_000 if IS_LONG else 2_000
PARTITIONS = 199 if IS_LONG else 31
# Of a random whole number `h` of 64 bits; each seventh value is NULL.
KEYS = {
    "boolean": "h % 2 = 0",
    "byte": "cast(h % 128 as tinyint)",
    "short": "cast(h % 32768 as smallint)",
    "int": "cast(h % 2147483648 as int)",
    "long": "h",
    "float": "cast(h / 1e12 as float)",
    "double": "h / 1e9D",
    "decimal(9,2)": "cast(cast(h % 1000000 as decimal(20,0)) / 100 as decimal(9,2))",
    "decimal(38,10)": "cast(cast(h as decimal(30,0)) / 7 as decimal(38,10))",
    "text": "concat('k', cast(h as string))",
    "texts of every length": "substr(repeat(concat('äß☃😀', cast(h as string)), 3), 1, abs(h) % 40)",
    "binary": "unhex(hex(h))",
    "date": "date_add(date'1970-01-01', cast(h % 100000 as int))",
    "timestamp": "timestamp_micros(h % 4102444800000000)",
    "timestamp_ntz": "cast(timestamp_micros(h % 4102444800000000) as timestamp_ntz)",
    "interval": "make_dt_interval(0, 0, 0, cast(h % 1000000 as decimal(18,6)) / 1000)",
    "struct": "named_struct('a', h % 100, 'b', concat('x', cast(h as string)), 'c', cast(null as int))",
    "array": "array(cast(h % 1000 as int), null, cast(h % 7 as int))",
    "text, long": "concat('k', cast(h % 1000 as string)), h % 97",
    "window, text": "window(timestamp_micros(abs(h) % 4102444800000000), '5 minutes'), concat('k', cast(h % 100 as string))",
}


@pytest.mark.parametrize("name", a_few(KEYS, 6))
def test_a_key_lies_where_spark_puts_it(spark: Any, name: str) -> None:
    from pyspark.sql import functions as F

    whole = spark.range(ROWS, numPartitions=2).select(F.xxhash64("id", F.lit(name)).alias("h"))
    keys = _columns(KEYS[name])
    frame = whole.selectExpr(*(f"{key} as k{place}" for place, key in enumerate(keys)))
    if len(keys) == 1:
        frame = frame.select(F.when(F.rand(7) > 1 / 7, F.col("k0")).alias("k0"))
    placed = frame.repartition(PARTITIONS, *frame.columns).withColumn("partition", F.spark_partition_id())
    fields = parse_fields(json.loads(frame.schema.json()))
    hashed, converters = row_hasher(fields), [to_stored(field.type) for field in fields]
    partitions: set[int] = set()
    rows = placed.collect()
    for *values, partition in rows:
        key = tuple(convert(_aware(field.type, value)) for field, convert, value in zip(fields, converters, values, strict=True))
        assert hashed(key) % PARTITIONS == partition, (name, key)
        partitions.add(partition)
    assert len(rows) == ROWS
    assert len(partitions) > (1 if name == "boolean" else PARTITIONS // 2)


def _aware(type_: SparkType, value: Any) -> Any:
    """A value as Millpond takes it: PySpark's times are without a zone, in the machine's own."""
    if type_.kind == "struct" and value is not None:
        return {field.name: _aware(field.type, value[field.name]) for field in type_.fields}
    return value.astimezone(dt.UTC) if type_.kind == "timestamp" and value is not None else value


def _columns(expressions: str) -> list[str]:
    """The expressions of several columns, divided by commas that aren't in parentheses."""
    found, depth = [""], 0
    for character in expressions:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return found

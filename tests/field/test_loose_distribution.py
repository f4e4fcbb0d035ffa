"""Rows that are partitioned by a part of their key: Spark allows it to queries that were begun before its version 3.3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.checkpoint.operators import read_each_operator
from millpond.checkpoint.partition import partition_of_key
from millpond.checkpoint.position import Batch
from millpond.storage import open_storage
from millpond.tables.cold.table import read_row
from oracles.ends import condition_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
PARTITIONS = 5


@pytest.mark.parametrize("provider", ["HDFSBacked", pytest.param("RocksDB", marks=pytest.mark.long)])
def test_rows_are_found_wherever_they_lie_and_nothing_is_divided_anew(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    own, checkpoint = spark.newSession(), tmp_path / "checkpoint"
    own.conf.set(STRICT, "false")
    own.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    own.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        f"org.apache.spark.sql.execution.streaming.state.{provider}StateStoreProvider",
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.json").write_text("\n".join(json.dumps({"a": n % 4, "b": n}) for n in range(24)))
    rows = own.readStream.schema("a int, b int").json(str(tmp_path / "in")).repartition(PARTITIONS, "a").groupBy("a", "b").count()
    query = rows.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.foreachBatch(lambda batch, _number: batch.collect()).start().awaitTermination()
    there = own.read.format("statestore").load(str(checkpoint)).select("key.a", "key.b", "partition_id").collect()
    assert len(there) == 24
    with millpond.open(checkpoint, replica_dir=tmp_path / "home") as pond:
        (table,) = pond.tables()
        for row in there:
            assert pond[table].get(a=row["a"], b=row["b"]) is not None
    for row in there:
        assert read_row(checkpoint, table, {"a": row["a"], "b": row["b"]})["count"] == 1
    assert not read_row(checkpoint, table, {"a": 0, "b": 1})
    schema = read_each_operator(open_storage(checkpoint), Batch(0))[0][0]
    moved = [r for r in there if partition_of_key(schema, (r["a"], r["b"]), PARTITIONS) != r["partition_id"]]
    assert len(moved) > 10, "Spark partitions by a alone"
    assert condition_of(lambda: millpond.plan_rescale(checkpoint, partitions=3, to=tmp_path / "to").run()) == "UNSUPPORTED"
    assert (
        condition_of(lambda: millpond.open(checkpoint, replica_dir="memory://", shard="1/2", wait_seconds=1).tables())
        == "UNSUPPORTED"
    )

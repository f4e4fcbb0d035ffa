"""The buffers with which Spark begins a group: compared with those of groups from which a filter keeps every row away."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millpond.checkpoint.log import read_batch
from millpond.checkpoint.operators import read_each_operator
from millpond.checkpoint.position import Batch
from millpond.checkpoint.rows.unsaferow import decoder
from millpond.checkpoint.state import StateReader
from millpond.spark.derive.batch_plan import batch_plan
from millpond.spark.derive.plan import elements, fields_of, find_stateful
from millpond.spark.derive.start_values import start_values
from millpond.storage import open_storage
from spark.derive.test_aggregate_functions import FUNCTIONS, SCHEMA, random_rows, template_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An expression over an aggregate, a filter where SQL has none, and one that is no SQL.
_NO_FILTER = ("if(", "size(", "product(", "last({v}) IGNORE", "hll_sketch_estimate(", "theta_sketch_estimate(", "kll_sketch_get_")


@pytest.mark.long
def test_start_values_are_those_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as sf

    draw = random.Random(20261123)
    texts = [
        text.format(**template_values(draw)) for group in FUNCTIONS.values() for text in group if not text.startswith(_NO_FILTER)
    ]
    texts += ["count(*)", "count(i)", "approx_count_distinct(i)", "approx_count_distinct(s, 0.1)"]
    spark.createDataFrame(random_rows(draw, 0), SCHEMA).coalesce(1).write.parquet(str(tmp_path / "in"))
    schema = spark.read.parquet(str(tmp_path / "in")).schema
    events = spark.readStream.schema(schema).parquet(str(tmp_path / "in")).selectExpr("*", "make_ym_interval(0, months) AS ym")
    nothing = [sf.expr(f"{text} FILTER (WHERE i > 1000000)").alias(f"c{n}") for n, text in enumerate(texts)]
    df = events.groupBy("k").agg(*nothing)
    plan = batch_plan(spark._jsparkSession, spark._jvm, df._jdf.queryExecution().analyzed(), time_zone="UTC").plan
    found = find_stateful(plan, append=False)
    assert found is not None
    aggregates = elements(spark._jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation.unapply(found.node).get()._2())
    expected = [value for values in start_values(aggregates, spark._jvm) for value in values]
    fields = fields_of(a for aggregate in aggregates for a in elements(aggregate.aggregateFunction().aggBufferAttributes()))
    writer = df.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    storage = open_storage(tmp_path / "checkpoint")
    batch = read_batch(storage, Batch(0))
    ((store,), _) = read_each_operator(storage, batch.batch)
    rows = [row for partition in range(2) for _, _, row in StateReader(storage).iter_state(batch, store, partition)]
    assert len(rows) > 5
    for row in rows:
        assert row is not None
        different = [
            (field.name, was, is_)
            for field, was, is_ in zip(fields, decoder(fields)(row), expected, strict=True)
            if repr(was) != repr(is_)
        ]
        assert different == []

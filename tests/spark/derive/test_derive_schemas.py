"""A definition expects exactly the types of the rows that Spark keeps, for every kind of state."""

from __future__ import annotations

import contextlib
import warnings

import pytest

from millpond.schema.types import parse_fields, parse_type
from millpond.spark import MillpondWarning, define, start
from millpond.tables.finish.definition import compile_definition
from suite.sizes import a_few


@pytest.fixture
def events(spark, tmp_path):
    """A stream of two files with a time, a key and a number."""
    folder = str(tmp_path / "events")
    for minute in (0, 1):
        rows = spark.range(20).selectExpr(
            f"timestamp_seconds(1700000000 + 60 * {minute} + id) AS t", "concat('k', id % 3) AS k", "id AS n"
        )
        rows.coalesce(1).write.mode("append").parquet(folder)
    return spark.readStream.schema("t timestamp, k string, n long").option("maxFilesPerTrigger", 1).parquet(folder)


def state_schema(spark, definition, checkpoint):
    frame = spark.read.format("statestore").option("operatorId", definition.operator).load(checkpoint)
    key, value = (parse_fields(frame.schema[name].dataType.jsonValue()) for name in ("key", "value"))
    return tuple(f.type for f in key), tuple(f.type for f in value)


def session_windows(events):
    from pyspark.sql import functions as F

    windows = events.withWatermark("t", "1 day").groupBy("k", F.session_window("t", "5 seconds"))
    return windows.agg(F.count("*").alias("count"), F.collect_list("n").alias("all"))


def deduplicated(events):
    return events.dropDuplicates(["k", "n"])


def deduplicated_within(events):
    return events.withWatermark("t", "1 hour").dropDuplicatesWithinWatermark(["k"])


def limited(events):
    return events.limit(5)


def aggregated_before_a_sort(events):
    return events.groupBy("k").count().orderBy("count").limit(2)


@pytest.mark.parametrize(
    ("query", "output_mode"),
    a_few(
        [
            (session_windows, "append"),
            (deduplicated, "append"),
            (deduplicated_within, "append"),
            (limited, "append"),
            (aggregated_before_a_sort, "complete"),
        ],
        2,
    ),
)
def test_definitions_have_the_schema_of_their_state(spark, events, tmp_path, query, output_mode):
    is_raw = query is aggregated_before_a_sort
    with (
        pytest.warns(MillpondWarning) if is_raw else contextlib.nullcontext(),
        start(query(events), table="t", pond=tmp_path, trigger="available-now", output_mode=output_mode, partitions=2) as job,
    ):
        assert job.wait_for_end(60)
    key, value = state_schema(spark, job.definition, job.checkpoint)
    assert tuple(f.type for f in job.definition.key_schema) == key
    assert tuple(f.type for f in job.definition.value_schema) == value


def test_the_older_format_keeps_the_key_in_the_value_and_the_checkpoint_says_so(spark, events, tmp_path):
    setting = "spark.sql.streaming.aggregation.stateFormatVersion"
    frame = events.groupBy("k").agg({"n": "max"}).withColumnRenamed("max(n)", "high")
    spark.conf.set(setting, "1")
    try:
        with start(frame, table="t", pond=tmp_path, trigger="available-now", partitions=2) as job:
            assert job.wait_for_end(60)
    finally:
        spark.conf.unset(setting)
    # The session's setting is 2 again, but the checkpoint's counts.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = define(frame, job.checkpoint, table="t", pond=None)
    assert again == job.definition
    key, value = state_schema(spark, again, job.checkpoint)
    assert tuple(f.type for f in again.key_schema) == key
    # Spark's reader shows the value without the key in it.
    assert tuple(f.type for f in again.value_schema)[-len(value) :] == value
    assert [f.type for f in again.value_schema] == [parse_type("string"), parse_type("long")]
    assert compile_definition(again)(("k1",), ("k1", 7)) == {"k": "k1", "high": 7}


def test_a_session_has_every_setting_with_its_reason_and_can_be_told_otherwise(spark):
    from millpond.spark.session import SETTINGS

    for key, setting in SETTINGS.items():
        assert spark.conf.get(key) == setting.value
        assert setting.reason.endswith(".")
    # The fixture's session has its own settings, too.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"

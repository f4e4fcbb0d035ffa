"""A name in a query means one column only; the oracle is what Spark itself emits under that name."""

from __future__ import annotations

import warnings

import pytest
from pyspark.sql import functions as F

from millpond.spark import MillpondWarning, define, derive, start
from millpond.tables.finish.definition import compile_definition
from oracles.emitted import Emitted, bits
from spark.derive.test_derive_finish import state_rows
from suite.sizes import a_few

ROWS = [("a", 1, "2024-01-01 10:00:00"), ("b", 2, "2024-01-01 10:30:00"), ("a", 3, "2024-01-01 12:10:00")]


@pytest.fixture(scope="module")
def events(spark, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("events"))
    for part in (ROWS[:2], ROWS[2:]):
        frame = spark.createDataFrame(part, "k string, i int, t string").selectExpr("k", "i", "timestamp(t) AS t")
        frame.coalesce(1).write.mode("append").parquet(folder)
    return spark.readStream.schema("k string, i int, t timestamp").option("maxFilesPerTrigger", 1).parquet(folder)


def hour(events, *more):
    return events.groupBy(F.window("t", "1 hour"), *more)


# A function over an aggregate, whose result Millpond doesn't compute.
UNKNOWN = "xpath_string(concat('<a>', max({}), '</a>'), 'a')"

# Name -> the query, and the columns of its table.
CASES = {
    "a raw buffer beside a user's column of that name": (
        lambda e: e.groupBy("k").agg(F.expr(UNKNOWN.format("i")).alias("m"), F.max("i").alias("m_max")),
        ("k", "stored_m_max", "m_max"),
    ),
    "a raw buffer beside a user's column of our name": (
        lambda e: e.groupBy("k").agg(F.expr(UNKNOWN.format("i")).alias("m"), F.sum("i").alias("stored_m_max")),
        ("k", "stored_m_max_2", "stored_m_max"),
    ),
    "a key that the query changes": (
        lambda e: e.groupBy("k").agg(F.sum("i").alias("n")).withColumn("k", F.expr("xpath_string(concat('<a>', k, '</a>'), 'a')")),
        ("stored_k", "n"),
    ),
    "a key under another name, and its name for something else": (
        lambda e: e.groupBy("k").agg(F.sum("i").alias("n")).selectExpr("k AS name", "n AS k"),
        ("name", "k"),
    ),
    "a key that isn't selected, and its name for something else": (
        lambda e: e.groupBy("k").agg(F.sum("i").alias("n")).selectExpr("n AS k", "n + 1 AS stored_k"),
        ("stored_k_2", "k", "stored_k"),
    ),
    "a key that isn't selected": (lambda e: e.groupBy("k").agg(F.sum("i").alias("n")).select("n"), ("k", "n")),
    "values called like a window's members": (
        lambda e: hour(e).agg(F.sum("i").alias("window_start"), F.max("k").alias("window_end")),
        ("window_start_2", "window_end_2", "window_start", "window_end"),
    ),
    "a key called window_start": (
        lambda e: hour(e, F.col("k").alias("window_start")).agg(F.sum("i").alias("n")),
        ("window_start_2", "window_end", "window_start", "n"),
    ),
    "a key called window": (
        lambda e: hour(e, F.col("k").alias("window")).count(),
        ("window_start", "window_end", "window", "count"),
    ),
    "a value called window": (lambda e: hour(e).agg(F.sum("i").alias("window")), ("window_start", "window_end", "window")),
    "a value called window_end, selected first": (
        lambda e: hour(e).agg(F.sum("i").alias("window_end")).select("window_end", "window"),
        ("window_start", "window_end_2", "window_end"),
    ),
    "members of the window under each other's names": (
        lambda e: hour(e).agg(F.sum("i").alias("n")).selectExpr("window.end AS window_start", "window.start AS window_end", "n"),
        ("window_end", "window_start", "n"),
    ),
    "columns of one name": (
        lambda e: e.groupBy("k").agg(F.sum("i").alias("n"), F.max("i").alias("n_2")).selectExpr("k", "n", "n_2 + 1 AS n", "n_2"),
        ("k", "n", "n_3", "n_2"),
    ),
    "a map as key": (lambda e: e.withColumn("m", F.create_map("k", "i")).groupBy("m").count(), ("m", "count")),
    "a computed map as key": (lambda e: e.groupBy(F.create_map("k", "i").alias("pairs")).count(), ("pairs", "count")),
    "a map as key, not selected": (
        lambda e: e.withColumn("m", F.create_map("k", "i")).groupBy("m").count().select("count"), ("stored_key", "count"),
    ),
    "a raw table": (
        lambda e: e.groupBy("k").agg(F.max("i").alias("sum"), F.sum("i").alias("max")).where("rand() * 0 < 1"),
        ("k", "stored_max", "stored_sum"),
    ),
    "a raw table whose key has another meaning": (
        lambda e: e.groupBy("k").agg(F.max("i").alias("n")).selectExpr("upper(k) AS k", "n AS stored_max").where("rand() * 0 < 1"),
        ("stored_k", "stored_max_2"),
    ),
    "a session beside its own names": (
        lambda e: e.withWatermark("t", "1 day").groupBy(F.session_window("t", "1 minute"), F.col("k").alias("session_window_start"))
        .agg(F.sum("i").alias("session_start")),
        ("session_window_start", "session_window_start_2", "session_window_end", "session_start"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", a_few(CASES, 2))
def test_a_name_of_the_query_stands_for_what_spark_shows_under_it(spark, events, tmp_path, name):
    build, columns = CASES[name]
    frame, emitted = build(events), Emitted()
    mode = "append" if "session" in name else "update"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MillpondWarning)
        job = start(frame, table="t", pond=tmp_path, trigger="available-now", sink=emitted, output_mode=mode, partitions=2)
    with job:
        assert job.wait_for_end(120)
    definition = job.definition
    assert definition.columns == columns
    users = {n: i for i, n in reversed(list(enumerate(frame.columns)))}
    finish = compile_definition(definition)
    finished = [row for row in (finish(*row) for row in state_rows(spark, definition, job.checkpoint)) if row is not None]
    shared = tuple(n for n in columns if n in users)
    if not shared or mode == "append" or len(users) < len(frame.columns):
        return
    # Spark's batch result of the same rows, for the names that it shows.
    rows = spark.createDataFrame(ROWS, "k string, i int, t string").withColumn("t", F.to_timestamp("t"))
    emitted(build(rows), -1)
    assert as_shown(finished, shared) == as_shown(emitted.frames[-1], shared)


def as_shown(rows, names):
    return sorted(repr([bits(row[name]) for name in names]) for row in rows)


@pytest.mark.parametrize("name", a_few(CASES, 2))
def test_start_and_define_give_the_same_names(events, tmp_path, name):
    build, columns = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MillpondWarning)
        assert derive(build(events), table="t").columns == columns
        assert define(build(events), tmp_path / "checkpoint", table="t").columns == columns

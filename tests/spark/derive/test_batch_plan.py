"""A definition comes from the plan of a micro-batch, also if the query asks for the time.

The oracle is the running query: the plan of its last batch, and the rows that it emitted.
"""

from __future__ import annotations

import warnings

import pytest

from millpond.spark import MillpondWarning, define, derive, publish, start
from millpond.spark.derive.plan import Zones, elements, find_stateful, zone_of_session
from millpond.spark.derive.state_words import StateWords
from millpond.tables.finish.definition import compile_definition
from oracles.emitted import Emitted, by_key
from spark.derive.test_derive_finish import state_rows
from suite.sizes import a_few

FIRST = [("a", 1, 100, "2024-01-01 10:00:00"), ("b", 2, 200, "2024-01-01 23:30:00")]
SECOND = [("a", 3, 300, "2024-01-02 03:00:00")]
SCHEMA = "k string, i int, l long, t timestamp"


@pytest.fixture(scope="module")
def events(spark, tmp_path_factory):
    """A stream of two files: a and b, then a again."""
    folder = str(tmp_path_factory.mktemp("events"))
    for rows in (FIRST, SECOND):
        frame = spark.createDataFrame(rows, "k string, i int, l long, t string").selectExpr("k", "i", "l", "timestamp(t) AS t")
        frame.coalesce(1).write.mode("append").parquet(folder)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)


def grouped(events, *keys, **aggregates):
    from pyspark.sql import functions as F

    return events.groupBy(*keys).agg(*[F.expr(sql).alias(name) for name, sql in aggregates.items()])


def swapped(events):
    return grouped(events, "k", small="sum(i)", large="sum(l)").selectExpr("k", "large", "small", "current_timestamp() AS at")


def swapped_by_now(events):
    return grouped(events, "k", small="sum(i)", large="sum(l)").selectExpr("k", "large", "small", "now() AS at")


def filtered(events):
    return grouped(events, "k", n="count(*)").selectExpr("*", "current_date() AS day").where("k = 'a'")


def filtered_by_the_date(events):
    return grouped(events, "k", n="count(*)").where("current_date() > date'2020-01-01'")


def by_date(events):
    from pyspark.sql import functions as F

    return grouped(events, F.current_date().alias("day"), "k", n="count(*)", total="sum(l)")


def by_date_below(events):
    return grouped(events.selectExpr("*", "current_date() AS day"), "day", "k", n="count(*)", total="sum(l)")


def by_now(events):
    from pyspark.sql import functions as F

    return grouped(events, F.expr("now()").alias("at"), "k", n="count(*)", total="sum(i)")


def local_time(events):
    frame = grouped(events, "k", small="sum(i)", large="sum(l)", n="count(*)")
    return frame.selectExpr("n", "localtimestamp() AS at", "large", "k AS key", "small", "date(current_timestamp()) AS day")


def time_in_an_input(events):
    return grouped(events, "k", late="sum(if(t < now(), l, 0))", n="count(*)", again="sum(if(t < now(), l, 0)) + 1")


def time_of_the_row(events):
    """Below the aggregation, the time is an ordinary value."""
    return grouped(events.selectExpr("*", "current_timestamp() AS at"), "k", seen="max(at)", n="count(*)", total="sum(l)")


def special_times(events):
    return grouped(events, "k", small="sum(i)", large="sum(l)").selectExpr("k", "large", "cast('today' AS date) AS d", "small")


def by_an_expression(events):
    from pyspark.sql import functions as F

    return grouped(events, F.upper("k").alias("k"), n="count(*)", total="sum(i + l)", big="max(l) FILTER (WHERE i > 1)")


QUERIES = [
    swapped, swapped_by_now, filtered, filtered_by_the_date, by_date, by_date_below, by_now, local_time, time_in_an_input,
    time_of_the_row, special_times, by_an_expression,
]  # fmt: skip
LEFT_OUT = {
    swapped: {"at": "current_timestamp"}, swapped_by_now: {"at": "now"}, filtered: {"day": "current_date"},
    by_now: {"at": "now"}, local_time: {"at": "localtimestamp", "day": "current_timestamp"}, special_times: {"d": "cast"},
}  # fmt: skip


def meaning_of_last_batch(spark, query):
    """The meaning of the state, from the plan that Spark ran."""
    plan = query._jsq.streamingQuery().lastExecution().optimizedPlan()
    found = find_stateful(plan, append=False)
    parts = spark._jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation.unapply(found.node).get()
    words = StateWords(found.node, Zones(spark._jvm), zone_of_session(spark._jsparkSession))
    return words.of_state(elements(parts._1()), elements(parts._2()))


def without_times(words):
    """The meaning without the batch's own time, a literal in the plan that ran."""
    return tuple(word for word in words if not word.startswith(("timestamp ", "date ", "the time of the batch")))


@pytest.mark.parametrize("query", a_few(QUERIES, 1), ids=lambda q: q.__name__)
def test_the_columns_are_those_that_spark_emits(spark, events, tmp_path, query):
    frame, emitted = query(events), Emitted()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job = start(frame, table="t", pond=tmp_path, trigger="available-now", sink=emitted, partitions=2)
    with job:
        assert job.wait_for_end(120)
    definition = job.definition
    ran = meaning_of_last_batch(spark, job.query)
    # In an input, the time is a different literal in each batch.
    if query not in (time_in_an_input, time_of_the_row):
        assert definition.meaning.aggregates == ran.aggregates
    assert len(definition.meaning.aggregates) == len(ran.aggregates)
    assert without_times(definition.meaning.grouping) == without_times(ran.grouping)
    warned = " ".join(str(w.message) for w in caught if issubclass(w.category, MillpondWarning))
    if query is filtered_by_the_date:
        assert "current_date" in warned
        assert definition.columns == ("k", "stored_count")
        return
    left_out = LEFT_OUT.get(query, {})
    for name, why in left_out.items():
        assert f"{name!r}" in warned
        assert why in warned
    assert set(frame.columns) - set(left_out) == set(definition.columns)
    finish = compile_definition(definition)
    finished = [row for row in (finish(*row) for row in state_rows(spark, definition, job.checkpoint)) if row is not None]
    key = tuple(c.name for c in definition.key)
    newest = {}
    for batch in sorted(emitted.frames):
        newest.update(by_key([{n: row[n] for n in definition.columns} for row in emitted.frames[batch]], key))
    assert by_key(finished, key) == newest


@pytest.mark.parametrize("query", a_few(QUERIES, 2), ids=lambda q: q.__name__)
def test_the_three_doors_say_the_same_and_a_restart_is_no_change(spark, events, tmp_path, query):
    frame = query(events)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MillpondWarning)
        first = start(frame, table="t", pond=tmp_path / "pond", trigger="available-now", partitions=2)
        with first:
            assert first.wait_for_end(120)
        published = publish(first.query, table="t", pond=tmp_path / "published")
        defined = define(frame, first.checkpoint, table="t", pond=tmp_path / "defined")
        assert first.definition == derive(frame, table="t") == published == defined
        with start(query(events), table="t", pond=tmp_path / "pond", trigger="available-now", partitions=2) as again:
            assert again.wait_for_end(120)
    assert again.definition == first.definition

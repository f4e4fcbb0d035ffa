"""A checkpoint takes any new definition of the same state; a definition of other state is refused by name.

The oracle is Spark: it goes on from the checkpoint with the new query, and the table shows what Spark then emits.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from millpond.catalogue import open_jobs
from millpond.errors import DefinitionError, RequestError
from millpond.spark import MillpondWarning, define, derive, publish, start
from millpond.tables.finish.definition import compile_definition
from oracles.emitted import Emitted, by_key
from spark.derive.test_derive_finish import state_rows
from suite.sizes import a_few

ROWS = [("a", 1, 100, "2024-01-01 03:00:00"), ("b", 2, 200, "2024-07-01 02:30:00"), ("a", 3, 300, "2024-07-02 12:00:00")]


@pytest.fixture(scope="module")
def events(spark, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("events"))
    frame = spark.createDataFrame(ROWS, "k string, i long, l long, t string").selectExpr("k", "i", "l", "timestamp(t) AS t")
    frame.coalesce(1).write.mode("append").parquet(folder)
    return spark.readStream.schema("k string, i long, l long, t timestamp").parquet(folder)


def base(e):
    return e.groupBy("k").agg(F.sum("i").alias("small"), F.sum("l").alias("large"), F.max("t").alias("at"))


SAME = {
    "renamed": lambda e: e.groupBy("k").agg(F.sum("i").alias("a"), F.sum("l").alias("b"), F.max("t").alias("c")),
    "computed": lambda e: base(e).selectExpr("k", "small + large AS total", "at", "small / 2 AS half"),
    "another HAVING": lambda e: base(e).where("small > 2"),
    "a key renamed": lambda e: base(e).withColumnRenamed("k", "name"),
    "columns of the source under other names": lambda e: (
        e.selectExpr("k AS key", "i AS x", "l AS y", "t AS z").groupBy("key").agg(F.sum("x"), F.sum("y"), F.max("z"))
    ),
    "a filter below": lambda e: base(e.where("i < 100")),
    "a column that can't be computed": lambda e: base(e).selectExpr(
        "k", "xpath_string(concat('<a>', small, '</a>'), 'a') AS h", "large", "at"
    ),
    "the time of the batch": lambda e: base(e).selectExpr("k", "small", "large", "at", "current_timestamp() AS now"),
}
UNSEEN = ("a filter below", "the time of the batch")
"""Readers see nothing of these changes."""
OTHER = {
    "sums in each other's place": lambda e: e.groupBy("k").agg(
        F.sum("l").alias("small"), F.sum("i").alias("large"), F.max("t").alias("at")
    ),
    "a key in capitals": lambda e: base(e.withColumn("k", F.upper("k"))),
    "another input under the same name": lambda e: base(e.withColumn("i", F.col("i") + 1)),
    "another function": lambda e: e.groupBy("k").agg(F.sum("i").alias("small"), F.max("l").alias("large"), F.max("t").alias("at")),
    "a FILTER": lambda e: e.groupBy("k").agg(
        F.expr("sum(i) FILTER (WHERE l > 5)").alias("small"), F.sum("l").alias("large"), F.max("t").alias("at")
    ),
    "one more": lambda e: e.groupBy("k").agg(F.sum("i"), F.sum("l"), F.max("t"), F.count("*")),
    "one less": lambda e: base(e).select("k", "small", "at"),
    "a column of the source in another's place": lambda e: base(e.selectExpr("k", "l AS i", "i AS l", "t")),
    # Spark's optimizer orders the buffers as in the select.
    "another order of the aggregates": lambda e: base(e).select("large", "at", "k", "small"),
    "another window": lambda e: e.groupBy(F.window("t", "1 hour")).agg(F.sum("i"), F.sum("l"), F.max("t")),
}


@pytest.fixture(scope="module")
def written(spark, events, tmp_path_factory):
    """A pond with a job that has run; its checkpoint is inside."""
    pond = tmp_path_factory.mktemp("pond")
    with start(base(events), table="t", pond=pond, trigger="available-now", partitions=2) as job:
        assert job.wait_for_end(120)
    return pond


@pytest.fixture
def pond(written, tmp_path):
    shutil.copytree(written, tmp_path / "pond")
    return tmp_path / "pond"


def checkpoint_of(pond) -> Path:
    return pond / "jobs" / "t" / "checkpoint"


@pytest.mark.parametrize("name", a_few(SAME, 1))
def test_another_definition_of_the_same_state_is_taken(spark, events, pond, tmp_path, name):
    frame, emitted = SAME[name](events), Emitted()
    (before,) = open_jobs(pond)
    old = before.definitions()["t"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MillpondWarning)
        defined = define(frame, checkpoint_of(pond), table="t", pond=None)
        job = start(frame, table="t", pond=pond, trigger="available-now", sink=emitted, output_mode="update")
    with job:
        assert job.wait_for_end(120)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MillpondWarning)
            assert publish(job.query, table="t", pond=tmp_path / "other") == job.definition == defined
    (after,) = open_jobs(pond)
    new = after.definitions()["t"]
    assert new == job.definition == derive_quietly(frame)
    assert new.meaning == old.meaning
    assert (new.fingerprint() == old.fingerprint()) == (name in UNSEEN)
    # From this state on, Spark would show the result of the batch query over the same rows.
    finish = compile_definition(new)
    finished = [row for row in (finish(*row) for row in state_rows(spark, new, job.checkpoint)) if row is not None]
    batch = SAME[name](spark.createDataFrame(ROWS, "k string, i long, l long, t string").withColumn("t", F.to_timestamp("t")))
    shown = [c for c in batch.columns if c in new.columns]
    Emitted.__call__(emitted, batch, -1)
    key = (new.key[0].name,)
    wanted = by_key([{n: row[n] for n in shown} for row in emitted.frames[-1]], key)
    assert by_key([{n: row[n] for n in shown} for row in finished], key) == wanted


def derive_quietly(frame):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MillpondWarning)
        return derive(frame, table="t")


@pytest.mark.parametrize("name", a_few(OTHER, 3))
def test_other_state_is_refused_before_anything_runs(events, pond, name):
    frame = OTHER[name](events)
    definition = pond / "jobs" / "t" / "tables" / "t.json"
    before = definition.read_bytes()
    for door in (
        lambda: start(frame, table="t", pond=pond, trigger="available-now"),
        lambda: define(frame, checkpoint_of(pond), table="t", pond=pond),
    ):
        with pytest.raises(DefinitionError) as refused:
            door()
        assert refused.value.condition == "DEFINITION_CHANGED"
        assert "another pond" in refused.value.hint
    assert definition.read_bytes() == before
    assert not (checkpoint_of(pond) / "offsets" / "1").exists()


def test_a_publish_of_other_state_is_refused(spark, events, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    define(base(events), checkpoint, table="t")
    query = OTHER["a key in capitals"](events).writeStream.outputMode("update").format("noop")
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination(120)
        with pytest.raises(DefinitionError) as refused:
            publish(query, table="t")
    finally:
        query.stop()
    assert refused.value.condition == "DEFINITION_CHANGED"
    assert "It was grouped by k, and is grouped by Upper(k)." in refused.value.message


LITERALS = {
    "array of binary": ("array(X'00FF', NULL, X'')", "array(X'00FF', NULL, X'00')"),
    "array of text": ("array('a, b', NULL)", "array('a', 'b', NULL)"),
    "struct": ("named_struct('a', X'01', 'b', array(1, NULL))", "named_struct('a', X'02', 'b', array(1, NULL))"),
    "map of binary": ("map('x', X'01', 'y', NULL)", "map('x', X'01', 'y', X'')"),
    "text": ("'a, string b'", "'a, string c'"),
    "timestamps": ("array(timestamp '2024-01-01 00:00:00')", "array(timestamp '2024-01-01 00:00:01')"),
    "decimal": ("array(1.50BD, NULL)", "array(1.5BD, NULL)"),
    "interval": ("array(interval '1' day)", "array(interval '2' day)"),
}


@pytest.mark.parametrize("name", a_few(LITERALS, 3))
def test_a_literal_is_the_same_words_each_time_and_another_is_others(events, name):
    def meaning(literal):
        # Each call makes another plan; the text of a JVM array would differ, too.
        return derive_quietly(events.groupBy("k").agg(F.count(F.when(F.expr(f"k = cast({literal} AS string)"), 1)))).meaning

    def of_element(literal):
        return derive_quietly(events.groupBy(F.expr(f"element_at(array({literal}), cast(i AS int))").alias("g")).count()).meaning

    one, other = LITERALS[name]
    for words in (of_element,) if name not in ("text", "decimal") else (of_element, meaning):
        assert words(one) == words(one)
        assert words(one) != words(other)


def test_a_set_of_binaries_is_the_same_words_each_time(events):
    def words(values):
        frame = events.groupBy(F.expr(f"cast(k AS binary) IN ({values})").alias("g")).count()
        return derive_quietly(frame).meaning

    many = ", ".join(f"X'{i:02X}'" for i in range(20))
    assert words(many) == words(many)
    assert words(many) != words(many.replace("X'13'", "X'1300'"))


def test_columns_made_of_columns_made_of_columns_are_few_words(events):
    def words(first):
        frame = events.selectExpr("k", f"{first} AS c")
        for _ in range(40):
            # Spark doesn't inline a step into the next: each is used twice, and expensive.
            frame = frame.selectExpr("k", "concat(c, sha2(c, 256), c) AS c")
        return derive_quietly(frame.groupBy("k").agg(F.max("c"), F.min("c"))).meaning

    one, again, other = words("k"), words("k"), words("upper(k)")
    assert one == again
    assert one.aggregates[0] != other.aggregates[0]
    assert max(map(len, one.aggregates)) < 2000


def test_few_words_still_say_that_they_depend_on_the_sessions_zone(events):
    # The zone comes after the cut: at the end of the first step, and in all later steps.
    frame = events.selectExpr("k", f"concat('{'x' * 3000}', cast(t AS string)) AS c")
    for _ in range(3):
        frame = frame.selectExpr("k", "concat(c, sha2(c, 256), c) AS c")
    for words in derive_quietly(frame.groupBy("c").agg(F.max("c"))).meaning.describe():
        assert len(words) < 2000
        assert "in the session's zone" in words
    plain = derive_quietly(events.selectExpr(f"concat('{'x' * 3000}', k) AS c").groupBy("c").count()).meaning
    assert not any("in the session's zone" in words for words in plain.describe())


def days(e):
    return e.groupBy("k").agg(F.max("t").alias("t")).selectExpr("k", "cast(t AS date) AS day", "cast(t AS string) AS text", "t")


def test_the_session_time_zone_is_the_jobs_and_never_the_definers(spark, events, tmp_path):
    zone = "spark.sql.session.timeZone"
    spark.conf.set(zone, "America/New_York")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MillpondWarning)
            with start(days(events), table="t", pond=tmp_path / "pond", trigger="available-now", partitions=2) as job:
                assert job.wait_for_end(120)
    finally:
        spark.conf.set(zone, "UTC")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MillpondWarning)
        # The zone comes from the definition beside the checkpoint.
        assert define(days(events), job.checkpoint, table="t", pond=tmp_path / "other") == job.definition
    # A checkpoint without a definition has no zone: columns that depend on it are left out, with a warning.
    shutil.copytree(Path(job.checkpoint.removeprefix("file://")), tmp_path / "plain")
    with pytest.warns(MillpondWarning, match="time zone, and the job's isn't known"):
        unknown = define(days(events), tmp_path / "plain", table="t")
    assert unknown.session_time_zone is None
    assert "day" not in unknown.columns
    assert unknown.columns[-1] == "t"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MillpondWarning)
        plain = define(days(events), tmp_path / "plain", table="t", session_time_zone="America/New_York")
        assert plain == job.definition
        assert define(days(events), tmp_path / "plain", table="t").session_time_zone == "America/New_York"
    for wrong in ("Mars/Olympus", "Europe/Berlin"):
        with pytest.raises(RequestError) as refused:
            define(days(events), tmp_path / "plain", table="t", session_time_zone=wrong)
        assert refused.value.condition == "INVALID_REQUEST"


def test_a_grouping_by_days_of_another_time_zone_is_other_state(spark, events, tmp_path):
    zone = "spark.sql.session.timeZone"
    by_day = lambda e: e.groupBy(F.to_date("t").alias("day")).agg(F.sum("i").alias("n"))  # noqa: E731 two builds of one query
    with start(by_day(events), table="t", pond=tmp_path, trigger="available-now", partitions=2) as job:
        assert job.wait_for_end(120)
    spark.conf.set(zone, "America/New_York")
    try:
        with pytest.raises(DefinitionError) as refused:
            start(by_day(events), table="t", pond=tmp_path, trigger="available-now")
    finally:
        spark.conf.set(zone, "UTC")
    assert refused.value.condition == "DEFINITION_CHANGED"
    assert "The session's time zone was UTC, and is America/New_York." in refused.value.message


@pytest.mark.long
def test_a_sort_in_complete_mode_keeps_names_and_values(spark, events, tmp_path):
    frame = base(events).selectExpr("k", "small * 2 AS twice", "large").where("large > 0").orderBy(F.desc("large"), "k")
    emitted = Emitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error", MillpondWarning)
        job = start(frame, table="t", pond=tmp_path, trigger="available-now", output_mode="complete", sink=emitted, partitions=2)
        with job:
            assert job.wait_for_end(120)
            assert publish(job.query, table="t", pond=tmp_path / "other") == job.definition
        assert define(frame, job.checkpoint, table="t", pond=tmp_path, output_mode="complete") == job.definition
    finish = compile_definition(job.definition)
    finished = [finish(*row) for row in state_rows(spark, job.definition, job.checkpoint)]
    assert job.definition.columns == ("k", "twice", "large")
    assert by_key(finished, ("k",)) == by_key(emitted.frames[0], ("k",))


def test_sorted_by_what_isnt_selected(events):
    frame = base(events).orderBy("large").select("k", "small")
    with warnings.catch_warnings():
        warnings.simplefilter("error", MillpondWarning)
        assert derive(frame, table="t", output_mode="complete").columns == ("k", "small")

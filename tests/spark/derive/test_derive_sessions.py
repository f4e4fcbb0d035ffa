"""Session windows: from the state, a derived definition gives every open session as Spark emits it, bit by bit.

In complete mode, on the HDFS-backed provider, Spark emits all sessions with each batch.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.spark import MillpondWarning, define, derive, start
from oracles.emitted import Emitted, bits
from spark_files.golden import GOLDEN
from suite.sizes import a_few

COLUMNS = "t timestamp, k string, g int, n long, d decimal(9,2)"


@pytest.fixture(scope="module")
def visits(spark, tmp_path_factory):
    """A stream of three files: users pause and come back, and sessions merge; there are NULL keys."""
    folder = str(tmp_path_factory.mktemp("visits"))
    for batch in range(3):
        rows = []
        for i in range(40):
            n = batch * 40 + i
            user = [None, "a", "ü", "", "b"][n % 5]
            at = 1_700_000_000 + batch * 60 + (i * 7) % 90 + n % 3
            rows.append((dt.datetime.fromtimestamp(at, dt.UTC), user, None if n % 11 == 0 else n % 2, n * n, None))
        frame = spark.createDataFrame(rows, COLUMNS).selectExpr("t", "k", "g", "n", "cast(n / 4 AS decimal(9,2)) AS d")
        frame.coalesce(1).write.mode("append").parquet(folder)
    stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(folder)
    return stream.withWatermark("t", "1 day")


def flat(row: dict[str, Any], window: str) -> dict[str, Any]:
    """A row as Spark emits it, with the window split into columns, as in the table."""
    out = {name: value for name, value in row.items() if name != window}
    word = "session" if window == "session_window" else window
    return out | {f"{word}_{side}": value for side, value in (row.get(window) or {}).items()}


def in_bits(rows: list[dict[str, Any]]) -> list[str]:
    """The rows, sorted, in a form in which only equal bits are equal."""
    return sorted(repr(sorted((name, bits(value)) for name, value in row.items())) for row in rows)


def run(spark, frame, pond: Path, window: str = "session_window") -> tuple[Any, int]:
    """Run the query to its end; yields the open table, and the number of rows compared with Spark's last ones."""
    emitted = Emitted()
    with start(
        frame, table="sessions", pond=pond, trigger="available-now", output_mode="complete", sink=emitted, partitions=2
    ) as job:
        assert job.wait_for_end(120)
    assert job.definition.warnings == ()
    with millpond.open(pond, replica_dir="memory://") as opened:
        table = opened["sessions"]
        key = [c.name for c in table.definition.key]
        rows = list(table.scan())
        last = [flat(row, window) for row in emitted.frames[max(emitted.frames)]]
        assert last
        assert in_bits([{name: row[name] for name in last[0]} for row in rows]) == in_bits(last)
        for row in rows:
            assert dict(table.get({name: row[name] for name in key})) == dict(row)
        return table, len(last)


def test_open_sessions_are_what_spark_emits(spark, visits, tmp_path):
    from pyspark.sql import functions as F

    frame = visits.groupBy("k", F.session_window("t", "12 seconds"), "g").agg(
        F.count("*").alias("n"), F.sum("d").alias("spent"), F.avg("n").alias("mean"), F.collect_list("n").alias("all")
    )
    table, compared = run(spark, frame, tmp_path)
    assert table.columns == ("k", "g", "session_start", "session_end", "n", "spent", "mean", "all")
    assert [c.name for c in table.definition.key] == ["k", "g", "session_start"]
    assert compared > 20


@pytest.mark.long
def test_having_select_and_names_after_the_aggregation(spark, visits, tmp_path):
    from pyspark.sql import functions as F

    frame = (
        visits.groupBy(F.session_window("t", "12 seconds").alias("visit"), "k")
        .agg(F.count("*").alias("n"), F.max("n").alias("session_end"), F.min("n").alias("low"))
        # Spark would push a condition on the session alone below the aggregation, where each session has one event.
        .where("visit.end - visit.start > interval 30 seconds AND n > 2 OR n > 1000")
        .select("session_end", "visit", F.expr("session_end - low").alias("spread"), F.col("k").alias("who"))
    )
    table, compared = run(spark, frame, tmp_path, "visit")
    assert table.columns == ("who", "visit_start", "visit_end", "session_end", "spread")
    assert compared > 3


@pytest.mark.long
def test_columns_that_are_called_as_ours_keep_their_names(spark, visits, tmp_path):
    from pyspark.sql import functions as F

    frame = visits.withColumnRenamed("k", "session_start").groupBy("session_start", F.session_window("t", "12 seconds")).count()
    frame = frame.select("session_start", F.col("session_window.end").alias("until"), "count")
    table, compared = run(spark, frame, tmp_path)
    assert table.columns == ("session_start", "session_window_start", "until", "count")
    assert compared > 3


@pytest.mark.long
def test_sessions_of_local_times_under_keys_of_other_types(spark, visits, tmp_path):
    from pyspark.sql import functions as F

    local = visits.withColumn("local", F.expr("cast(t AS timestamp_ntz)"))
    who = F.struct("k", "g").alias("who")
    frame = local.groupBy(F.expr("cast(d AS int) % 3 AS third"), who, F.session_window("local", "20 seconds"))
    table, compared = run(spark, frame.agg(F.last("n").alias("n")), tmp_path)
    assert [str(c.type) for c in table.definition.key] == ["int", "struct<k:string,g:int>", "timestamp_ntz"]
    assert compared > 3


def test_a_session_that_cant_be_finished_shows_its_buffers(visits):
    from pyspark.sql import functions as F

    grouped = visits.groupBy("k", F.session_window("t", "12 seconds"))
    with pytest.warns(MillpondWarning, match="kll_sketch_agg_bigint"):
        definition = derive(grouped.agg(F.expr("kll_sketch_agg_bigint(n)").alias("middle")), table="t")
    assert definition.columns == ("k", "session_start", "session_end", "stored_middle_buf")
    with pytest.warns(MillpondWarning, match="filter after"):
        definition = derive(grouped.agg(F.count("*").alias("n")).where("rand() > n"), table="t")
    assert definition.columns == ("k", "session_start", "session_end", "stored_count")


@pytest.mark.parametrize("cell", a_few(sorted(p.name for p in (GOLDEN / "spark-4.3").glob("sessions-*")), 3))
def test_the_golden_sessions_are_read_under_the_users_names(spark, golden, cell):
    """The oracle is Spark's own reader: state.json has the rows of its key and value."""
    from pyspark.sql import functions as F

    keys = ["user", "kind"] if "two-keys" in cell else ["user"]
    copy = golden(f"spark-4.3/{cell}")
    late = spark.readStream.schema("user string, kind int, time timestamp, amount long").json(str(copy.checkpoint))
    sessions = late.withWatermark("time", "1 minute").groupBy(F.session_window("time", "70 seconds"), *keys)
    frame = sessions.agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))
    assert define(frame, copy.checkpoint, table="sessions", strict=True).warnings == ()
    state = copy.read("state")["0/default"]
    copy.uncommit()
    compared = 0
    with millpond.open(copy.checkpoint, replica_dir="memory://", wait_seconds=0) as pond:
        for batch in range(copy.last + 1):
            copy.commit(batch)
            if str(batch) not in state:
                continue
            pond.catch_up(60)
            table = pond["sessions"].live()
            assert table.columns == (*keys, "session_start", "session_end", "n", "amount")
            rows = table.scan()
            assert rows.batch == batch
            found = [
                [*[row[k] for k in keys], micros(row["session_start"]), micros(row["session_end"]), *list(row.values())[-2:]]
                for row in rows
            ]
            theirs = [[*key, value[0][1], *value[-2:]] for key, value, _ in state[str(batch)]]
            assert sorted(found, key=repr) == sorted(theirs, key=repr)
            compared += len(theirs)
    assert compared > 10


def micros(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)

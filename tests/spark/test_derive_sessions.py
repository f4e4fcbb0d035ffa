"""Session windows: what a derived definition makes of the state is every open session as Spark emits it, bit by bit.

In complete mode, on the HDFS-backed provider, Spark emits all sessions with each batch.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import millpond
from emitted import Emitted, bits, by_key
from millpond.spark import MillpondWarning, derive, start

COLUMNS = "t timestamp, k string, g int, n long, d decimal(9,2)"


@pytest.fixture(scope="module")
def visits(spark, tmp_path_factory):
    """A stream of four files: users that pause, come back, and whose sessions grow together; NULL keys."""
    folder = str(tmp_path_factory.mktemp("visits"))
    for batch in range(4):
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
    """A row as Spark emits it, its window split as the table has it."""
    out = {name: value for name, value in row.items() if name != window}
    word = "session" if window == "session_window" else window
    return out | {f"{word}_{side}": value for side, value in (row.get(window) or {}).items()}


def run(spark, frame, pond: Path, window: str = "session_window") -> tuple[Any, int]:
    """Run the query to its end; the open table and the number of rows that were compared with what Spark emitted last."""
    emitted = Emitted()
    with start(
        frame, table="sessions", pond=pond, trigger="available-now", output_mode="complete", sink=emitted, partitions=2
    ) as job:
        assert job.wait_for_end(120)
    assert job.definition.warnings == ()
    with millpond.open(pond, replica_dir="memory://") as opened:
        table = opened["sessions"]
        key = tuple(c.name for c in table.definition.key)
        rows = list(table.scan())
        ours = by_key([dict(row) for row in rows], key)
        last = [flat(row, window) for row in emitted.frames[max(emitted.frames)]]
        shown = tuple(name for name in key if name in last[0])
        theirs = by_key(last, shown)
        assert len(ours) == len(rows)
        if shown == key:
            assert ours.keys() == theirs.keys()
        found = by_key([dict(row) for row in rows], shown)
        for one, row in theirs.items():
            assert {n: bits(found[one][n]) for n in row} == {n: bits(v) for n, v in row.items()}
        for row in rows:
            assert dict(table.get({name: row[name] for name in key})) == dict(row)
        return table, len(theirs)


def test_open_sessions_are_what_spark_emits(spark, visits, tmp_path):
    from pyspark.sql import functions as F

    frame = visits.groupBy("k", F.session_window("t", "12 seconds"), "g").agg(
        F.count("*").alias("n"), F.sum("d").alias("spent"), F.avg("n").alias("mean"), F.collect_list("n").alias("all")
    )
    table, compared = run(spark, frame, tmp_path)
    assert table.columns == ("k", "g", "session_start", "session_end", "n", "spent", "mean", "all")
    assert [c.name for c in table.definition.key] == ["k", "g", "session_start"]
    assert compared > 20


def test_having_select_and_names_after_the_aggregation(spark, visits, tmp_path):
    from pyspark.sql import functions as F

    frame = (
        visits.groupBy(F.session_window("t", "12 seconds").alias("visit"), "k")
        .agg(F.count("*").alias("n"), F.max("n").alias("session_end"), F.min("n").alias("low"))
        .where("n > 2 AND visit.end - visit.start > interval 30 seconds")
        .select("session_end", "visit", F.expr("session_end - low").alias("spread"), F.col("k").alias("who"))
    )
    table, compared = run(spark, frame, tmp_path, "visit")
    assert table.columns == ("who", "visit_start", "visit_end", "session_end", "spread")
    assert compared > 3


def test_columns_that_are_called_as_ours_keep_their_names(spark, visits, tmp_path):
    from pyspark.sql import functions as F

    frame = visits.withColumnRenamed("k", "session_start").groupBy("session_start", F.session_window("t", "12 seconds")).count()
    frame = frame.select("session_start", F.col("session_window.end").alias("until"), "count")
    table, compared = run(spark, frame, tmp_path)
    assert table.columns == ("session_start", "session_window_start", "until", "count")
    assert compared > 3


@pytest.mark.parametrize("keys", ["decimal", "struct"])
def test_sessions_of_local_times_and_other_keys(spark, visits, tmp_path, keys):
    from pyspark.sql import functions as F

    key = F.col("d") if keys == "decimal" else F.struct("k", "g").alias("who")
    local = visits.withColumn("local", F.expr("cast(t AS timestamp_ntz)")).withWatermark("local", "2 days")
    time = "local" if keys == "struct" else "t"
    frame = (local if keys == "struct" else visits).groupBy(F.session_window(time, "20 seconds"), key).agg(F.last("n").alias("n"))
    _, compared = run(spark, frame, tmp_path)
    assert compared > 3


def test_a_session_that_cant_be_finished_shows_its_buffers(visits):
    from pyspark.sql import functions as F

    grouped = visits.groupBy("k", F.session_window("t", "12 seconds"))
    with pytest.warns(MillpondWarning, match="percentile_approx"):
        definition = derive(grouped.agg(F.expr("percentile_approx(n, 0.5)").alias("middle")), table="t")
    assert definition.columns == ("k", "session_start", "session_end", "middle_buf")
    with pytest.warns(MillpondWarning, match="filter after"):
        definition = derive(grouped.agg(F.count("*").alias("n")).where("rand() > n"), table="t")
    assert definition.columns == ("k", "session_start", "session_end", "count")

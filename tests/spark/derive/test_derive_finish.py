"""A derived definition computes from Spark's state what Spark itself emitted, bit by bit.

A real streaming query runs over several batches.  Spark's own state reader reads its state; the test finishes the rows without
a JVM, and compares them with the rows that the query emitted.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from millpond.schema.definition.table import TableDefinition
from millpond.spark import start
from millpond.tables.finish.definition import compile_definition
from oracles.emitted import Emitted, bits, by_key, plain, stored_sql
from suite.sizes import a_few

SCHEMA = """
    k string, i int, l long, small tinyint, d double, f float, s string, b boolean, bin binary, day date, t timestamp,
    d3 decimal(3,1), d8 decimal(8,2), d9 decimal(9,2), d18 decimal(18,4), d38 decimal(38,10), huge long, huge38 decimal(38,0),
    dt interval day to second, ym_months int
"""
SCHEMA_NAMES = [column.split()[0] for column in SCHEMA.split(",")]
BATCHES = 4
UTC = dt.UTC


def _row(rng: random.Random, batch: int) -> tuple[Any, ...]:
    key = rng.choice(["a", "b", "b", "c", "ü", "", None])
    if key == "c" or rng.random() < 0.1:
        return (key, *[None] * 18, None)
    double = rng.choice([rng.gauss(0, 1000), rng.random(), -0.0, 0.0, 1e300 * rng.random(), float(rng.randint(-5, 5))])
    if key == "ü":
        double = rng.choice([math.nan, math.inf, 1.5])
    return (
        key,
        rng.randint(-(2**31), 2**31 - 1),
        rng.randint(-(2**50), 2**50),
        rng.randint(-128, 127),
        double,
        struct.unpack("f", struct.pack("f", rng.gauss(0, 10)))[0],
        rng.choice(["x", "y", "zebra", "Ünï", "", f"v{rng.randint(0, 500)}", None]),
        rng.choice([True, False, None]),
        rng.choice([b"", b"\x00\xff", b"abc", None]),
        dt.date(1950, 1, 1) + dt.timedelta(days=rng.randint(0, 40000)),
        dt.datetime(2024, 1, 1, tzinfo=UTC) + dt.timedelta(microseconds=rng.randint(0, 10**12), hours=batch),
        Decimal(f"{rng.randint(-999, 999)}E-1"),
        Decimal(f"{rng.randint(-(10**8) + 1, 10**8 - 1)}E-2"),
        Decimal(f"{rng.randint(-(10**9) + 1, 10**9 - 1)}E-2"),
        Decimal(f"{rng.randint(-(10**18) + 1, 10**18 - 1)}E-4"),
        Decimal(f"{rng.randint(-(10**30), 10**30)}E-10"),
        rng.choice([2**63 - 1, 2**62, 5]),
        Decimal(rng.choice(["9" * 38, "8" * 38])),
        dt.timedelta(microseconds=rng.randint(-(10**13), 10**13)),
        rng.randint(-1000, 1000),
    )


@pytest.fixture(scope="module")
def events(spark, tmp_path_factory):
    """A stream of BATCHES files, one in each batch, with NULLs, NaN, both zeros, and a key whose values are all NULL."""
    folder = tmp_path_factory.mktemp("events")
    rng = random.Random(7)
    for batch in range(BATCHES):
        rows = [_row(rng, batch) for _ in range(60)]
        frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.mode("append").parquet(str(folder))
    schema = spark.read.parquet(str(folder)).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return stream.selectExpr("*", "make_ym_interval(0, ym_months) AS ym")


def state_rows(spark, definition: TableDefinition, checkpoint: str) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Key and value rows of a table's store in stored form, from Spark's own reader.

    Buffers may have equal names, so the reader's struct is first cast to one with numbered names.
    """
    frame = spark.read.format("statestore").option("operatorId", definition.operator).load(checkpoint)
    key_types = [(f"k{n}", f.type) for n, f in enumerate(definition.key_schema)]
    value_types = [(f"v{n}", f.type) for n, f in enumerate(definition.value_schema)]
    types = dict(frame.dtypes)
    assert set(types) == {"key", "value", "partition_id"}
    schema = {f.name: f.dataType for f in frame.schema.fields}
    flat = frame
    for column, letter in (("key", "k"), ("value", "v")):
        members = ", ".join(f"{letter}{n}: {m.dataType.simpleString()}" for n, m in enumerate(schema[column].fields))
        flat = flat.withColumn(column, flat[column].cast(f"struct<{members}>") if members else flat[column])
    keys = [stored_sql(f"key.{name}", type_) for name, type_ in key_types]
    values = [stored_sql(f"value.{name}", type_) for name, type_ in value_types]
    columns = [f"{sql} AS c{n}" for n, sql in enumerate(keys + values)]
    rows = [tuple(plain(v) for v in row) for row in flat.selectExpr(*columns).collect()]
    return [(row[: len(keys)], row[len(keys) :]) for row in rows]


def run(spark, frame, tmp_path: Path, *, output_mode: str = "update", table: str = "t"):
    """Run a query to the end of its input; returns its definition, its finished state, and the rows emitted in each batch."""
    emitted = Emitted()
    with start(
        frame, table=table, pond=tmp_path, trigger="available-now", output_mode=output_mode, sink=emitted, partitions=2
    ) as job:
        assert job.wait_for_end(120)
    finish = compile_definition(job.definition)
    finished = [finish(*row) for row in state_rows(spark, job.definition, job.checkpoint)]
    return job.definition, [row for row in finished if row is not None], emitted.frames


def assert_same(definition: TableDefinition, finished: list[dict[str, Any]], emitted: dict[int, list[dict[str, Any]]], sets=()):
    key = tuple(c.name for c in definition.key if any(c.name in row for rows in emitted.values() for row in rows))
    newest: dict[Any, dict[str, Any]] = {}
    for batch in sorted(emitted):
        newest.update(by_key(emitted[batch], key))
    ours = by_key(finished, key)
    assert ours.keys() == newest.keys()
    wrong = [
        (k, name, ours[k][name], value)
        for k, row in newest.items()
        for name, value in row.items()
        if bits(ours[k][name], as_set=name in sets) != bits(value, as_set=name in sets)
    ]
    assert wrong == []


GROUPS: dict[str, str] = {
    "counts": "count(*); count(s); count_if(b); count(i, s); sum(i) FILTER (WHERE b); count(*) FILTER (WHERE i > 0)",
    "sums": "sum(small); sum(i); sum(l); sum(d); sum(f); sum(d3); sum(d8); sum(d9); sum(d18); sum(d38); try_sum(huge);"
    "try_sum(huge38); try_sum(d9); sum(dt); sum(ym); try_sum(i)",
    "averages": "avg(small); avg(i); avg(l); avg(d); avg(f); avg(d3); avg(d8); avg(d9); avg(d18); avg(d38); try_avg(huge);"
    "try_avg(huge38); avg(dt); avg(ym); try_avg(d18)",
    "extremes": "min(i); max(l); min(d); max(d); min(f); max(s); min(s); min(b); max(bin); min(day); max(t); min(d38); max(d3);"
    "min(dt); max(ym); max(struct(i, s, t)); min_by(s, l); max_by(t, l); max_by(struct(s, i), d8);"
    "max_by(s, i, 3); min_by(i, d, 4); min_by(t, s, 2); max_by(struct(s, i), d38, 5); min_by(bin, struct(i, s), 3);"
    "bool_and(b); some(b);"
    "every(b); bit_and(i); bit_or(l); bit_xor(small)",
    "firsts": "first(s); first(i, true); last(s); last(d, true); any_value(t); first(d9) IGNORE NULLS; first_value(day)",
    "moments": "stddev(i); stddev_pop(i); var_samp(i); var_pop(d); skewness(i); kurtosis(i); corr(i, small); covar_pop(i, d8);"
    "covar_samp(i, d8); std(small); variance(d9); kurtosis(small); skewness(d8)",
    "sketches": "approx_count_distinct(s); approx_count_distinct(i, 0.01); approx_count_distinct(l, 0.2)",
    "collections": "collect_list(s); array_agg(i); collect_list(d9); collect_set(s); collect_set(i); collect_set(bin);"
    "collect_list(t); collect_list(struct(i, s)); size(collect_set(s)); sort_array(collect_set(s));"
    "sort_array(collect_set(i), false); sort_array(collect_list(d9))",
    "computed": "max(l) - min(l); max(l) - min(small); sum(d9) + sum(d18); sum(d38) * 2; sum(d9) * sum(d8); sum(d9) / count(1);"
    "sum(d38) / 3; sum(d18) % 7; pmod(sum(i), 7); sum(i) % 7; sum(l) div 1000; sum(i) / count(*); avg(d) * 2 + 1; -sum(i);"
    "abs(min(i)); -sum(d38); sqrt(sum(small)); floor(avg(i)); ceil(avg(d8)); floor(avg(small)); round(avg(i), 2);"
    "bround(avg(d8), 1);"
    "round(avg(small), 1); round(sum(i), -3); cast(sum(i) AS string); cast(sum(d9) AS string); cast(sum(d9) AS double);"
    "cast(avg(small) AS int); cast(sum(l) AS decimal(38,2)); cast(avg(small) AS decimal(10,3)); cast(max(b) AS int); "
    "CASE WHEN sum(i) > 0 THEN 'up' WHEN sum(i) < 0 THEN 'down' END; if(count(*) > 30, 1, 0); coalesce(sum(i), 0);"
    "nullif(sum(i), 0); max(l) IN (1, 2, NULL); greatest(max(l), max(i), NULL); least(min(d), 0.0D); isnull(sum(i));"
    "max(d) = double('NaN'); max(d) > 1; min(s) < 'x'; min(s) <=> max(s); struct(min(l) AS low, max(t) AS high);"
    "concat(min(s), '-', max(s)); max(t) - min(t); date_trunc('hour', max(t)); try_divide(sum(i), count(s));"
    "try_add(max(huge), 1); try_subtract(sum(d9), 1); isnan(sum(d)); NOT bool_and(b); bool_and(b) AND some(b);"
    "bool_and(b) OR count(*) > 1; try_multiply(max(huge), 2); float(avg(small)) * float(1.1); max(f) + min(f); upper('x');"
    "try_cast(sum(l) AS int); sum(i) + sum(i); max(d) - max(d);"
    "count(*) IN (1,2,3,4,5,6,7,8,9,10,11,12,13,14,15); max(s) IN ('a','b','c','d','e','f','g','h','i','j','k','zebra');"
    "max(d9) IN (1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.25); max(f) IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, NULL)",
}


@pytest.mark.parametrize("group", a_few(GROUPS, 1))
def test_finished_state_equals_what_spark_emitted(spark, events, tmp_path, group):
    from pyspark.sql import functions as F

    texts = [t.strip() for t in GROUPS[group].split(";")]
    columns = [F.expr(text).alias(f"c{n}: {text}") for n, text in enumerate(texts)]
    definition, finished, emitted = run(spark, events.groupBy("k").agg(*columns), tmp_path)
    assert definition.warnings == ()
    assert len(emitted) == BATCHES
    assert_same(definition, finished, emitted, sets=[c for c in definition.columns if "collect_set" in c])


KEYS = [
    "k", "i", "small", "d", "f", "b", "bin", "day", "t", "d3", "d18", "d38", "dt", "ym", "struct(i, s) AS pair",
    "array(i, small) AS list", "k; i; b", "window(t, '6 hours')", "k; window(t, '6 hours', '3 hours') AS w",
    "window(t, '1 hour').start AS hour; k", "upper(k) AS name", "date_trunc('hour', t) AS hour",
]  # fmt: skip


@pytest.mark.parametrize("keys", a_few(KEYS, 1))
def test_every_kind_of_key_finds_its_row(spark, events, tmp_path, keys):
    from pyspark.sql import functions as F

    columns = [F.expr(k.strip()) for k in keys.split(";")]
    definition, finished, emitted = run(
        spark, events.groupBy(*columns).agg(F.count("*").alias("n"), F.sum("i").alias("s")), tmp_path
    )
    assert definition.warnings == ()
    flat = {batch: [_flatten_windows(row, definition.columns) for row in rows] for batch, rows in emitted.items()}
    assert_same(definition, finished, flat)


def _flatten_windows(row: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in columns:
            flat[name] = value
        else:
            flat |= {f"{name}_{member}": v for member, v in value.items()}
    return flat


def test_an_aggregation_without_keys_has_one_row(spark, events, tmp_path):
    from pyspark.sql import functions as F

    definition, finished, emitted = run(spark, events.groupBy().agg(F.count("*").alias("n"), F.avg("d9").alias("mean")), tmp_path)
    assert definition.key == ()
    assert len(finished) == 1
    assert_same(definition, finished, emitted)


def test_having_select_rename_and_drop_after_the_aggregation(spark, events, tmp_path):
    from pyspark.sql import functions as F

    frame = (
        events.groupBy("k", F.window("t", "6 hours"))
        .agg(
            F.sum("i").alias("total"),
            F.count("*").alias("n"),
            F.max("l").alias("high"),
            F.min("l").alias("low"),
            F.sum("i").alias("again"),
            F.expr("percentile_approx(i, 0.5)").alias("not_selected"),
        )
        .where("n > 2 AND total > 0")
        .withColumn("spread", F.col("high") - F.col("low"))
        .where("spread > 10 OR k IS NULL")
        .select(
            F.col("window.start").alias("since"),
            F.col("k").alias("name"),
            "total",
            "spread",
            "again",
            F.col("k").alias("twice"),
        )
    )
    definition, finished, emitted = run(spark, frame, tmp_path, output_mode="complete")
    assert definition.warnings == ()
    assert definition.columns == ("name", "since", "window_end", "total", "spread", "again", "twice")
    assert "percentile_approx" not in repr(definition)
    newest = emitted[max(emitted)]
    assert 0 < len(newest) < 40
    assert_same(definition, finished, {0: newest})


@pytest.mark.long
def test_distinct_sketches_agree_from_ten_to_a_hundred_thousand(spark, tmp_path):
    from pyspark.sql import functions as F

    folder = str(tmp_path / "numbers")
    sizes = [10, 300, 1000, 1500, 2000, 5000, 20000, 100000]
    for first in (0, 1):
        parts = [spark.range(first, size, 2).selectExpr(f"{size} AS size", f"id * {size} AS id") for size in sizes]
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.union(part)
        frame.coalesce(1).write.mode("append").parquet(folder)
    stream = spark.readStream.schema("size int, id long").option("maxFilesPerTrigger", 1).parquet(folder)
    frame = stream.groupBy("size").agg(*[F.approx_count_distinct("id", rsd).alias(f"at {rsd}") for rsd in (0.05, 0.02, 0.1, 0.38)])
    definition, finished, emitted = run(spark, frame, tmp_path / "pond")
    assert len(finished) == len(sizes)
    assert_same(definition, finished, emitted)


@pytest.mark.long
def test_visitors_counted_over_a_deduplicated_union(spark, events, tmp_path):
    from pyspark.sql import functions as F

    hits = events.selectExpr("k", "s", "1 AS hit")
    first = events.dropDuplicates(["k", "s"]).selectExpr("k", "s", "0 AS hit")
    frame = (
        hits.union(first).groupBy("k").agg(F.sum("hit").alias("hits"), F.expr("count(*) FILTER (WHERE hit = 0)").alias("visitors"))
    )
    definition, finished, emitted = run(spark, frame, tmp_path)
    assert definition.operator == 0
    assert_same(definition, finished, emitted)


@pytest.mark.long
def test_of_two_chained_aggregations_the_last_is_the_table(spark, tmp_path):
    """No event is late; one event far ahead moves all hours before it on to the second aggregation."""
    from pyspark.sql import functions as F

    rng, folder = random.Random(7), str(tmp_path / "in")
    far = ("far", dt.datetime(2024, 1, 27, tzinfo=UTC))
    for rows in [*([_row(rng, batch) for _ in range(60)] for batch in range(BATCHES)), [far]]:
        times = [row if row is far else (row[0], row[SCHEMA_NAMES.index("t")]) for row in rows]
        spark.createDataFrame(times, "k string, t timestamp").coalesce(1).write.mode("append").parquet(folder)

    def chained(events):
        hours = events.withWatermark("t", "13 days").groupBy(F.window("t", "1 hour"), "k").agg(F.count("*").alias("n"))
        return hours.groupBy(F.window(F.window_time("window"), "60 days").alias("w")).agg(
            F.sum("n").alias("total"), F.max("n").alias("most")
        )

    stream = spark.readStream.schema("k string, t timestamp").option("maxFilesPerTrigger", 1).parquet(folder)
    definition, finished, emitted = run(spark, chained(stream), tmp_path, output_mode="append")
    assert (definition.operator, definition.warnings) == (0, ())
    assert definition.columns == ("w_start", "w_end", "total", "most")
    # In append mode, Spark emits a window when it leaves the state; this one ends after the watermark.
    assert not any(emitted.values())
    recomputed = Emitted()
    recomputed(chained(spark.read.parquet(folder).where("k IS DISTINCT FROM 'far'")).selectExpr("w.*", "total", "most"), 0)
    (only,) = recomputed.frames[0]
    assert only["total"] > only["most"] > 1
    (window,) = finished
    assert {bits(value) for value in window.values()} == {bits(value) for value in only.values()}
    assert (window["total"], window["most"]) == (only["total"], only["most"])

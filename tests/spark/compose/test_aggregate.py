"""Aggregates over the changes of a table, against Spark's own over the table's rows."""

from __future__ import annotations

import random

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import RequestError
from suite.sizes import IS_LONG

SCHEMA = "site string, page string, v int"


def upstream(events):
    """Pages whose rows come, change, go and come again."""
    from pyspark.sql import functions as F

    total, price = F.sum("v").alias("total"), F.sum(F.col("v").cast("decimal(9,2)") / 7).alias("price")
    mean = F.when(F.sum("v") % 5 != 0, F.avg("v")).alias("mean")
    return events.groupBy("site", "page").agg(F.count("*").alias("hits"), total, price, mean).where(F.col("total") % 3 != 0)


def signed():
    from pyspark.sql import functions as F

    return {
        "pages": F.count("*"),
        "with_mean": F.count("mean"),
        "total": F.sum("total"),
        "price": F.sum("price"),
        "mean_total": F.avg("total"),
        "odd": F.sum(F.when(F.col("hits") % 2 == 1, F.col("hits"))),
    }


def held():
    from pyspark.sql import functions as F

    return {
        **signed(),
        "least": F.min("mean"),
        "most": F.max("page"),
        "different": F.count_distinct("hits"),
        "mean_price": F.avg("price"),
    }


def feed(folder, number, random_):
    rows = [
        {"site": random_.choice(("a", "b", None)), "page": f"/{random_.randrange(7)}", "v": random_.randrange(-3, 9)}
        for _ in range(random_.randrange(1, 12))
    ]
    write_event_file(folder, number, rows)


def rows_of(frame):
    return sorted(map(repr, frame.collect()))


@pytest.mark.long
def test_an_aggregate_over_changes_is_that_over_the_rows(spark, tmp_path):
    from pyspark.sql import functions as F

    random_, source, pond = random.Random(4), tmp_path / "in", str(tmp_path / "pond")
    source.mkdir()
    feed(source, 0, random_)

    def run(frame, table):
        job = millpond.start(frame, table=table, pond=pond, trigger="available-now", partitions=2)
        try:
            job.query.awaitTermination()
        finally:
            job.stop()

    def step(*, all_jobs):
        run(upstream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))), "pages")
        if not all_jobs:
            return
        changes = millpond.read_changes(spark, pond, "pages", maxBatchesPerTrigger=2)
        run(millpond.aggregate_changes(changes, ["site"], signed()), "sites")
        best = {"best": millpond.top("page", by="total", most=2)}
        run(millpond.aggregate_changes(changes, ["site"], {**held(), **best}), "most")

    step(all_jobs=True)
    for number in range(1, 6 if IS_LONG else 3):
        feed(source, number, random_)
    step(all_jobs=True)

    def table(name):
        return spark.read.format("millpond").options(pond=pond, table=name).load()

    pages = table("pages").cache()
    expected = pages.groupBy("site").agg(*(v.alias(n) for n, v in signed().items()))
    assert rows_of(table("sites")) == rows_of(expected)
    best = F.slice(
        F.transform(
            F.reverse(
                F.array_sort(F.collect_list(F.struct(F.col("total"), (-F.substring("page", 2, 9).cast("int")).alias("o"), "page")))
            ),
            lambda x: F.struct(x["page"].alias("page"), x["total"].alias("total")),
        ),
        1,
        2,
    ).alias("best")
    expected = pages.groupBy("site").agg(*(v.alias(n) for n, v in held().items()), best)
    assert rows_of(table("most_result")) == rows_of(expected)
    assert pages.count() > 6


def test_what_cannot_be_taken_back_is_refused(spark):
    from pyspark.sql import functions as F

    columns = "struct<hits bigint, total bigint>"
    changes = spark.createDataFrame([], f"site string, page string, _kind string, _batch bigint, _old {columns}, _new {columns}")
    for value in ("approx_count_distinct(page)", "collect_list(page)", "sum(hits) + 1", "count_if(hits > 1)", "sum(DISTINCT hits)"):
        with pytest.raises(RequestError) as refused:
            millpond.aggregate_changes(changes, ["site"], {"x": F.expr(value)})
        assert refused.value.condition == "NOT_RETRACTABLE"
    for by, values, condition in (
        (["nothing"], {"x": F.count("*")}, "UNKNOWN_COLUMN"),
        (["site"], {"x": millpond.top("nothing", by="hits", most=1)}, "UNKNOWN_COLUMN"),
        (["site"], {"site": F.count("*")}, "INVALID_REQUEST"),
        (["site"], {"x": F.max(F.array("hits"))}, "WRONG_TYPE"),
    ):
        with pytest.raises(RequestError) as refused:
            millpond.aggregate_changes(changes, by, values)
        assert refused.value.condition == condition
    with pytest.raises(RequestError) as refused:
        millpond.signed_rows(changes.drop("_kind"))
    assert refused.value.condition == "INVALID_REQUEST"

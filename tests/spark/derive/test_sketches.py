"""Sketches that Spark makes, read and merged without it: against what Spark says of the same sketches."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millpond.errors import MillpondError
from millpond.scalar.sketch.kll import SortedItems, merge_kll, rank_error, read_kll
from millpond.scalar.sketch.library import hll_estimate, merge_hll, merge_theta, theta_estimate
from millpond.schema.definition.expression import Expression
from millpond.schema.types import atomic, parse_type
from millpond.tables.finish.buffers.items import TopItems
from suite.sizes import IS_LONG, a_few, examples

KINDS = {"double": "cast(v as double) / 7", "bigint": "v * 1000003 - 5000000", "float": "cast(v as float) / 3"}
RANKS = [0.0, 0.001, 0.25, 0.5, 0.77, 0.99, 1.0]
ITEMS = ["string", "bigint", "double", "float", "int", "smallint", "tinyint", "boolean", "date", "timestamp",
         "decimal(7,2)", "decimal(15,3)", "decimal(30,5)"]  # fmt: skip


def groups(spark: Any, sizes: list[int], values: int) -> Any:
    """A row for each value of each group; groups share values, some of which come far more often than others."""
    sql = f"if(i = 0, NULL, cast(floor(pow(rand(7), 3) * {values}) as bigint))"
    named = spark.createDataFrame(list(enumerate(sizes)), "g int, size int").coalesce(1)
    return named.selectExpr("g", "explode(sequence(0, size)) AS i").selectExpr("g", f"{sql} AS v").localCheckpoint()


def sizes_of(draw: random.Random) -> list[int]:
    fixed = [0, 1, 2, 7, 8, 25, 150, 400]
    return [*fixed, *(draw.choice((3000, 5000, 60_000)) for _ in range(2))] if IS_LONG else [*fixed, 5000]


def test_distinct_counts_are_those_of_sparks_own_union(spark) -> None:
    draw = random.Random(4)
    for lg_k in (4, 12) if IS_LONG else (12,):
        frame = groups(spark, sizes_of(draw), draw.choice((50, 100_000)))
        made = frame.groupBy("g").agg(*exprs(h=f"hll_sketch_agg(v, {lg_k})", t=f"theta_sketch_agg(v, {max(lg_k, 5)})"))
        made = made.selectExpr("*", "hll_sketch_estimate(h) AS he", "theta_sketch_estimate(t) AS te").localCheckpoint()
        rows = made.collect()
        for row in rows:
            assert rounded(hll_estimate(bytes(row["h"])).value) == row["he"]
            assert rounded(theta_estimate(bytes(row["t"])).value) == row["te"]
        several = [draw.sample(rows, draw.randint(1, len(rows))) for _ in range(examples(40))]
        sql = {"h": "hll_sketch_estimate(hll_union_agg(h))", "t": f"theta_sketch_estimate(theta_union_agg(t, {max(lg_k, 5)}))"}
        for chosen, union in zip(several, unions(made, several, **sql), strict=True):
            if len(chosen) > 1:
                assert rounded(hll_estimate(merge_hll([bytes(row["h"]) for row in chosen])).value) == union["h"]
            assert rounded(theta_estimate(merge_theta([bytes(row["t"]) for row in chosen], max(lg_k, 5))).value) == union["t"]


@pytest.mark.parametrize("kind", a_few(sorted(KINDS), 1))
def test_quantiles_are_sparks_and_of_a_union_as_close_as_it_says(spark, kind) -> None:
    draw = random.Random(kind)
    frame = groups(spark, sizes_of(draw), 100_000).where("v is not null").selectExpr("g", f"cast({KINDS[kind]} AS {kind}) AS v")
    probes = [draw.randrange(-1000, 20_000) for _ in range(5)]
    ranks, values = (", ".join(map(repr, each)) for each in (RANKS, probes))
    made = frame.groupBy("g").agg(*exprs(s=f"kll_sketch_agg_{kind}(v)", v="collect_list(v)"))
    rows = made.selectExpr(
        "s", "v", f"kll_sketch_get_quantile_{kind}(s, array({ranks})) AS q", f"kll_sketch_get_n_{kind}(s) AS n",
        f"kll_sketch_get_rank_{kind}(s, cast(array({values}) AS array<{kind}>)) AS r",
    ).collect()  # fmt: skip
    for row in rows:
        sketch = read_kll(bytes(row["s"]), kind)
        items = SortedItems(sketch)
        assert (sketch.n, [items.quantile(rank) for rank in RANKS]) == (row["n"], row["q"])
        assert [items.rank(value) for value in probes] == row["r"]
    for _ in range(examples(20)):
        chosen = draw.sample(rows, draw.randint(1, len(rows)))
        merged = read_kll(merge_kll([bytes(row["s"]) for row in chosen], kind), kind)
        seen = sorted(value for row in chosen for value in row["v"])
        assert (merged.n, merged.least, merged.most) == (len(seen), seen[0], seen[-1])
        items = SortedItems(merged)
        exact = all(row["n"] <= 200 for row in chosen)
        for rank in RANKS:
            value, error = items.quantile(rank), 1 / len(seen) if exact else 1.5 * rank_error(merged.k) + 1 / len(seen)
            below, upto = sum(v < value for v in seen) / len(seen), sum(v <= value for v in seen) / len(seen)
            assert below - error <= rank <= upto + error


@pytest.mark.parametrize("type_name", a_few(ITEMS, 1))
def test_frequent_items_are_those_of_sparks_own_union(spark, type_name) -> None:
    draw = random.Random(type_name)
    cast = {
        "boolean": "v % 2 = 0",
        "date": "date_add(DATE'2026-01-01', cast(v % 300 as int))",
        "timestamp": "timestamp_micros(v * 7919)",
    }
    sql = cast.get(type_name, f"cast(v % {99 if type_name == 'tinyint' else 9000} - 30 AS {type_name})")
    frame = groups(spark, sizes_of(draw), 9000).selectExpr("g", f"{sql} AS v")
    for tracked, k in ((8, 3), (500, 20)) if IS_LONG else ((60, 20),):
        made = frame.groupBy("g").agg(*exprs(s=f"approx_top_k_accumulate(v, {tracked})", v="collect_list(v)", c="count(*)"))
        made = made.selectExpr("*", f"approx_top_k_estimate(s, {k}) AS top").localCheckpoint()
        rows = made.collect()
        top = TopItems(Expression("aggregate", atomic("binary"), options={"of": json_of(spark, frame), "k": k}))
        several = [draw.sample(rows, draw.randint(1, len(rows))) for _ in range(examples(12))]
        found = unions(made, several, top=f"approx_top_k_estimate(approx_top_k_combine(s), {k})")
        for chosen, union in zip(several, found, strict=True):
            (data,) = top.merge([[bytes(row["s"]["sketch"])] for row in chosen])
            ours = shown(top, data, spark, frame)
            seen = [v for row in chosen for v in row["v"]] + [None] * sum(row["c"] - len(row["v"]) for row in chosen)
            for item, least, most in ours:
                assert least <= seen.count(item) <= most
            if all(least == most for _, least, most in ours) and len(set(seen)) <= tracked:
                counts = [found["count"] for found in union["top"]]
                assert [most for _, _, most in ours] == counts
                assert {item for item, _, most in ours if most > counts[-1]} == {
                    found["item"] for found in union["top"] if found["count"] > counts[-1]
                }


def test_sketches_of_several_sizes_are_refused(spark) -> None:
    small, large = (
        spark.range(99).selectExpr(f"hll_sketch_agg(id, {n}) AS h", f"approx_top_k_accumulate(id, {10 * n}).sketch AS i").first()
        for n in (8, 12)
    )
    top = TopItems(Expression("aggregate", atomic("binary"), options={"of": atomic("long").to_json(), "k": 3}))
    for merge in (
        lambda: merge_hll([bytes(small["h"]), bytes(large["h"])]),
        lambda: top.merge([[bytes(small["i"])], [bytes(large["i"])]]),
    ):
        with pytest.raises(MillpondError) as error:
            merge()
        assert error.value.condition == "SKETCHES_DIFFER"


@pytest.mark.long
def test_a_million_values(spark) -> None:
    row = spark.range(1_000_000).selectExpr(
        "hll_sketch_agg(id) AS h", "theta_sketch_agg(id) AS t", "kll_sketch_agg_bigint(id) AS k",
        "approx_top_k_accumulate(least(id, 999000 + id % 7)).sketch AS i",
    )  # fmt: skip
    row = row.selectExpr("*", "hll_sketch_estimate(h) AS he", "theta_sketch_estimate(t) AS te").first()
    assert rounded(hll_estimate(bytes(row["h"])).value) == row["he"]
    assert rounded(theta_estimate(bytes(row["t"])).value) == row["te"]
    items = SortedItems(read_kll(bytes(row["k"]), "bigint"))
    assert all(abs(items.quantile(rank) / 1_000_000 - rank) <= 2 * rank_error(200) for rank in RANKS)
    top = TopItems(Expression("aggregate", atomic("binary"), options={"of": atomic("long").to_json(), "k": 7}))
    found = top.counted(bytes(row["i"]))
    assert {each.item for each in found} == {999_000 + n for n in range(7)}
    # Of the last thousand values each of the seven takes a share.
    assert all(each.least <= 144 <= each.most for each in found)


def unions(made: Any, several: list[list[Any]], **texts: str) -> list[Any]:
    """Aggregates of several lists of rows of `made`, by one query."""
    pairs = [(number, row["g"]) for number, chosen in enumerate(several) for row in chosen]
    named = made.sparkSession.createDataFrame(pairs, "number int, g int").coalesce(1)
    return named.join(made, "g").groupBy("number").agg(*exprs(**texts)).orderBy("number").collect()


def exprs(**texts: str) -> list[Any]:
    from pyspark.sql import functions as sf

    return [sf.expr(text).alias(name) for name, text in texts.items()]


def rounded(value: float) -> int:
    return int(value + 0.5)


def json_of(spark: Any, frame: Any) -> Any:
    import json

    return parse_type(json.loads(frame.schema["v"].dataType.json())).to_json()


def shown(top: TopItems, data: bytes, spark: Any, frame: Any) -> list[tuple[Any, int, int]]:
    from millpond.schema.convert import to_python

    convert = to_python(parse_type(json_of(spark, frame)))
    return [(local(convert(found.item)), found.least, found.most) for found in top.counted(data)]


def local(value: Any) -> Any:
    """As PySpark collects a timestamp: without a zone, in the local one."""
    return value.astimezone().replace(tzinfo=None) if hasattr(value, "tzinfo") and value.tzinfo else value

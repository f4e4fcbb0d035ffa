"""Random aggregate functions over random values: at each batch the table has the value that Spark emitted, bit by bit.

Groups are hard ones: all NULL, one row, equal values, ties, NaN, infinities, zeros of both signs, very large and very small.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

import millpond
from millpond.schema.definition.table import parse_definition
from millpond.schema.types import parse_type
from millpond.spark import derive
from millpond.spark.derive.definition import MillpondWarning
from millpond.tables.finish.buffers.java_order import java_hash
from millpond.tables.finish.definition import compile_definition
from millpond.tables.forms.arrow import python_array
from millpond.tables.forms.arrow_errors import Failures
from oracles.emitted import Emitted, bits, by_key
from suite.sizes import a_few

BATCHES = 3
ROWS = 60
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STORES = "org.apache.spark.sql.execution.streaming.state."
SCHEMA = """
    k string, i int, l long, small tinyint, sh smallint, d double, e double, f float, s string, t string, b boolean, bin binary,
    day date, at timestamp, ntz timestamp_ntz, p decimal(9,2), q decimal(38,10), dti interval day to second, months int
"""
KINDS = ["mixed", "mixed", "ties", "nulls", "equal", "special", "extreme", "one", "two"]
NUMBERS = ["i", "l", "small", "sh", "d", "e", "f", "p", "q"]
TIMES = ["day", "at", "ntz"]
SPANS = ["dti", "ym"]
ORDERED = [*NUMBERS, "s", "b", "bin", *TIMES, *SPANS, "named_struct('d', d, 's', s)", "array(f, e)"]
ANY = [*ORDERED, "array(s)", "named_struct('i', i, 'p', p)"]

SAMPLED = [*[n for n in NUMBERS if n != "q"], *TIMES, *SPANS]

# {n} a number, {m} another one, {o} what has an order, {v} any value, {t} a text,
# {x} a number, a time or an interval, {h} no decimal of these,
# {w} a percentage, {ws} several, {k} a small number, {hash} what sketches hash, {item} what they count
FUNCTIONS = {
    "moments": [
        "stddev({n})", "stddev_pop({n})", "var_samp({n})", "var_pop({n})", "variance({n})", "std({n})", "skewness({n})",
        "kurtosis({n})",
    ],
    "pairs": [
        "corr({n}, {m})", "covar_pop({n}, {m})", "covar_samp({n}, {m})", "regr_count({n}, {m})", "regr_avgx({n}, {m})",
        "regr_avgy({n}, {m})", "regr_sxx({n}, {m})", "regr_syy({n}, {m})", "regr_sxy({n}, {m})", "regr_slope({n}, {m})",
        "regr_intercept({n}, {m})", "regr_r2({n}, {m})",
    ],
    "tops": ["max_by({v}, {o}, {k})", "min_by({v}, {o}, {k})", "max_by({v}, {o})", "min_by({v}, {o})"],
    "percentiles": [
        "percentile({n}, {w})", "percentile({n}, {ws})", "percentile({i}, {w})", "percentile({n}, {w}, abs(i) % 4)",
        "median({n})", "median({i})", "percentile_cont({w}) WITHIN GROUP (ORDER BY {n})",
        "percentile_cont({w}) WITHIN GROUP (ORDER BY {n} DESC)", "percentile_disc({w}) WITHIN GROUP (ORDER BY {n})",
        "percentile_disc({w}) WITHIN GROUP (ORDER BY {n} DESC)", "percentile_disc({w}) WITHIN GROUP (ORDER BY {i})",
    ],
    "quantiles": ["percentile_approx({x}, {w})", "approx_percentile({x}, {ws}, 20)", "percentile_approx({x}, {w}, {k})"],
    "modes": [
        "mode({v})", "mode({v}, true)", "mode({v}, false)", "mode() WITHIN GROUP (ORDER BY {o})",
        "mode() WITHIN GROUP (ORDER BY {o} DESC)",
    ],
    "joined": [
        "listagg({t})", "string_agg({t}, ', ')", "listagg({t}, '-') WITHIN GROUP (ORDER BY {t})",
        "listagg(s, '|') WITHIN GROUP (ORDER BY s DESC)", "listagg({t}, '') WITHIN GROUP (ORDER BY {o}, {o2} DESC)",
        "listagg(bin, X'00') WITHIN GROUP (ORDER BY {o} DESC NULLS FIRST)", "listagg(bin)",
        "listagg(s, ',') WITHIN GROUP (ORDER BY {o} NULLS LAST)",
    ],
    "histograms": ["histogram_numeric({h}, 3)", "histogram_numeric({h}, 8)"],
    "folds": [
        "product({n})", "count_if(b)", "any_value({v})", "any_value({v}, true)", "first({v}, true)", "last({v}) IGNORE NULLS",
        "every(b)", "some(b)", "bit_and({w_int})", "bit_or({w_int})", "bit_xor({w_int})", "try_sum({n})", "try_avg({n})",
        "min({o})", "max({o})", "sum(CAST({n} AS double))", "avg({n})", "collect_list({v})", "array_agg({v})",
        "if(count(*) > 0, collect_set({v}), NULL)", "size(collect_set({v}))",
        "count_min_sketch(i, 0.5d, 0.5d, 1)", "bitmap_construct_agg(bitmap_bit_position(i))", "bitmap_or_agg(bin)",
        "bitmap_and_agg(bin)",
    ],
    "sketches": [
        "hll_sketch_agg(s)", "hll_sketch_agg(l, 4)", "hll_sketch_estimate(hll_sketch_agg({hash}, 8))",
        "theta_sketch_agg({hash}, 5)", "theta_sketch_estimate(theta_sketch_agg(d, 4))", "theta_sketch_agg(array(i, i))",
        "kll_sketch_get_n_bigint(kll_sketch_agg_bigint(l))",
        "if(kll_sketch_get_n_double(kll_sketch_agg_double({n})) > 0,"
        " kll_sketch_get_quantile_double(kll_sketch_agg_double({n}), {w}), NULL)",
        "if(kll_sketch_get_n_bigint(kll_sketch_agg_bigint({w_int})) > 0,"
        " kll_sketch_get_quantile_bigint(kll_sketch_agg_bigint({w_int}), {ws}), NULL)",
        "if(kll_sketch_get_n_float(kll_sketch_agg_float(f)) > 0, kll_sketch_get_rank_float(kll_sketch_agg_float(f), 3.0f), NULL)",
        "approx_top_k({item}, {k}, 100)", "approx_top_k({item}, {k}, {k})", "approx_top_k({item})",
    ],
}  # fmt: skip


def template_values(draw: random.Random) -> dict[str, str]:
    return {
        "n": draw.choice(NUMBERS), "m": draw.choice(NUMBERS), "o": draw.choice(ORDERED), "o2": draw.choice(ORDERED),
        "v": draw.choice(ANY), "t": draw.choice(["s", "t"]), "i": draw.choice(SPANS), "x": draw.choice(SAMPLED),
        "h": draw.choice([x for x in SAMPLED if x != "p"]),
        "w": draw.choice(["0.0", "0.5", "1.0", "0.37", "0.9"]), "ws": draw.choice(["array(0.9, 0.1, 0.5)", "array(1.0, 0.0)"]),
        "hash": draw.choice(["i", "l", "s", "bin"]), "item": draw.choice([*NUMBERS, *TIMES, "s", "t", "b"]),
        "k": str(draw.choice([1, 2, 3, 5, 8])), "w_int": draw.choice(["i", "l", "small", "sh"]),
    }  # fmt: skip


def random_functions(draw: random.Random, count: int) -> list[str]:
    """So many functions, some of every group."""
    groups = list(FUNCTIONS)
    return [draw.choice(FUNCTIONS[groups[n % len(groups)]]).format(**template_values(draw)) for n in range(count)]


def random_rows(draw: random.Random, batch: int) -> list[tuple[Any, ...]]:
    rows = [random_row(draw, draw.choice(KINDS[:7])) for _ in range(ROWS)]
    if batch == 0:
        rows += [random_row(draw, kind) for kind in ("one", "two", "two", "nulls")]
    return rows


def random_row(draw: random.Random, kind: str) -> tuple[Any, ...]:
    if kind == "equal":
        draw_values = random.Random(kind)
        return (kind, *plain_values(draw_values, draw_values.randint))
    if kind == "nulls":
        return (kind, *[None] * 18)
    if kind == "ties":
        values = plain_values(draw, lambda low, high: draw.randint(max(low, -1), min(high, 1)))
    else:
        values = plain_values(draw, draw.randint)
    row: list[Any] = [kind, *values]
    if kind in ("special", "extreme"):
        large_and_small = [1e-200, -1e-160, 1e300, -1e300, 5e-324]
        specials = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0] if kind == "special" else large_and_small
        row[5], row[6] = draw.choice(specials), draw.choice(specials)
        row[7] = struct.unpack("f", struct.pack("f", draw.choice([math.nan, math.inf, 0.0, -0.0, 3.4e38])))[0]
        if kind == "extreme":
            row[2], row[16] = draw.choice([2**63 - 1, -(2**63), 5]), Decimal("9" * 28 + "." + "9" * 10)
    return tuple(None if at and draw.random() < 0.15 else value for at, value in enumerate(row))


def plain_values(draw: random.Random, number: Any) -> list[Any]:
    text = ["", "a", "ab", "b", "ü", "zebra", "\U00010000", "\uffff"]
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=number(-(10**12), 10**12))
    return [
        number(-1000, 1000), number(-(2**50), 2**50), number(-128, 127), number(-30000, 30000),
        number(-(10**6), 10**6) / 7, float(number(-5, 5)), number(-100, 100) / 4,
        text[number(0, 7)], text[number(0, 3)], bool(number(0, 1)), text[number(0, 5)].encode(),
        dt.date(2000, 1, 1) + dt.timedelta(days=number(-9000, 9000)), moment, moment.replace(tzinfo=None),
        Decimal(number(-99999, 99999)).scaleb(-2), Decimal(number(-(10**30), 10**30)).scaleb(-10),
        dt.timedelta(microseconds=number(-(10**12), 10**12)), number(-500, 500),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def events(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    draw = random.Random(20261122)
    for batch in range(BATCHES):
        spark.createDataFrame(random_rows(draw, batch), SCHEMA).coalesce(1).write.mode("append").parquet(str(folder))
    schema = spark.read.parquet(str(folder)).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return stream.selectExpr("*", "make_ym_interval(0, months) AS ym")


@contextmanager
def settings(spark, **values: str) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def column_of(text: str) -> Any:
    from pyspark.sql import functions as sf

    # No function of SQL.
    return sf.product(text[8:-1]) if text.startswith("product(") else sf.expr(text)


def differences(spark, events, functions: list[str], pond: Path, **conf: str) -> list[Any]:
    """Run functions in one query; returns all values that differ from Spark's in any batch."""
    import pyarrow as pa

    columns = [column_of(text).alias(f"c{n}") for n, text in enumerate(functions)]
    emitted = Emitted()
    with settings(spark, **conf):
        started = millpond.start(
            events.groupBy("k").agg(*columns), table="t", pond=pond, trigger="available-now", sink=emitted, partitions=2
        )
        with started as job:
            assert job.wait_for_end(240)
    assert job.definition.warnings == (), job.definition.warnings
    assert len(emitted.frames) == BATCHES
    types = {c.name: c.type for c in job.definition.values}
    found: list[Any] = []
    newest: dict[Any, dict[str, Any]] = {}
    for batch in sorted(emitted.frames):
        newest |= by_key(emitted.frames[batch], ("k",))
        shown = by_key(millpond.read_arrow(pond, "t", batch=batch).to_pylist(), ("k",))
        assert shown.keys() == newest.keys()
        for column, type_ in types.items():
            array = python_array(pa, type_, [row[column] for row in newest.values()], Failures(), column)
            ours = dict(zip(newest, array.to_pylist(), strict=True))
            found += compared(functions, column, batch, newest, shown, ours)
    with millpond.open(pond, replica_dir="memory://") as opened:
        rows = by_key([dict(row) for row in opened["t"].scan()], ("k",))
    for column in types:
        found += compared(functions, column, "get", newest, rows, {key: row[column] for key, row in newest.items()})
    return found


def compared(functions: list[str], column: str, at: Any, newest: Any, shown: Any, ours: Any) -> list[Any]:
    text = functions[int(column[1:])]
    return [
        (text, at, newest[key]["k"], shown[key][column], ours[key]) for key in newest if form(shown[key][column]) != form(ours[key])
    ]


def form(value: Any) -> Any:
    """A form in which only equal bits are equal; decimals, whose type has the scale, only need equal numbers."""
    if isinstance(value, Decimal):
        return value.normalize(Context(prec=80)).as_tuple()
    if isinstance(value, list):
        return [form(v) for v in value]
    return {name: form(v) for name, v in value.items()} if isinstance(value, dict) else bits(value)


def conf_of(seed: int) -> dict[str, str]:
    """The conf of both state stores, and of every setting that changes a function's meaning."""
    return {
        PROVIDER: STORES + ("RocksDBStateStoreProvider" if seed % 2 else "HDFSBackedStateStoreProvider"),
        "spark.sql.legacy.statisticalAggregate": str(seed % 3 == 1).lower(),
        "spark.sql.legacy.percentileDiscCalculation": str(seed % 3 == 2).lower(),
        "spark.sql.legacy.histogramNumericPropagateInputType": str(seed % 3 != 0).lower(),
        "spark.sql.ansi.enabled": "false",
    }


@pytest.mark.parametrize("seed", a_few(range(6), 1))
def test_random_functions_show_what_spark_emits(spark, events, tmp_path, seed):
    draw = random.Random(seed)
    assert differences(spark, events, random_functions(draw, 45 if seed else 15), tmp_path, **conf_of(seed)) == []


@pytest.mark.long
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_statistics_of_one_row_equal_values_and_what_is_no_number(spark, events, tmp_path, ansi):
    """All of them, with Spark's legacy setting and without."""
    texts = [
        text.format(**{**template_values(random.Random(4)), "n": n, "m": m})
        for text in [*FUNCTIONS["moments"], *FUNCTIONS["pairs"]]
        for n, m in (("d", "e"), ("i", "i"), ("e", "p"))
    ]
    # In ANSI mode a division by zero fails the batch, so Spark emits nothing for very large and very small values together.
    rows = events if ansi == "false" else events.where("k != 'extreme'")
    for legacy in ("true", "false"):
        conf = {"spark.sql.legacy.statisticalAggregate": legacy, "spark.sql.ansi.enabled": ansi}
        assert differences(spark, rows, texts, tmp_path / legacy, **conf) == []


def test_a_setting_is_that_of_the_job_and_not_of_who_reads(spark, events):
    """The definition has the job's legacy setting, which decides what Spark gives for one row."""
    from pyspark.sql import functions as sf

    shown = {}
    for legacy in ("true", "false"):
        with settings(spark, **{"spark.sql.legacy.statisticalAggregate": legacy}):
            grouped = events.groupBy("k").agg(sf.stddev("d").alias("c"))
            definition = parse_definition(json.loads(json.dumps(derive(grouped, table="t").to_json())))
        shown[legacy] = compile_definition(definition)(("k",), (1.0, 5.0, 0.0))["c"]
    assert math.isnan(shown["true"])
    assert shown["false"] is None


SKETCHES = {
    "hll_union_agg(bin)": "an HLL sketch", "theta_intersection_agg(bin)": "a theta sketch",
    "kll_sketch_agg_double(d)": "a KLL sketch", "length(kll_sketch_agg_double(d))": "a KLL sketch",
    "tuple_sketch_agg_integer(s, i)": "a tuple sketch", "approx_top_k_accumulate(s, 2)": "an items sketch",
}  # fmt: skip


def test_what_cannot_be_shown_of_sketches_is_raw_bytes_whose_type_is_named(events):
    from pyspark.sql import functions as sf

    for text, what in SKETCHES.items():
        with pytest.warns(MillpondWarning, match=f"makes {what} of Apache DataSketches"):
            definition = derive(events.groupBy("k").agg(sf.expr(text).alias("c")), table="t")
        (column,) = definition.values
        assert (column.name, column.type.kind) == ("stored_c_buf", "binary")
        assert what in column.raw
    with pytest.warns(MillpondWarning, match="which items of type"):
        derive(events.groupBy("k").agg(sf.expr("approx_top_k(collate(s, 'UTF8_LCASE'))").alias("c")), table="t")


HASHED = ["boolean", "byte", "integer", "long", "double", "string", "binary", "decimal(9,2)", "decimal(38,10)"]


@pytest.mark.parametrize("type_name", a_few(HASHED, 3))
def test_hashes_are_those_of_the_jvm(spark, type_name):
    """Spark's hash maps give equal elements in the order of these hashes."""
    draw, hash_ = random.Random(3), java_hash(parse_type(type_name))
    for _ in range(300):
        value = value_to_hash(draw, type_name)
        assert (hash_(value) + (1 << 31)) % (1 << 32) - (1 << 31) == hash_in_jvm(spark._jvm, type_name, value), value


def value_to_hash(draw: random.Random, type_name: str) -> Any:
    if type_name == "boolean":
        return draw.random() < 0.5
    if type_name in ("byte", "integer", "long"):
        half = 1 << ({"byte": 8, "integer": 32, "long": 64}[type_name] - 1)
        return draw.randrange(-half, half)
    if type_name == "double":
        return draw.choice([draw.gauss(0, 1e6), 0.0, -0.0, math.nan, math.inf, -math.inf, 1e-30])
    data = "".join(draw.choices("ab\0ü\uffff\U0001f600", k=draw.randrange(9)))
    if not type_name.startswith("decimal"):
        return data if type_name == "string" else data.encode()
    digits, scale = (9, 2) if "9" in type_name else (38, 10)
    number = draw.choice([draw.randrange(10 ** draw.randint(1, digits)), 10 ** draw.randrange(digits)])
    return (Decimal(draw.choice([1, -1]) * number)).scaleb(-scale, Context(prec=80))


def hash_in_jvm(jvm: Any, type_name: str, value: Any) -> int:
    if type_name == "binary":
        return jvm.org.apache.spark.sql.catalyst.expressions.aggregate.BinaryKey(bytearray(value)).hashCode()
    if type_name == "string":
        return jvm.org.apache.spark.unsafe.types.UTF8String.fromString(value).hashCode()
    if type_name.startswith("decimal"):
        precision, scale = (9, 2) if "9" in type_name else (38, 10)
        decimal = jvm.org.apache.spark.sql.types.Decimal.apply(format(value, "f"))
        assert decimal.changePrecision(precision, scale)
        return decimal.hashCode()
    # An array's own hash is 31 times and the element's: through a value's class, py4j finds only Object.hashCode().
    if type_name == "byte":
        return jvm.java.util.Arrays.hashCode(bytearray([value % 256])) - 31
    one = SparkContext._gateway.new_array(getattr(jvm, {"integer": "int"}.get(type_name, type_name)), 1)
    one[0] = value
    return jvm.java.util.Arrays.hashCode(one) - 31

"""At the end of its input, a table equals a plain PySpark groupBy over the same input.

test_derive_finish.py and tests/golden compare with the job's own rows, bit by bit.  Here the oracle is a batch recomputation, which
adds in another order, so the table below says for each function how to compare.
"""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = """
    k string, day date, i int, l long, d double, s string, b boolean,
    d3 decimal(3,1), d9 decimal(9,2), d18 decimal(18,4), d38 decimal(38,10)
"""
BATCHES = 4

EXACT, AS_SET, CLOSE = "equal", "equal as sets", "within 1e-12, relative"
# function -> how to compare.  first, last, any_value, collect_list and ties of max_by depend on the order of rows, which differs
# between a batch query and a stream: only the tests against the job's own rows have these.
HOW: dict[str, str] = {
    "count(*)": EXACT,
    "count(i)": EXACT,
    "count_if(i > 0)": EXACT,
    "count(*) FILTER (WHERE b)": EXACT,
    "sum(i)": EXACT,
    "sum(d)": CLOSE,
    "sum(d3)": EXACT,
    "sum(d9)": EXACT,
    "sum(d18)": EXACT,
    "sum(d38)": EXACT,
    "avg(i)": EXACT,
    "avg(d)": CLOSE,
    "avg(d3)": EXACT,
    "avg(d9)": EXACT,
    "avg(d18)": EXACT,
    "min(d)": EXACT,
    "max(s)": EXACT,
    "min(day)": EXACT,
    "max(l) - min(l)": EXACT,
    "bool_and(b)": EXACT,
    "bool_or(b)": EXACT,
    "bit_xor(i)": EXACT,
    "stddev(d)": CLOSE,
    "var_pop(d)": CLOSE,
    "skewness(d)": CLOSE,
    "approx_count_distinct(s)": EXACT,
    "approx_count_distinct(l)": EXACT,
    "collect_set(s)": AS_SET,
    "max_by(s, l)": EXACT,
    "min_by(i, l)": EXACT,
    "max_by(s, l, 3)": EXACT,
    "min_by(d9, l, 1000)": EXACT,
    "coalesce(sum(i), 0) * 2": EXACT,
    "CASE WHEN count(*) > 100 THEN 'many' ELSE 'few' END": EXACT,
}


def write_input(folder: Path) -> None:
    rng = random.Random(5)
    serial = iter(range(10**6))
    for batch in range(BATCHES):
        rows = []
        for _ in range(400):
            number = next(serial) * 7919 % 10**7  # different in every row: max_by has no ties
            rows.append(
                {
                    "k": rng.choice(["a", "b", "ü", "", None]),
                    "day": f"2026-01-{rng.randint(1, 3):02d}",
                    "i": rng.choice([None, rng.randint(-(2**31), 2**31 - 1)]),
                    "l": number,
                    "d": rng.choice([None, rng.gauss(3, 1000)]),
                    "s": rng.choice([None, f"v{rng.randint(0, 3000)}"]),
                    "b": rng.choice([True, False, None]),
                    "d3": f"{rng.randint(-999, 999) / 10:.1f}",
                    "d9": f"{rng.randint(-(10**8), 10**8) / 100:.2f}",
                    "d18": f"{rng.randint(-(10**13), 10**13)}.{rng.randint(0, 9999):04d}",
                    "d38": f"{rng.randint(-(10**20), 10**20)}.{rng.randint(0, 10**10 - 1):010d}",
                }
            )
        write_event_file(folder, batch, rows)


def same(how: str, found: Any, expected: Any) -> bool:
    if found is None or expected is None:
        return found is expected
    if how == AS_SET:
        return sorted(found) == sorted(expected)
    if how == CLOSE:
        return math.isclose(found, expected, rel_tol=1e-12)
    if isinstance(expected, Decimal):
        return str(found) == str(expected)
    return bool(found == expected)


@pytest.mark.parametrize("provider", a_few(["RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"], 1))
def test_every_function_equals_a_batch_recomputation(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    from pyspark.sql import functions as F

    (tmp_path / "in").mkdir()
    write_input(tmp_path / "in")
    columns = [F.expr(text).alias(f"c{i}") for i, text in enumerate(HOW)]

    def query(frame: Any) -> Any:
        return frame.groupBy("k", "day").agg(*columns)

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key)
    spark.conf.set(key, f"org.apache.spark.sql.execution.streaming.state.{provider}")
    try:
        job = millpond.start(query(stream), table="t", pond=tmp_path / "pond", trigger="available-now", partitions=3, strict=True)
    finally:
        spark.conf.set(key, before)
    with job:
        job.wait_for_end(timeout_seconds=120)
    expected = {(r.k, r.day): r for r in query(spark.read.schema(SCHEMA).json(str(tmp_path / "in"))).collect()}
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home") as pond:
        rows = pond["t"].scan()
        assert rows.batch == BATCHES - 1
        assert {(r["k"], r["day"]) for r in rows} == set(expected)
        for row in rows:
            want = expected[(row["k"], row["day"])]
            for i, (text, how) in enumerate(HOW.items()):
                assert same(how, row[f"c{i}"], want[f"c{i}"]), (
                    f"{text} of {row['k']!r}, {row['day']}: {row[f'c{i}']} != {want[f'c{i}']}"
                )
            assert dict(pond["t"].get(k=row["k"], day=row["day"])) == dict(row)

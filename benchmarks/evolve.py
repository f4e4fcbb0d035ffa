"""Savepoints with other rows: `evolve` and `savepoint edit`, beside a batch job of Spark's that does the same to the same state.

    python benchmarks/evolve.py [--keys 1000000] [--rounds 3] [--write]

Spark writes the state itself: a count and a sum for each key of type long, in 8 partitions.  By turns, in one process:

    columns    Spark reads the state (`statestore`), adds two columns to each row, and writes Parquet
    function   Spark does the same with a Python function for each row, which doubles the sum
    evolve     millpond.plan_evolve for a query with a maximum and a minimum more: a new savepoint
    edit       millpond.plan_edit_savepoint with a Python function for each row, which doubles the sum: a new savepoint

A savepoint is a state that Spark starts from; the batch job's result is none.  What is timed of Millpond includes the plan, a
second read of every row, the hashes and the sync.  `plan_write_state`, which makes a state of a past, has a benchmark of its own:
write_state.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import write_result
from states import PROVIDERS, spark_session, stream, totals, write_state

import millpond

KINDS = {"columns": "evolve", "function": "edit"}
"""what Spark does -> what Millpond does"""
SUM = "sum"


def doubled(row: millpond.StateRow) -> millpond.StateRow:
    """A row with twice its sum."""
    row.value[SUM] *= 2
    return row


def measure(spark: Any, checkpoint: Path, keys: int, rounds: int) -> list[dict[str, float]]:
    """Seconds of each kind, in each round."""
    from pyspark.sql import functions as F

    rows = spark.read.format("statestore").load(str(checkpoint)).select("key.*", "value.*")
    double = F.udf(lambda total: total * 2, "long", useArrow=False)
    events, batch = stream(spark, checkpoint.with_name(f"{checkpoint.name}-input")), checkpoint.with_name("batch")
    old, new = totals(events), totals(events, F.max("a"), F.min("a"))
    none = F.lit(None).cast("long")

    def make(plan: Any) -> None:
        assert sum(state.rows or 0 for state in plan.run().manifest.partitions) == keys

    jobs: dict[str, Callable[[], None]] = {
        "columns": lambda: rows.withColumns({"most": none, "least": none}).write.parquet(str(batch)),
        "evolve": lambda: make(millpond.plan_evolve(new, checkpoint, "first", "after", old=old)),
        "function": lambda: rows.withColumn(SUM, double(SUM)).write.parquet(str(batch)),
        "edit": lambda: make(millpond.plan_edit_savepoint(checkpoint, "first", "after", edit=doubled)),
    }
    millpond.plan_savepoint(checkpoint, "first").run()
    expected = rows.agg(F.sum(SUM)).first()[0]
    found = []
    for number in range(rounds + 1):
        seconds = {}
        for kind, work in jobs.items():
            began = time.perf_counter()
            work()
            seconds[kind] = round(time.perf_counter() - began, 3)
            if kind == "function":
                assert spark.read.parquet(str(batch)).agg(F.sum(SUM)).first()[0] == 2 * expected
            if kind in KINDS:
                shutil.rmtree(batch)
            else:
                millpond.plan_delete_savepoint(checkpoint, "after").run()
        print(checkpoint.name, seconds, file=sys.stderr, flush=True)
        if number:  # the first warms the JVM
            found.append(seconds)
    return found


def main() -> None:
    """Measure both providers, and show the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/evolve.json")
    options = parser.parse_args()
    spark = spark_session("evolve", "4g")
    rounds: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for provider in PROVIDERS:
            checkpoint = Path(folder, provider)
            write_state(spark, checkpoint, provider, options.keys)
            rounds[provider] = measure(spark, checkpoint, options.keys, options.rounds)
        spark.stop()
    result: dict[str, Any] = {
        "what": "new savepoints with other rows, beside a Spark batch job that does the same to the state and writes Parquet",
        "keys": options.keys,
    }
    for provider, many in rounds.items():
        medians = {kind: statistics.median(r[kind] for r in many) for kind in many[0]}
        result[provider] = {
            "median_seconds": medians,
            "rows_per_second": {kind: round(options.keys / seconds) for kind, seconds in medians.items()},
            "seconds_as_multiple_of_spark": {
                ours: round(statistics.median(r[ours] / r[spark_job] for r in many), 2) for spark_job, ours in KINDS.items()
            },
        }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("evolve", result, rounds)


if __name__ == "__main__":
    main()

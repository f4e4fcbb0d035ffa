"""Lookups a second in one process, beside LMDB's own get of the same bytes, by turns in one run.

    python benchmarks/lookup.py [--keys 500000] [--seconds 3] [--write]

A Spark job (count, sum and average by a text key) writes the state; then `Table.get` with random keys, every answer a decoded row
that names its batch and its lag, is timed beside `lmdb.Transaction.get` of the stored key in a transaction of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

from results import machine, write_result


def rate(call: Callable[[Any], object], keys: list[Any], seconds: float) -> float:
    """Calls a second, over keys in turn."""
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for key in keys[done % len(keys) : done % len(keys) + 1000]:
            call(key)
        done += 1000
    return done / (time.perf_counter() - began)


def main() -> None:
    """Fill a pond, then measure by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/lookup.json")
    options = parser.parse_args()
    import lmdb
    from pyspark.sql import functions as F

    import millpond
    from millpond.replica.ordered import store_key

    with tempfile.TemporaryDirectory() as scratch:
        spark = millpond.session("lookup", **{"spark.master": "local[2]", "spark.ui.enabled": "false"})
        spark.sparkContext.setLogLevel("ERROR")
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", options.keys).load()
        named = source.withColumn("page", F.concat(F.lit("/page/"), F.col("value") % options.keys))
        df = named.groupBy("page").agg(F.count("*").alias("hits"), F.sum("value").alias("bytes"), F.avg("value").alias("mean"))
        job = millpond.start(df, table="views", pond=f"{scratch}/pond", partitions=2)
        job.wait_for_batch(2, timeout_seconds=300)
        job.stop()
        spark.stop()
        with millpond.open(f"{scratch}/pond", replica_dir=f"{scratch}/home", wait_seconds=300) as pond:
            table = pond["views"]
            pages = [f"/page/{random.Random(1).randrange(options.keys)}"] + [
                f"/page/{n}" for n in random.Random(7).sample(range(options.keys), 50_000 - 1)
            ]
            binding = table._bind(pond._jobs["views"].replica.__dict__["_serving"][1])
            raw_keys = [store_key(binding.codec.encode((page,))) for page in pages]
            backend = pond._jobs["views"].replica.__dict__["_serving"][0]
            environment, handle = backend._environment, backend._handles[binding.table]
            assert isinstance(environment, lmdb.Environment)

            def bare(key: bytes) -> object:
                with environment.begin() as transaction:
                    return transaction.get(key, db=handle)

            def whole(page: str) -> object:
                row = table.get(page=page)
                assert row
                return row

            bare_rates, get_rates = [], []
            for _ in range(3):
                bare_rates.append(rate(bare, raw_keys, options.seconds))
                get_rates.append(rate(whole, pages, options.seconds))
            rows = int(table.count())
    get, own = sorted(get_rates)[1], sorted(bare_rates)[1]
    result = {
        "machine": machine(),
        "rows": rows,
        "table_get_per_second": round(get),
        "lmdb_get_per_second": round(own),
        "ratio": round(get / own, 3),
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("lookup", result)


if __name__ == "__main__":
    main()

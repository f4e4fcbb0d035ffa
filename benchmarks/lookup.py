"""Lookups a second in one process, beside LMDB's own get of the same bytes, by turns in one run.

    python benchmarks/lookup.py [--keys 500000] [--seconds 3] [--write]

A Spark job (count, sum and average by a text key) writes the state; then `Table.get` with random keys, every answer a decoded row
that names its batch and its lag, is timed beside `lmdb.Transaction.get` of the stored key in a transaction of its own.  Then the
parts of such a get are timed alone, one after the other: where its time goes.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from results import write_result


def rate(call: Callable[[Any], object], keys: list[Any], seconds: float) -> float:
    """Calls a second, over keys in turn."""
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for key in keys[done % len(keys) : done % len(keys) + 1000]:
            call(key)
        done += 1000
    return done / (time.perf_counter() - began)


def bare_rate(folder: str, store: str, keys: list[bytes], seconds: float) -> float:
    """LMDB's own gets a second, each in a transaction of its own."""
    import lmdb

    with lmdb.open(folder, max_dbs=8, readonly=True, readahead=False) as environment:
        handle = environment.open_db(store.encode(), create=False)

        def bare(key: bytes) -> None:
            with environment.begin() as transaction:
                assert transaction.get(key, db=handle) is not None

        return rate(bare, keys, seconds)


def parts_of_a_get(table: Any, pages: list[str]) -> dict[str, float]:
    """Microseconds of each step of `Table.get`, called as it calls them."""
    from millpond.replica.keys.codec import split_value, store_key
    from millpond.replica.row_stamp import without_stamp
    from millpond.tables.answer import Row

    def open_view(_: str) -> None:
        table.begin().close()

    read = table.begin()
    binding, cut, rows = read.binding, read.cut, read.stored()

    def encode(page: str) -> bytes:
        key: bytes = binding.codec.encode(table._keys.row(table._keys.stored({"page": page})))
        return key

    keys = {page: store_key(encode(page)) for page in pages}
    stored = {page: rows.get(binding.table, key) for page, key in keys.items()}

    def decode(page: str) -> Any:
        return binding.finish((page,), binding.decode_value(split_value(keys[page], without_stamp(stored[page]))[1]))

    values = {page: decode(page) for page in pages}
    steps: dict[str, Callable[[str], object]] = {
        "open a view, with batch and lag": open_view,
        "key from names": lambda page: store_key(encode(page)),
        "LMDB": lambda page: rows.get(binding.table, keys[page]),
        "decode the row": decode,
        "the answer": lambda page: Row(values[page], cut, stored[page]),
    }
    nothing = 1e6 / rate(lambda _: None, pages, 1)
    found = {name: round(1e6 / rate(step, pages, 1) - nothing, 2) for name, step in steps.items()}
    read.close()
    return found


def main() -> None:
    """Fill a pond, then measure by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/lookup.json")
    options = parser.parse_args()
    from pyspark.sql import functions as F

    import millpond
    from millpond.replica.folder import ReplicaPlace
    from millpond.replica.keys.codec import KeyCodec, store_key
    from millpond.schema.store import store_id
    from millpond.storage import open_storage

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
            codec = KeyCodec(table.definition.key_schema)
            raw_keys = [store_key(codec.encode((page,))) for page in pages]
            folder = ReplicaPlace(Path(scratch, "home"), open_storage(job.checkpoint).uri).current()
            store = store_id(*table.definition.store_id)

            def whole(page: str) -> object:
                row = table.get(page=page)
                assert row
                return row

            bare_rates, get_rates = [], []
            # In a process of its own: LMDB allows a process one environment for a file.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
                for _ in range(3):
                    bare_rates.append(other.submit(bare_rate, str(folder), store, raw_keys, options.seconds).result())
                    get_rates.append(rate(whole, pages, options.seconds))
            rows = int(table.count())
            parts = parts_of_a_get(table, pages)
    get, own = sorted(get_rates)[1], sorted(bare_rates)[1]
    result = {
        "rows": rows,
        "table_get_per_second": round(get),
        "lmdb_get_per_second": round(own),
        "ratio": round(get / own, 3),
        "microseconds_of_a_get": round(1e6 / get, 2),
        "of_these": parts,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        rates = zip(get_rates, bare_rates, strict=True)
        write_result("lookup", result, [{"table_get": round(ours), "lmdb_get": round(bare)} for ours, bare in rates])


if __name__ == "__main__":
    main()

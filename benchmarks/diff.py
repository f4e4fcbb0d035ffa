"""Two batches of one job compared row by row, beside Spark's own join of the two, at several sizes in one run.

    python benchmarks/diff.py [--keys 1000000 4000000] [--rounds 3] [--write]

Spark writes the state: the HDFS-backed provider, 8 partitions; the first batch puts every key (long -> two longs), the second one
changes a hundredth of them.  A savepoint is made of each.  Each process compares the two once, and counts the rows that differ:

    diff       millpond.read_diff: both sides are sorted in files, and merged
    spark      both sides by Spark's `statestore` reader, a full outer join by key, the rows that differ counted

Each is a process of its own, by turns; seconds leave out imports and the start of the JVM.  Memory is the most that the process had
(VmHWM); Spark's is the JVM's, which takes what its heap may have (8 GiB) before it cleans up.  The temporary files of `diff` lie in
the system's cache as far as it has room.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result
from states import PARTITIONS, jvm_of, peak_mib, spark_session, write_state

KINDS = ("diff", "spark")


def run(kind: str, checkpoint: str) -> dict[str, Any]:
    """Counts, seconds and memory of one process."""
    if kind == "spark":
        spark = spark_session("diff")
        jvm = jvm_of(spark)
        before, began = peak_mib(jvm), time.perf_counter()
        counts = compare(spark, checkpoint)
        found = {"counts": counts, "seconds": time.perf_counter() - began, "peak_mib": peak_mib(jvm), "at_start_mib": before}
        spark.stop()
        return found
    import numpy  # noqa: F401  imports aren't timed

    from millpond.tables.diff.read import read_diff

    before, began = peak_mib(), time.perf_counter()
    (table,) = read_diff(checkpoint, "first", "second").tables
    counts = [table.counts.added, table.counts.removed, table.counts.changed, table.counts.same]
    return {"counts": counts, "seconds": time.perf_counter() - began, "peak_mib": peak_mib(), "at_start_mib": before}


def compare(spark: Any, checkpoint: str) -> list[int]:
    """Rows added, removed, changed and the same, by Spark."""
    from pyspark.sql import functions as F

    old, new = (
        spark.read.format("statestore").option("batchId", batch).load(checkpoint).select("key.k", F.col("value").alias(name))
        for batch, name in ((0, "old"), (1, "new"))
    )
    kinds = [
        F.col("old").isNull(),
        F.col("new").isNull(),
        F.col("old") != F.col("new"),
        F.col("old") == F.col("new"),
    ]
    row = old.join(new, "k", "full_outer").agg(*(F.count_if(kind) for kind in kinds)).first()
    return [int(n) for n in row]


def figures(keys: int, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians and ratios of one size."""
    seconds = {kind: statistics.median(found["seconds"] for found in each) for kind, each in runs.items()}
    pairs = zip(runs["diff"], runs["spark"], strict=True)
    return {
        "median_seconds": seconds,
        # Of both sides together.
        "rows_per_second": {kind: round(2 * keys / of) for kind, of in seconds.items()},
        "seconds_as_multiple_of_spark": round(statistics.median(a["seconds"] / b["seconds"] for a, b in pairs), 2),
        "peak_mib": {kind: max(found["peak_mib"] for found in each) for kind, each in runs.items()},
        "at_start_mib": {kind: max(found["at_start_mib"] for found in each) for kind, each in runs.items()},
    }


def measure(keys: int, rounds: int, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The runs of one size."""
    import millpond

    here, checkpoint = [sys.executable, __file__], folder / "job"
    subprocess.run([*here, "--write-state", str(checkpoint), "--keys", str(keys)], check=True)
    for batch, name in enumerate(("first", "second")):
        millpond.plan_savepoint(checkpoint, name, batch=batch, count=False).run()
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            environment = {**os.environ, "MILLPOND_HOME": str(folder / "home")}
            command = [*here, "--run", kind, str(checkpoint)]
            answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            found = json.loads(answer.splitlines()[-1])
            found["seconds"] = round(found["seconds"], 2)
            assert found["counts"] == [0, 0, keys // 100, keys - keys // 100], found
            runs[kind].append(found)
            print(keys, kind, found, file=sys.stderr, flush=True)
    return runs


def main() -> None:
    """Write the states, and compare their batches by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write-state", help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/diff.json")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(*options.run)))
        return
    if options.write_state:
        (keys,) = options.keys
        spark = spark_session("states")
        write_state(spark, Path(options.write_state), "hdfs", keys, changed=keys // 100)
        spark.stop()
        return
    rounds: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for keys in options.keys:
        with tempfile.TemporaryDirectory() as folder:
            rounds[str(keys)] = measure(keys, options.rounds, Path(folder))
    result = {
        "what": "two savepoints of a job compared row by row, a hundredth of the rows changed",
        "partitions": PARTITIONS,
        "keys": {keys: figures(int(keys), runs) for keys, runs in rounds.items()},
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("diff", result, rounds)


if __name__ == "__main__":
    main()

"""The state of a job under another number of partitions: by Millpond, and by Spark's own repartition, in one run.

    python benchmarks/rescale.py [--keys 1000000 10000000] [--rounds 3 1] [--write]

Spark writes each state itself: a row `long -> two longs` for each key, in 8 partitions, which become 12.

    hdfs       Millpond restores a savepoint of the HDFS-backed state with `partitions`; Spark has nothing for it
    rocksdb    the same of the state in RocksDB
    spark      Spark's repartition of this RocksDB state, in the place where the checkpoint lies

Each is a process of its own, by turns.  Seconds leave out imports, the start of the JVM and the savepoint that Millpond begins
with.  Millpond's hold a second read of all rows, which are compared with the first.  Memory is the most that the process had
(VmHWM); Spark's is the JVM's, which takes what its heap may have (8 GiB) before it cleans up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result
from states import PARTITIONS, PROVIDERS, copied, jvm_of, peak_mib, spark_session, tree_bytes, write_state

WANTED = 12
KINDS = ("hdfs", "rocksdb", "spark")


def run(kind: str, checkpoint: str, to: str) -> dict[str, float]:
    """Seconds and memory of one process."""
    if kind == "spark":
        spark = spark_session("rescale")
        jvm = jvm_of(spark)
        before, began = peak_mib(jvm), time.perf_counter()
        spark._streamingCheckpointManager.repartition(to, WANTED)
        found = {"seconds": time.perf_counter() - began, "peak_mib": peak_mib(jvm), "at_start_mib": before}
        spark.stop()
        return found
    import millpond
    import millpond.savepoint.rewrite.rewrite  # imports aren't timed

    before, began = peak_mib(), time.perf_counter()
    millpond.plan_restore(checkpoint, "first", to, partitions=WANTED).run()
    return {"seconds": time.perf_counter() - began, "peak_mib": peak_mib(), "at_start_mib": before}


def sums(checkpoint: Path, name: str) -> list[int]:
    """The number of rows and the sums of their columns; what Millpond restores has the table's name of before."""
    import pyarrow.compute as pc

    import millpond

    table = millpond.read_arrow(checkpoint, f"{name}.aggregate_0")
    return [table.num_rows, *(pc.sum(table.column(name)).as_py() for name in table.column_names)]


def measure(keys: int, rounds: int, folder: Path) -> dict[str, Any]:
    """The runs of one size, and the bytes of its checkpoints."""
    import millpond

    here = [sys.executable, __file__]
    subprocess.run([*here, "--write-states", str(folder), "--keys", str(keys)], check=True)
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for provider in PROVIDERS:
        millpond.plan_savepoint(folder / provider, "first", count=False).run()
    for _ in range(rounds):
        for kind in KINDS:
            checkpoint, to = folder / ("rocksdb" if kind == "spark" else kind), folder / "after" / kind
            to.parent.mkdir()
            if kind == "spark":
                copied(checkpoint, to)
            answer = subprocess.run([*here, "--run", kind, str(checkpoint), str(to)], check=True, stdout=subprocess.PIPE, text=True)
            found = {name: round(value, 2) for name, value in json.loads(answer.stdout.splitlines()[-1]).items()}
            assert sums(to, kind) == sums(checkpoint, checkpoint.name), kind
            shutil.rmtree(to.parent)
            subprocess.run(["sync"], check=True)
            runs[kind].append(found)
            print(keys, kind, found, file=sys.stderr, flush=True)
    return {"checkpoint_bytes": {provider: tree_bytes(folder / provider) for provider in PROVIDERS}, "runs": runs}


def figures(keys: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians and ratios of one size."""
    seconds = {kind: statistics.median(found["seconds"] for found in each) for kind, each in runs.items()}
    pairs = zip(runs["rocksdb"], runs["spark"], strict=True)
    return {
        "rounds_of_each": len(runs["spark"]),
        "median_seconds": seconds,
        "rows_per_second": {kind: round(keys / of) for kind, of in seconds.items()},
        "rocksdb_as_multiple_of_spark": round(statistics.median(a["seconds"] / b["seconds"] for a, b in pairs), 2),
        "peak_mib": {kind: round(max(found["peak_mib"] for found in each)) for kind, each in runs.items()},
        "at_start_mib": {kind: round(max(found["at_start_mib"] for found in each)) for kind, each in runs.items()},
    }


def main() -> None:
    """Write the states of each size, and rescale each by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, nargs="+", default=[3, 1], help="of each size")
    parser.add_argument("--write-states", help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/rescale.json")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(*options.run)))
        return
    if options.write_states:
        spark = spark_session("states")
        for provider in PROVIDERS:
            write_state(spark, Path(options.write_states, provider), provider, options.keys[0])
        spark.stop()
        return
    sizes: dict[str, Any] = {}
    for keys, rounds in zip(options.keys, options.rounds, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            sizes[str(keys)] = measure(keys, rounds, Path(folder))
    result = {
        "what": f"a state of {PARTITIONS} partitions under {WANTED}: a savepoint restored, beside Spark's own repartition",
        "keys": {
            keys: {"checkpoint_bytes": found["checkpoint_bytes"], **figures(int(keys), found["runs"])}
            for keys, found in sizes.items()
        },
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("rescale", result, {keys: found["runs"] for keys, found in sizes.items()})


if __name__ == "__main__":
    main()

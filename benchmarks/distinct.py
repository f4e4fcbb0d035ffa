"""Exact distinct visitors per page, in the four ways of examples/visitors.py: bytes of state, and requests a second, in one run.

    python benchmarks/distinct.py LOG [--rounds 3] [--rows-per-batch 5000] [--write]

LOG is an access log; with the NASA trace of the tests (30,969 requests) a round has seven batches.  Every way reads all of it in
each round, the ways by turns, in one session with RocksDB and change logs.  A second is one of processing: of the batches' own
durations, as Spark tells them, without the first batch, in which workers start.  Bytes of state are those of all keys and values
of all stores after the last batch, as `millpond inspect` counts them.  All ways must end with the same numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from results import write_result

import millpond
from millpond.catalogue import open_jobs
from millpond.spark.accesslog.source import log_stream
from millpond.tables.cold.report import inspect_job

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import visitors

cloudpickle.register_pickle_by_value(visitors)  # workers can't import it
PARTITIONS = 4


def run(spark: Any, log: str, way: str, pond: Path, rows_per_batch: int) -> dict[str, Any]:
    """One way over the whole log."""
    requests = log_stream(spark, log, rows_per_batch=rows_per_batch).where("error IS NULL")
    with visitors.start(requests, way, str(pond), trigger="available-now", partitions=PARTITIONS) as job:
        job.wait_for_end()
        batches = [p for p in job.query.recentProgress if p["numInputRows"]][1:]
    (folder,) = open_jobs(pond)
    stores = inspect_job(folder).stores
    seconds = sum(p["durationMs"]["triggerExecution"] for p in batches) / 1000
    return {
        "requests_per_second": round(sum(p["numInputRows"] for p in batches) / seconds),
        "state_rows": sum(p.rows or 0 for store in stores for p in store.partitions),
        "state_bytes": sum(p.row_bytes or 0 for store in stores for p in store.partitions),
        "visitors": counted(pond, way),
    }


def counted(pond: Path, way: str) -> dict[str, int]:
    """Visitors by page."""
    with millpond.open(pond, replica_dir="memory://", wait_seconds=120) as opened:
        if way == "by_set":
            return {row["page"]: len(row["hosts"]) for row in opened["visitors_by_set"].scan()}
        name = f"visitors_{way}_count" if way in ("by_list", "by_map") else f"visitors_{way}"
        return {row["page"]: row["visitors"] for row in opened[name].scan()}


def main() -> None:
    """Measure, and print; with --write keep it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows-per-batch", type=int, default=5000)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    quiet = {"spark.ui.enabled": "false", "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
    spark = millpond.session("distinct", **visitors.ROCKSDB, **quiet)
    spark.sparkContext.setLogLevel("OFF")
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in visitors.WAYS}
    for _ in range(asked.rounds + 1):  # the first warms up
        for way, done in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                done.append(run(spark, asked.log, way, Path(folder) / "pond", asked.rows_per_batch))
    spark.stop()
    numbers = [run["visitors"] for done in runs.values() for run in done]
    assert all(found == numbers[0] for found in numbers), "the ways differ"
    ways = {}
    for way, (_, *done) in runs.items():
        speeds = [run["requests_per_second"] for run in done]
        beside = [
            run["requests_per_second"] / other["requests_per_second"]
            for run, other in zip(done, runs["by_drop_duplicates"][1:], strict=True)
        ]
        ways[way] = {
            "requests_per_second": {"median": statistics.median(speeds), "each": speeds},
            "beside_drop_duplicates": round(statistics.median(beside), 2),
            "state_rows": done[-1]["state_rows"],
            "state_bytes": done[-1]["state_bytes"],
        }
    result = {
        "log": Path(asked.log).name,
        "pages": len(numbers[0]),
        "visitors": sum(numbers[0].values()),
        "rows_per_batch": asked.rows_per_batch,
        "partitions": PARTITIONS,
        "ways": ways,
    }
    print(json.dumps(result, indent=1))
    if asked.write:
        # Of the numbers by page, which are the same each time, their sum.
        kept = {way: [{**run, "visitors": sum(run["visitors"].values())} for run in done[1:]] for way, done in runs.items()}
        print(write_result("distinct", result, kept))


if __name__ == "__main__":
    main()

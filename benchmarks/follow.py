"""How soon a committed batch can be read, and how fast batches are applied, beside the Spark job that writes them.

    python benchmarks/follow.py [--batches 60] [--write]

One Spark job (count and sum by key, rate source) runs with a trigger as fast as it can; a second process opens its pond and asks
for the newest batch in a loop.  Commit-to-visible is the time from the modification time of commits/N to the first answer that
names batch N or a later one.  Both share the machine's cores.
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

READER = """
import json, os, sys, time
import millpond
from millpond.errors import MillpondError
path, home, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
pond = millpond.open(path, replica_dir=home)
commits = path + "/jobs/counts/checkpoint/commits/"
seen, visible, job = -1, {}, None
while seen < last:
    try:
        reads = pond._jobs["counts"].replica
        with reads.snapshot() as view:
            batch = view.record.batch
    except (KeyError, MillpondError):
        pond.tables()
        time.sleep(0.01)
        continue
    if batch != seen:
        now = time.time_ns()
        if seen >= 0:
            for b in range(seen + 1, batch + 1):
                visible[b] = (now - os.stat(commits + str(b)).st_mtime_ns) / 1e6
        seen = batch
    time.sleep(0.0005)
times = os.times()
print(json.dumps({"visible_ms": visible, "statistics": pond.statistics()["counts"], "cpu_seconds": times.user + times.system}))
pond.close()
"""


def processor_seconds(pid: int) -> float:
    """What a process has used so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of the values don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(spark: Any, rows: int, batches: int) -> dict[str, Any]:
    """One job whose every batch changes `rows` keys, and a reader beside it."""
    from pyspark.sql import functions as F

    import millpond

    with tempfile.TemporaryDirectory() as scratch:
        pond = f"{scratch}/pond"
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
        df = source.groupBy((F.col("value") % (rows * 5)).alias("key")).agg(F.count("*").alias("n"), F.sum("value").alias("total"))
        job = millpond.start(df, table="counts", pond=pond, partitions=2)
        job.wait_for_batch(1, timeout_seconds=120)
        out = Path(scratch, "out.json")
        with out.open("w") as file:
            reader = subprocess.Popen([sys.executable, "-c", READER, pond, f"{scratch}/home", str(batches)], stdout=file)
            try:
                job.wait_for_batch(batches // 4, timeout_seconds=600)
                jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
                used = processor_seconds(jvm)
                job.wait_for_batch(batches, timeout_seconds=600)
                used = processor_seconds(jvm) - used
                reader.wait(timeout=120)
                progress = [p for p in job.query.recentProgress if p["batchId"] > batches // 4]
            finally:
                reader.kill()
                reader.wait()
                job.stop()
        time.sleep(0.5)
        answer = json.loads(out.read_text())
    visible = [ms for batch, ms in answer["visible_ms"].items() if int(batch) > 3]
    follower = answer["statistics"]
    spark_rate = statistics.median(p["processedRowsPerSecond"] for p in progress)
    apply_rate = follower["rows_applied"] / follower["apply_seconds"]
    # All that the reader's process used, its start and its questions too, against what the JVM used when it was warm.
    cpu_rates = follower["rows_applied"] / answer["cpu_seconds"], rows * (batches - batches // 4) / used
    return {
        "changed_rows_per_batch": rows,
        "batches_measured": len(visible),
        "commit_to_visible_ms": {
            "p50": round(percentile(visible, 0.5), 2),
            "p99": round(percentile(visible, 0.99), 2),
            "max": round(max(visible), 2),
        },
        "apply_rows_per_second": round(apply_rate),
        "spark_rows_per_second": round(spark_rate),
        "apply_to_spark_ratio": round(apply_rate / spark_rate, 2),
        "reader_cpu_seconds": round(answer["cpu_seconds"], 2),
        "reader_rows_per_processor_second": round(cpu_rates[0]),
        "spark_rows_per_processor_second": round(cpu_rates[1]),
        "reader_to_spark_ratio_per_processor_second": round(cpu_rates[0] / cpu_rates[1], 2),
    }


def main() -> None:
    """Measure with few and with many changed rows a batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/follow.json")
    options = parser.parse_args()
    import millpond

    spark = millpond.session("follow", **{"spark.master": "local[2]", "spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        runs = [measure(spark, rows, options.batches) for rows in (1_000, 100_000)]
    finally:
        spark.stop()
    print(json.dumps(runs, indent=1))
    if options.write:
        write_result("follow", {"what": "commit to visible, and rows applied, beside the job that writes them"}, runs)


if __name__ == "__main__":
    main()

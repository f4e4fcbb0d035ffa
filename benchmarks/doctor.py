"""What `millpond doctor` takes for a large state, beside Spark's own `statestore` reader that counts the same rows.

    python benchmarks/doctor.py [--keys 2000000] [--rounds 2] [--write]

A Spark job (count and sum by key) writes the state, with the HDFS-backed provider and with RocksDB: all
keys in the first batch, then some batches of new keys, so that growth is measured too.  The doctor
is a new process each time, and its whole time counts.  Spark's JVM is warm: its second count is
taken, without the start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result
from states import PROVIDERS, spark_session, start_job, stream

BATCHES, NEW_KEYS = 4, 2000


def write_state(spark: Any, checkpoint: Path, provider: str, keys: int) -> None:
    """All keys, then batches of new ones."""
    store = "spark.sql.streaming.stateStore."
    spark.conf.set(store + "providerClass", PROVIDERS[provider])
    spark.conf.set(store + "rocksdb.changelogCheckpointing.enabled", "true")
    source = checkpoint.with_name(f"{checkpoint.name}-input")
    begin = 0
    for count in (keys - BATCHES * NEW_KEYS, *[NEW_KEYS] * BATCHES):
        rows = spark.range(begin, begin + count, 1, 2).selectExpr("id AS k", "xxhash64(id) % 1000000 AS a")
        rows.coalesce(1).write.mode("append").parquet(str(source))
        begin += count
    start_job(stream(spark, source, maxFilesPerTrigger="1"), checkpoint).awaitTermination()


def examine(checkpoint: Path) -> dict[str, Any]:
    """The doctor in a process of its own: seconds, and which rules it named."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "millpond.cli", "doctor", str(checkpoint), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    assert done.returncode in (0, 1), done.stderr
    rules = sorted(json.loads(line)["rule"] for line in done.stdout.splitlines())
    return {"seconds": seconds, "rules": rules, "unseen": len(done.stderr.splitlines())}


def count(spark: Any, checkpoint: Path) -> dict[str, Any]:
    """Spark's count of the rows: seconds, and the number."""
    began = time.perf_counter()
    rows = spark.read.format("statestore").load(str(checkpoint)).count()
    return {"seconds": time.perf_counter() - began, "rows": rows}


def main() -> None:
    """Write the states, then look at each by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/doctor.json")
    options = parser.parse_args()
    variants: dict[str, Any] = {}
    rounds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session("doctor")
        for provider in PROVIDERS:
            checkpoint = Path(folder, provider)
            write_state(spark, checkpoint, provider, options.keys)
            assert count(spark, checkpoint)["rows"] == options.keys
            runs = rounds[provider] = [
                {"doctor": examine(checkpoint), "spark": count(spark, checkpoint)} for _ in range(options.rounds)
            ]
            doctor, counted = (statistics.median(run[who]["seconds"] for run in runs) for who in ("doctor", "spark"))
            variants[provider] = {
                "doctor_seconds": round(doctor, 2),
                "spark_count_seconds": round(counted, 2),
                "doctor_to_spark_count": round(doctor / counted, 2),
                "rules": runs[-1]["doctor"]["rules"],
                "stores_read_in_part": runs[-1]["doctor"]["unseen"],
            }
            print(json.dumps({provider: variants[provider]}, indent=1), flush=True)
        spark.stop()
    if options.write:
        write_result(
            "doctor",
            {"what": "millpond doctor, and Spark's count of the same state", "keys": options.keys, "providers": variants},
            rounds,
        )


if __name__ == "__main__":
    main()

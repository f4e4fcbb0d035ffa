"""One key out of a cold checkpoint: no replica, no pass over the state.

    python benchmarks/cold_get.py [--keys 2000000] [--rounds 9] [--write]

A Spark job (count, sum and maximum by a key of type long, two batches: all keys, then a hundredth of them again) writes the state,
with the HDFS-backed provider, and with RocksDB, its change logs and its snapshots, in eight partitions. Then a few keys are asked
for, each twice: by the whole command `millpond get --cold`, start of Python to exit, and by `millpond.read_row` in a process that
runs. Each answer is compared with what the job was given. Processor seconds stand beside the seconds, since others may use the
machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result

PROVIDERS = ("hdfs", "rocksdb-changelog", "rocksdb-snapshots")


def expected(key: int, keys: int) -> dict[str, int]:
    """What the job counted."""
    times = 2 if key < keys // 100 else 1
    return {"id": key, "count": times, "sum": 3 * key * times, "max": 3 * key}


def by_command(checkpoint: str, table: str, key: int) -> tuple[dict[str, Any], float, float]:
    """(row, seconds, processor seconds) of a process."""
    words = [sys.executable, "-m", "millpond.cli", "get", "--cold", "--json", checkpoint, table, f"id={key}"]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(out), seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_process(checkpoint: str, table: str, key: int) -> tuple[dict[str, Any], float, float]:
    """The same of a call."""
    import millpond

    began, used = time.perf_counter(), time.process_time()
    row = millpond.read_row(checkpoint, table, {"id": key})
    seconds, processor_seconds = time.perf_counter() - began, time.process_time() - used
    return dict(row), seconds, processor_seconds


def measure(checkpoint: str, keys: int, times: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Some keys of one checkpoint, one that isn't there among them: medians, and each."""
    table = f"{Path(checkpoint).name}.aggregate_0"
    out: dict[str, Any] = {}
    rounds: dict[str, Any] = {}
    for name, ask in (("command", by_command), ("in_process", in_process)):
        found = []
        for n in range(times):
            key = n * keys // times + 17
            row, seconds, processor_seconds = ask(checkpoint, table, key)
            row = row.get("row", row)
            assert {name: row[name] for name in expected(key, keys)} == expected(key, keys), row
            found.append((seconds, processor_seconds))
        rounds[name] = [{"ms": round(1000 * seconds, 1), "processor_ms": round(1000 * used, 1)} for seconds, used in found]
        out[name] = {
            "median_ms": round(1000 * statistics.median(seconds for seconds, _ in found), 1),
            "most_ms": round(1000 * max(seconds for seconds, _ in found), 1),
            "median_processor_ms": round(1000 * statistics.median(used for _, used in found), 1),
        }
    return out, rounds


def main() -> None:
    """Write the states, then ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--scratch", help="keep the states here, and use those that are there")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/cold_get.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = options.scratch or temporary
        if not all(Path(scratch, f"{provider}-long").exists() for provider in PROVIDERS):
            writer = str(Path(__file__).with_name("to_arrow.py"))
            subprocess.run([sys.executable, writer, "--write-states", scratch, "--keys", str(options.keys)], check=True)
        variants = {p: measure(f"{scratch}/{p}-long", options.keys, options.rounds) for p in PROVIDERS}
    result = {
        "what": "one key of count, sum and maximum by key, straight from a checkpoint that Spark wrote, page cache warm",
        "keys": options.keys,
        "variants": {provider: medians for provider, (medians, _) in variants.items()},
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("cold_get", result, {provider: each for provider, (_, each) in variants.items()})


if __name__ == "__main__":
    main()

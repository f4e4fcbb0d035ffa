"""What a follower takes while it builds a replica: 10 M keys beside 1 M, in one run.

    python benchmarks/memory.py [--keys 10000000] [--write]

The checkpoint is written by hand, not by Spark (which takes most of an hour): the HDFS-backed provider, 8 partitions, two
batches; the first puts every key (long -> two longs), the second changes a hundredth of them. Each bootstrap is a process of
its own. Its private memory (RssAnon) is what it asks for; pages of the replica's file that are mapped (RssFile) are the
system's cache, and given back when others need them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result
from written import PARTITIONS, ROW_BYTES, write_checkpoint

READER = """
import json, sys, threading, time
from pathlib import Path
import millpond

def memory():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) // 1024 for name in ("VmHWM", "RssAnon", "RssFile")}

most, done = {}, threading.Event()

def watch():
    while not done.wait(0.02):
        for name, mib in memory().items():
            most[name] = max(most.get(name, 0), mib)

before = memory()
threading.Thread(target=watch, daemon=True).start()
began = time.perf_counter()
with millpond.open(sys.argv[1], replica_dir=sys.argv[2], wait_seconds=3000) as pond:
    seconds = time.perf_counter() - began
    (name,) = pond.tables()
    rows = int(pond[name].count())
    size = next(iter(pond.statistics().values()))["size_bytes"]
done.set()
print(json.dumps({"rows": rows, "seconds": round(seconds, 1), "replica_mib": size >> 20, "at_start_mib": before, "peak_mib": most}))
"""


def main() -> None:
    """Write both, build both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/memory.json")
    options = parser.parse_args()
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for keys in (options.keys // 10, options.keys):
            checkpoint = Path(scratch, f"checkpoint-{keys}")
            began = time.perf_counter()
            largest = write_checkpoint(checkpoint, keys).largest_file_bytes()
            command = [sys.executable, "-c", READER, str(checkpoint), f"{scratch}/home-{keys}"]
            print(f"{keys} keys written in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            assert answer["rows"] == keys, answer
            unpacked = ROW_BYTES * keys // PARTITIONS
            runs[str(keys)] = {**answer, "largest_file_mib": largest >> 20, "largest_file_unpacked_mib": unpacked >> 20}
    result = {
        "what": "bootstrap of a replica (long -> two longs, 8 partitions, HDFS-backed); checkpoint written by hand",
    }
    print(json.dumps({**result, "keys": runs}, indent=1))
    if options.write:
        write_result("memory", result, runs)


if __name__ == "__main__":
    main()

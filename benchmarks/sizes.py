"""What more keys cost: time of a get, memory of who follows, time of a bootstrap, at 1 M, 10 M and 50 M keys in one run.

    python benchmarks/sizes.py [--keys 1000000 10000000 50000000] [--write]

The checkpoints are written by hand (benchmarks/written.py): long -> two longs, 8 partitions, HDFS-backed, keys in random order.
Each size has a process of its own, which builds the replica, asks for random keys, then follows 20 batches that change 10,000
rows each.  Before gets are timed, 200,000 others bring the tree's pages into the system's cache.  They are timed by turns, all
sizes one after the other, since the machine isn't equally fast at all times: ratios are medians of the rounds' own.  Memory is
what the process itself holds (RssAnon); pages of the replica's file that are mapped (RssFile) are the system's cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asked import Process
from results import write_result
from written import write_checkpoint

CHANGED, BATCHES, ROUNDS = 10_000, 20, 5
READER = """
import json, os, random, sys, threading, time
sys.path.insert(0, sys.argv[4])
import millpond
from processes import memory_mib, processor_seconds
place, home, keys = sys.argv[1], sys.argv[2], int(sys.argv[3])
most, done = {}, threading.Event()

def watch():
    while not done.wait(0.02):
        for name, mib in memory_mib(os.getpid()).items():
            most[name] = max(most.get(name, 0), mib)

def tell(told):
    print(json.dumps(told), flush=True)

def gets(table, number):
    wanted = [random.randrange(keys) for _ in range(number)]
    times = []
    for k in wanted:
        began = time.perf_counter_ns()
        row = table.get(k=k)
        times.append(time.perf_counter_ns() - began)
        assert row["total"] == 3 * k
    times.sort()
    return {"p50_us": times[len(times) // 2] / 1000, "p99_us": times[len(times) * 99 // 100] / 1000}

at_start = memory_mib(os.getpid())
threading.Thread(target=watch, daemon=True).start()
began = time.perf_counter()
with millpond.open(place, replica_dir=home, wait_seconds=7200) as pond:
    seconds = time.perf_counter() - began
    (name,) = pond.tables()
    table = pond[name]
    facts = next(iter(pond.statistics().values()))
    built = dict(most)
    tell({
        "rows": int(table.count()),
        "bootstrap_seconds": round(seconds, 2),
        "bootstrap_cpu_seconds": round(processor_seconds(os.getpid()), 2),
        "replica_mib": facts["size_bytes"] >> 20,
        "at_start_mib": at_start,
        "bootstrap_peak_mib": built,
    })
    gets(table, 200_000)
    for line in sys.stdin:
        if line == "gets\\n":
            tell(gets(table, 100_000))
        else:
            most.clear()
            batch = int(line)
            while table.get(k=0).batch < batch:
                time.sleep(0.005)
            facts = next(iter(pond.statistics().values()))
            held = dict(most) or memory_mib(os.getpid())
            tell({"following_mib": held, "rows_applied": facts["rows_applied"], "apply_seconds": facts["apply_seconds"]})
done.set()
"""


class Size:
    """One size: its checkpoint, and the process that follows it.

    within:  a command that runs the process
    """

    def __init__(self, folder: Path, keys: int, within: Sequence[str] = ()) -> None:
        import numpy as np

        self.keys = keys
        self._random = np.random.default_rng(5)
        began = time.perf_counter()
        self._written = write_checkpoint(folder / f"checkpoint-{keys}", keys)
        self._batch = 1
        print(f"{keys} keys written in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        self._reader = Process(READER, self._written.path, folder / f"home-{keys}", keys, Path(__file__).parent, within=within)
        self.built = self._reader.first
        assert self.built["rows"] == keys, self.built
        self.gets: list[dict[str, float]] = []

    def ask(self) -> None:
        """Time gets."""
        self.gets.append(self._reader.ask("gets"))

    def follow(self) -> dict[str, Any]:
        """Commit batches; what the process held meanwhile."""
        for _ in range(BATCHES):
            self._batch += 1
            self._written.commit(self._batch, self._random.integers(0, self.keys, CHANGED))
        return self._reader.ask(self._batch)

    def end(self) -> None:
        """End the process."""
        self._reader.end()


def main() -> None:
    """Build all sizes, then measure them by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000, 50_000_000])
    parser.add_argument("--folder", type=Path, help="where the checkpoints and replicas lie while it runs: 10 GB at 50 M keys")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/sizes.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sizes = [Size(Path(folder), keys) for keys in options.keys]
        for _ in range(ROUNDS):
            for size in sizes:
                size.ask()
        followed = [size.follow() for size in sizes]
        for size in sizes:
            size.end()
    by_size = {}
    for size, facts in zip(sizes, followed, strict=True):
        gets = {name: statistics.median(g[name] for g in size.gets) for name in ("p50_us", "p99_us")}
        built = {**size.built, "keys_per_second": round(size.keys / size.built["bootstrap_seconds"])}
        by_size[str(size.keys)] = {**built, "get": gets, **facts}
    ratios = {
        str(size.keys): round(
            statistics.median(a["p50_us"] / b["p50_us"] for a, b in zip(size.gets, sizes[0].gets, strict=True)), 2
        )
        for size in sizes[1:]
    }
    result = {
        "what": "bootstrap, get and follow by number of keys (long -> two longs); checkpoints written by hand",
        "get_p50_to_that_of_the_smallest": ratios,
        "sizes": by_size,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("sizes", result, {str(size.keys): size.gets for size in sizes})


if __name__ == "__main__":
    main()

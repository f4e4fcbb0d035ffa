"""What kept history costs: gets of the newest batch from a replica that keeps every batch, beside one that keeps none, in one run.

    python benchmarks/history.py [--keys 100000] [--batches 200] [--rounds 7] [--write]

A checkpoint is written by hand (benchmarks/written.py): each batch changes a tenth of the keys.  Two processes follow it, one
without history and one that keeps all of it; then both ask for random keys by turns, a second each.  Ratios are medians of the
rounds' own.  Beside it: how long each took to apply the batches, and how large its replica is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from asked import Process
from results import write_result
from written import write_checkpoint

READER = """
import json, random, sys, time
import millpond
place, home, keys, kept = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "history"
retention = millpond.Retention(history_batches=None) if kept else None
with millpond.open(place, replica_dir=home, wait_seconds=600, retention=retention) as pond:
    (name,) = pond
    table = pond[name]
    print("{}", flush=True)
    for line in sys.stdin:
        if line == "catch up\\n":
            pond.catch_up(600)
            told = pond.statistics()[next(iter(pond.statistics()))]
            asked = {name: told[name] for name in ("batch", "rows_applied", "apply_seconds", "size_bytes")}
        else:
            done, ends = 0, time.perf_counter() + 1
            while time.perf_counter() < ends:
                for _ in range(100):
                    assert table.get(k=random.randrange(keys))
                done += 100
            asked = {"gets_per_second": done}
        print(json.dumps(asked), flush=True)
"""
KINDS = ("none", "history")


def main() -> None:
    """Follow, then ask by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/history.json")
    options = parser.parse_args()
    import numpy as np

    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch, "checkpoint")
        written = write_checkpoint(place, options.keys)
        readers = {kind: Process(READER, place, Path(scratch, kind), options.keys, kind) for kind in KINDS}
        draw = np.random.default_rng(7)
        for batch in range(2, options.batches + 2):
            written.commit(batch, draw.choice(np.arange(options.keys), options.keys // 10, replace=False))
        followed = {kind: reader.ask("catch up") for kind, reader in readers.items()}
        rounds = []
        for number in range(options.rounds):
            turns = KINDS if number % 2 else KINDS[::-1]
            rounds.append({kind: readers[kind].ask("get")["gets_per_second"] for kind in turns})
        for reader in readers.values():
            reader.end()
    result = {
        "keys": options.keys,
        "batches": options.batches,
        "gets_with_history_to_without": round(statistics.median(r["history"] / r["none"] for r in rounds), 3),
        "followed": followed,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("history", result, rounds)


if __name__ == "__main__":
    main()

"""Backends of replicas beside each other: LMDB, RocksDB by the example's rocksdict, and memory.

    python benchmarks/backends.py [--keys 200000] [--rounds 5] [--write]

Each backend takes the same rows: first all of them sorted, as a build writes them; then batches of
2,000 random changes with the record, as a follower applies them.  Then random keys are looked up,
each in a snapshot of its own.  At last all rows are read in order.  The backends take turns in each
round.  Ratios to LMDB are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result

from millpond.replica.backends.lmdb import open_backend as open_lmdb
from millpond.replica.backends.memory import MemoryBackend
from millpond.settings import ReplicaSettings
from millpond.testing import TABLES, record, stores

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "rocksdict_backend" / "src"))

ROUNDS, CHANGES, BATCHES, LOOKUPS, CHUNK = 5, 2_000, 10, 20_000, 50_000
TABLE = TABLES[0]


def measure(name: str, folder: Path, rows: list[tuple[bytes, bytes]]) -> dict[str, float]:
    """One round of a backend: what it does in a second, and its size."""
    from millpond_rocksdict import open_backend as open_rocksdict

    settings, draw = ReplicaSettings(), random.Random(1)
    backend: Any = MemoryBackend() if name == "memory" else {"lmdb": open_lmdb, "rocksdict": open_rocksdict}[name](folder, settings)
    backend.create(TABLES)
    backend.set_stores(stores())
    began = time.perf_counter()
    for first in range(0, len(rows), CHUNK if name != "memory" else len(rows)):
        with backend.write() as write:
            write.append(TABLE, rows[first : first + CHUNK] if name != "memory" else rows)
    with backend.write() as write:
        write.set_record(record(0))
    built = time.perf_counter() - began
    keys = [key for key, _ in rows]
    batches = [[(key, draw.randbytes(60)) for key in draw.sample(keys, min(CHANGES, len(keys)))] for _ in range(BATCHES)]
    began = time.perf_counter()
    for number, changes in enumerate(batches, 1):
        with backend.write() as write:
            write.put(TABLE, changes)
            write.set_record(record(number))
    applied = time.perf_counter() - began
    asked = draw.choices(keys, k=LOOKUPS)
    began = time.perf_counter()
    for key in asked:
        with backend.snapshot() as snapshot:
            assert snapshot.get(TABLE, key) is not None
    looked_up = time.perf_counter() - began
    began = time.perf_counter()
    with backend.snapshot() as snapshot:
        assert sum(1 for _ in snapshot.iterate(TABLE, b"")) == len(rows) == snapshot.count(TABLE)
    read = time.perf_counter() - began
    return {
        "built_rows_per_second": len(rows) / built,
        "applied_rows_per_second": sum(map(len, batches)) / applied,
        "lookups_per_second": LOOKUPS / looked_up,
        "read_rows_per_second": len(rows) / read,
        "bytes_per_row": backend.size_bytes() / len(rows),
    }


def main() -> None:
    """Measure, and show or write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    draw = random.Random(0)
    rows = sorted((b"/page/%09d" % draw.randrange(10**9), draw.randbytes(60)) for _ in range(given.keys))
    rows = list(dict(rows).items())
    rounds: dict[str, list[dict[str, float]]] = {"lmdb": [], "rocksdict": [], "memory": []}
    for _ in range(given.rounds):
        for name, found in rounds.items():
            folder = Path(tempfile.mkdtemp(prefix=f"millpond-{name}-"))
            try:
                found.append({what: round(value, 1) for what, value in measure(name, folder, rows).items()})
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    figures = {
        name: {what: round(statistics.median(each[what] for each in found), 1) for what in found[0]}
        for name, found in rounds.items()
    }
    to_lmdb = {
        name: {
            what: round(statistics.median(a[what] / b[what] for a, b in zip(found, rounds["lmdb"], strict=True)), 3)
            for what in found[0]
        }
        for name, found in rounds.items()
        if name != "lmdb"
    }
    print(json.dumps({"medians": figures, "to_lmdb": to_lmdb}, indent=1))
    if given.write:
        write_result("backends", {"keys": len(rows), "medians": figures, "to_lmdb": to_lmdb}, rounds)


if __name__ == "__main__":
    main()

"""What an index on a value costs, and what it answers: applying batches with none, one and two; the ten greatest of many keys.

    python benchmarks/indexes.py [--keys 1000000] [--rows 100000] [--rounds 3] [--write]

The checkpoint is written by hand (`written.py`): a key of type long, two values of type long.  A batch changes rows of random keys;
`n` changes with each, `total` never does.  By turns, a replica without indexes, with one by `n`, and with two (`n`, and `total`
with `n`) applies the same batches.  Then the ten rows with the greatest value are read: by the index, by DuckDB from Parquet of the
same rows (the peer); and once more by the index, of a table of ten million keys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result
from written import write_checkpoint

INDEXES: dict[str, list[str | tuple[str, ...]]] = {"none": [], "one": ["n"], "two": ["n", ("total", "n")]}
TOP_READS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=100_000, help="changed rows of a batch")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--leaderboard", type=int, default=10_000_000, help="keys of the largest table; 0 for none")
    parser.add_argument("--write", action="store_true", help="commit the result to benchmarks/results")
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(one_round(Path(folder), options.keys, options.rows, options.batches, number))
        print(json.dumps(rounds[-1], indent=1), flush=True)
    figures = {
        "what": "batches applied with indexes and without; the ten greatest rows",
        "keys": options.keys,
        "changed_rows_per_batch": options.rows,
        "apply_seconds_to_none": {
            name: middle(r["apply_seconds"][name] / r["apply_seconds"]["none"] for r in rounds) for name in INDEXES
        },
        "rows_applied_per_second": {name: round(statistics.median(r["rows_per_second"][name] for r in rounds)) for name in INDEXES},
        "build_seconds_to_none": {
            name: middle(r["build_seconds"][name] / r["build_seconds"]["none"] for r in rounds) for name in INDEXES
        },
        "replica_bytes_to_none": {
            name: middle(r["replica_bytes"][name] / r["replica_bytes"]["none"] for r in rounds) for name in INDEXES
        },
        "top_ten_ms": {name: middle(r["top_ten_ms"][name] for r in rounds) for name in rounds[0]["top_ten_ms"]},
    }
    if options.leaderboard:
        with tempfile.TemporaryDirectory() as folder:
            figures["leaderboard"] = leaderboard(Path(folder), options.leaderboard)
    print(json.dumps(figures, indent=1))
    if options.write:
        print(write_result("indexes", figures, rounds))


def middle(numbers: Any) -> float:
    return float(f"{statistics.median(numbers):.3g}")


def one_round(folder: Path, keys: int, rows: int, batches: int, seed: int) -> dict[str, Any]:
    import numpy as np

    import millpond

    answer: dict[str, Any] = {}
    for each, indexes in sorted(INDEXES.items(), key=lambda item: (list(INDEXES).index(item[0]) + seed) % len(INDEXES)):
        place = folder / each / "checkpoint"
        written = write_checkpoint(place, keys)
        with millpond.open(place, replica_dir=folder / "names") as pond:
            (name,) = pond.tables()
        began = time.perf_counter()
        with millpond.open(place, replica_dir=folder / f"home-{each}", indexes={name: indexes} if indexes else None) as pond:
            found: dict[str, Any] = {"build_seconds": time.perf_counter() - began}
            draw = np.random.default_rng(seed)
            for number in range(2, batches + 2):
                written.commit(number, draw.choice(keys, rows, replace=False))
                pond.catch_up(600)
            (counts,) = pond.statistics().values()
            assert counts["rows_applied"] == rows * batches
            found |= {
                "apply_seconds": counts["apply_seconds"],
                "rows_per_second": rows * batches / counts["apply_seconds"],
                "replica_bytes": counts["size_bytes"],
            }
            if each == "two":
                answer["top_ten_ms"] = top_ten(pond[name], folder)
        for what, number_ in found.items():
            answer.setdefault(what, {})[each] = number_
    return answer


def leaderboard(folder: Path, keys: int) -> dict[str, Any]:
    """One replica of many keys with one index."""
    import millpond

    write_checkpoint(folder / "checkpoint", keys)
    began = time.perf_counter()
    with millpond.open(
        folder / "checkpoint", replica_dir=folder / "home", indexes={"checkpoint.aggregate_0": ["n"]}, wait_seconds=1200
    ) as pond:
        table = pond["checkpoint.aggregate_0"]
        return {
            "keys": keys,
            "build_seconds": round(time.perf_counter() - began, 1),
            "top_ten_ms": middle(milliseconds(lambda: table.top("n"), TOP_READS)),
            "range_of_a_hundred_ms": middle(milliseconds(lambda: table.range(by="n", start={"n": 2}, limit=100), TOP_READS // 10)),
        }


def milliseconds(read: Any, times: int) -> list[float]:
    """How long each of so many calls took, after one more."""
    read()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        read()
        found.append((time.perf_counter() - began) * 1000)
    return found


def top_ten(table: Any, folder: Path) -> dict[str, float]:
    import duckdb
    import pyarrow.parquet

    expected = sorted(table.to_arrow().to_pylist(), key=lambda row: (row["n"], row["k"]))[-10:]
    assert [dict(row) for row in table.top("n")] == expected[::-1]

    pyarrow.parquet.write_table(table.to_arrow(), folder / "rows.parquet")
    plain = duckdb.connect()
    statement = f"SELECT * FROM '{folder}/rows.parquet' ORDER BY n DESC, k DESC LIMIT 10"

    return {
        "by_index": statistics.median(milliseconds(lambda: table.top("n"), TOP_READS)),
        "duckdb_on_parquet": statistics.median(milliseconds(lambda: plain.execute(statement).fetchall(), 20)),
    }


if __name__ == "__main__":
    main()

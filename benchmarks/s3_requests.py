"""Which requests Spark makes of an object store for each batch: a real job over S3A, and a server that counts.

    python benchmarks/s3_requests.py [--variants hdfs rocksdb …] [--partitions 1 3] [--batches 30] [--write]

The result has, for each provider and number of partitions:

- the requests, by the kind of file
- the files that were written
- the requests by the formula of `millpond cost`

These are counts and not times, so the load of the machine doesn't matter.  Maven fetches S3A once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from results import write_result

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from live_jobs.counted_requests import VARIANTS, Counted, count_requests


def main() -> None:
    """Run each, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--partitions", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--batches", type=int, default=18)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/s3_requests.json")
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="millpond-s3-requests-") as folder:
        for variant in options.variants:
            for partitions in options.partitions:
                counted, _ = count_requests(variant, partitions, options.batches, Path(folder) / "job.log")
                rounds.append(_round(variant, partitions, counted))
                print(rounds[-1], flush=True)
    off = [abs(found["expected"][kind] / found["counted"][kind] - 1) for found in rounds for kind in ("put", "get")]
    figures = {
        "what": "requests a batch of a job of one store, put with copy and list, get with head",
        "most_percent_off": round(max(off) * 100, 1),
    }
    print(figures)
    if options.write:
        write_result("s3_requests", figures, rounds)


def _round(variant: str, partitions: int, counted: Counted) -> dict[str, Any]:
    count = counted.batches
    return {
        "variant": variant,
        "partitions": partitions,
        "batches": count,
        "seconds": counted.seconds,
        "counted": {"put": round(counted.asked.puts / count, 2), "get": round(counted.asked.gets / count, 2)},
        "expected": {"put": round(counted.expected.puts / count, 2), "get": round(counted.expected.gets / count, 2)},
        "written": dict(sorted(counted.written.items())),
        "requests": {f"{of}: {kind}": found for (of, kind), found in sorted(counted.requests.items())},
    }


if __name__ == "__main__":
    main()

"""What it costs to count a request: Millpond's own counts beside prometheus_client's multiprocess mode, by turns in one run.

    python benchmarks/counts.py [--rounds 3] [--write]

Both count a request by route and status, and its duration by route in the same buckets, for several processes of one server.
Millpond adds to a dict and writes its counts to a file every second (`serve/metrics/counts.py`); prometheus_client writes each
count to a mapped file.  Then both put together what eight processes have counted, as a scrape does.  Times are of the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from results import write_result

PROCESSES, REQUESTS, ROUTES = 8, 50_000, 25
# Counts as one process does, then answers how long one request took.
_PROCESS = """
import json, os, sys, time
from pathlib import Path
from millpond.operate.durations import BUCKETS
from millpond.serve.metrics.counts import Meter
side, folder, requests, routes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
names = [f"/tables/{{table}}/route{n}" for n in range(routes)]
if side == "own":
    meter = Meter(Path(folder))
    count = meter.count
else:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    from prometheus_client import Counter, Histogram
    answered = Counter("millpond_requests", "Requests answered.", ["door", "route", "status"])
    durations = Histogram("millpond_request_seconds", "Time to answer requests.", ["door", "route"], buckets=BUCKETS)
    known = {}
    def count(route, status, seconds):
        found = known.get((route, status))
        if found is None:
            found = known[route, status] = answered.labels("http", route, str(status)), durations.labels("http", route)
        found[0].inc()
        found[1].observe(seconds)
for name in names:
    count(name, 200, 0.001)
began = time.process_time()
for n in range(requests):
    count(names[n % routes], 200, 0.0007)
print(round(1e6 * (time.process_time() - began) / requests, 3))
if side == "own":
    meter.write()
"""


def scrape_own(folder: str) -> bytes:
    """The text of /metrics from all files of a folder."""
    from millpond.serve.metrics.counts import Meter
    from millpond.serve.metrics.prometheus import write_metrics

    return write_metrics({}, Meter(Path(folder)).total())


def scrape_prometheus(folder: str) -> bytes:
    """The same by prometheus_client."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)
    return bytes(generate_latest(registry))


SCRAPES: dict[str, Callable[[str], bytes]] = {"own": scrape_own, "prometheus_client": scrape_prometheus}


def one_round() -> dict[str, Any]:
    """Microseconds of a request and milliseconds of a scrape, on each side."""
    found: dict[str, Any] = {}
    for side, scrape in SCRAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            words = [side, folder, str(REQUESTS), str(ROUTES)]
            each = [
                float(subprocess.run([sys.executable, "-c", _PROCESS, *words], check=True, capture_output=True, text=True).stdout)
                for _ in range(PROCESSES)
            ]
            scrape(folder)
            began = time.process_time()
            text = scrape(folder)
            scraped = 1000 * (time.process_time() - began)
            counted = sum(
                float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith("millpond_requests_total")
            )
            assert counted == PROCESSES * (REQUESTS + ROUTES), counted
            used = sum(path.stat().st_size for path in Path(folder).iterdir())
            found[side] = {
                "microseconds_of_a_request": round(median(each), 3),
                "milliseconds_of_a_scrape": round(scraped, 2),
                "kib_of_files": round(used / 1024),
            }
    return found


def main() -> None:
    """Count by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/counts.json")
    options = parser.parse_args()
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    rounds = [one_round() for _ in range(options.rounds)]
    result: dict[str, Any] = {
        "what": f"requests of {ROUTES} routes counted by {PROCESSES} processes, and put together for a scrape",
        **{side: {fact: median(found[side][fact] for found in rounds) for fact in rounds[0][side]} for side in SCRAPES},
    }
    result["times"] = {
        fact: round(median(found["prometheus_client"][fact] / found["own"][fact] for found in rounds), 1)
        for fact in rounds[0]["own"]
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("counts", result, rounds)


if __name__ == "__main__":
    main()

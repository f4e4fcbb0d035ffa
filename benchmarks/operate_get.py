"""What watching jobs adds to a lookup over HTTP: a server that does, beside one that doesn't, in one run.

    python benchmarks/operate_get.py [--rows 100000] [--rounds 16] [--seconds 6] [--write]

A real Spark job fills a table, and two servers answer for it: one as `millpond serve` starts by itself (samples each minute, the
console), the other with --no-samples and --no-console.  wrk asks for random keys over 32 connections, each server by turns.  The
rounds of one server take longer together than the time between two samples.  `ratio` is the median of the rounds' own ratios of
requests a second, `processor_ratio` that of the processor time of a request.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from http_get import PATH, measure, write_pond
from results import write_result
from running import answers, free_port, running
from wrk import load, require_wrk

SIDES = {"watching": [], "without": ["--no-samples", "--no-console"]}
WARM_SECONDS = 3


def main() -> None:
    """Ask both, by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/operate_get.json")
    options = parser.parse_args()
    require_wrk()
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        pond = Path(folder) / "pond"
        write_pond(pond, options.rows)
        servers = {}
        for side, words in SIDES.items():
            port = free_port()
            command = [sys.executable, "-m", "millpond.cli", "serve", str(pond), "--port", str(port), *words]
            url = f"http://127.0.0.1:{port}"
            environment = {**os.environ, "MILLPOND_HOME": f"{folder}/{side}"}
            ready = lambda url=url: answers(f"{url}{PATH}0")  # noqa: E731
            pid = stack.enter_context(running(side, command, ready, env=environment, stderr=subprocess.DEVNULL))
            servers[side] = url, pid
            load(url, PATH, options.rows, WARM_SECONDS)
        for number in range(options.rounds):
            order = list(servers) if number % 2 else list(servers)[::-1]
            rounds.append({side: measure(*servers[side], options.rows, options.seconds) for side in order})
        samples = sum(len(path.read_bytes().splitlines()) for path in (pond / "jobs/page_views/samples").glob("*.jsonl"))
    result = {
        "what": "lookups of one key over HTTP from a server that watches its jobs, beside one that doesn't",
        "rows": options.rows,
        "seconds_of_a_round": options.seconds,
        "samples_meanwhile": samples,
        "requests_per_second": {side: statistics.median(each[side]["requests_per_second"] for each in rounds) for side in SIDES},
        "ratio": _ratio(rounds, "requests_per_second"),
        "processor_ratio": _ratio(rounds, "cpu_us_per_request"),
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("operate_get", result, rounds)


def _ratio(rounds: list[dict[str, dict[str, float]]], fact: str) -> float:
    return round(statistics.median(each["watching"][fact] / each["without"][fact] for each in rounds), 3)


if __name__ == "__main__":
    main()

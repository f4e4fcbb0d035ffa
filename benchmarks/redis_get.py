"""GET over Redis' protocol from `millpond serve`, beside Redis itself with the same rows as texts.

    python benchmarks/redis_get.py [--keys 100000] [--requests 100000] [--rounds 5] [--write]

Needs redis-server and redis-benchmark (Debian: redis-server, redis-tools).  By turns, each server answers 32 connections, which ask
for random keys: one request after the other, and 16 requests at a time.  Both servers and the clients share the machine's cores.
Every value that Millpond gives is compared with the one that Redis has, for a sample of the keys.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from results import write_result
from running import free_port
from written import write_checkpoint

CONNECTIONS, PIPELINES = 32, (1, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    for program in ("redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} isn't installed")
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "checkpoint", options.keys)
        with millpond_server(Path(folder)) as (table, ours), redis_server(Path(folder)) as theirs:
            fill(table, ours, theirs, options.keys)
            rounds = [one_round(table, {"millpond": ours, "redis": theirs}, options) for _ in range(options.rounds)]
    figures: dict[str, Any] = {"what": "GET by redis-benchmark, 32 connections, random keys", "keys": options.keys}
    for each in PIPELINES:
        name = f"{each} at a time"
        figures[name] = {
            **{server: round(statistics.median(r[name][server] for r in rounds)) for server in ("millpond", "redis")},
            "ratio": round(statistics.median(r[name]["millpond"] / r[name]["redis"] for r in rounds), 3),
        }
    print(json.dumps(figures, indent=1))
    if options.write:
        print(write_result("redis_get", figures, rounds))


@contextmanager
def millpond_server(folder: Path) -> Iterator[tuple[str, int]]:
    import redis

    port = free_port()
    words = ["serve", str(folder / "checkpoint"), "--port", "0", "--redis-port", str(port), "--replica-dir", str(folder / "home")]
    with subprocess.Popen([sys.executable, "-m", "millpond.cli", *words, "--json"], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            with redis.Redis(port=port, retry_on_error=[redis.exceptions.BusyLoadingError]) as client:
                while not (found := next(client.scan_iter(), None)):
                    time.sleep(0.1)
            yield found.decode().partition(":")[0], port
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    port = free_port()
    words = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            time.sleep(1)
            yield port
        finally:
            server.terminate()
            server.wait(30)


def fill(table: str, ours: int, theirs: int, keys: int) -> None:
    """Give Redis the rows that Millpond has, under keys that redis-benchmark can draw."""
    import redis

    with redis.Redis(port=ours) as source, redis.Redis(port=theirs) as target:
        for first in range(0, keys, 1000):
            names = [f"{table}:{number:012d}" for number in range(first, min(first + 1000, keys))]
            values = source.mget(names)
            assert all(values), "a key has no row"
            target.mset(dict(zip(names, values, strict=True)))


def one_round(table: str, ports: dict[str, int], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for each in PIPELINES:
        for server, port in ports.items():
            words = [
                "redis-benchmark",
                "-p",
                str(port),
                "-n",
                str(options.requests * each // 2),
                "-c",
                str(CONNECTIONS),
                "-P",
                str(each),
            ]
            words += ["-r", str(options.keys), "--threads", "1", "get", f"{table}:__rand_int__"]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            (rate,) = re.findall(r"throughput summary: ([0-9.]+) requests per second", said)
            found.setdefault(f"{each} at a time", {})[server] = float(rate)
    return found


if __name__ == "__main__":
    main()

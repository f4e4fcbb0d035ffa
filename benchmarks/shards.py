"""Lookups a second of three shards on one machine, through a router and by a client that routes, beside one server of everything.

    python benchmarks/shards.py [--rows 100000] [--seconds 4] [--pond DIR] [--write]

A real Spark job fills a table.  One `millpond serve` follows all of it.  Three follow a shard each, and
`millpond route` asks these.  The same Python client asks all sides by turns, with THREADS threads, for random keys:

    whole    the server of everything
    direct   the three shards, by `millpond.connect_shards`, which knows where a key lies
    router   `millpond route`, by the client for one server

Answers of all sides are compared before anything is measured.  One side is asked at a time, but all
run, and share the machine's cores with the client.  Ratios are medians of the rounds' own ratios.
`scan` is a whole table of one batch, in rows a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from http_get import write_pond
from results import write_result
from running import answers, free_port, running

import millpond

ROUNDS, SECONDS, THREADS, SHARDS = 7, 4, 4, 3
PAGE = "/page/"


@contextlib.contextmanager
def sides(pond: Path, folder: Path) -> Any:
    """By name, a table of each side."""
    with contextlib.ExitStack() as opened:

        def start(name: str, *words: str) -> str:
            address = f"http://127.0.0.1:{(port := free_port())}"
            command = [sys.executable, "-m", "millpond.cli", *words, "--port", str(port)]
            opened.enter_context(running(name, command, lambda: answers(f"{address}/readyz")))
            return address

        def serve(name: str, *words: str) -> str:
            return start(name, "serve", str(pond), "--no-sql", "--replica-dir", str(folder / name), *words)

        whole = serve("whole")
        shards = [serve(f"shard-{number}", "--shard", f"{number}/{SHARDS}") for number in range(1, SHARDS + 1)]
        router = start("router", "route", *shards)
        yield {
            "whole": opened.enter_context(millpond.connect(whole))["page_views"],
            "direct": opened.enter_context(millpond.connect_shards(shards))["page_views"],
            "router": opened.enter_context(millpond.connect(router))["page_views"],
        }


def per_second(read: Callable[[], object], seconds: float, threads: int) -> float:
    """How often threads together do something in a second."""
    counts, until = [0] * threads, time.monotonic() + seconds

    def repeat(number: int) -> None:
        while time.monotonic() < until:
            read()
            counts[number] += 1

    began = time.monotonic()
    each = [threading.Thread(target=repeat, args=(number,)) for number in range(threads)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def main() -> None:
    """Measure, and show or write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--pond", type=Path, help="a pond with so many rows, which an earlier run wrote or this one writes")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millpond-shards-"))
    try:
        pond = given.pond or folder / "pond"
        if not pond.exists():
            write_pond(pond, given.rows)
        with sides(pond, folder) as tables:
            keys = random.Random(1).sample(range(given.rows), min(50, given.rows))
            expected = [dict(tables["whole"].get(page=f"{PAGE}{key}")) for key in keys]
            assert all(expected)
            for table in tables.values():
                assert [dict(table.get(page=f"{PAGE}{key}")) for key in keys] == expected
                assert table.count() == given.rows
            lookups: dict[str, list[float]] = {name: [] for name in tables}
            scans: dict[str, list[float]] = {name: [] for name in tables}
            for _ in range(given.rounds):
                for name, table in tables.items():

                    def get(table: Any = table) -> object:
                        return table.get(page=f"{PAGE}{random.randrange(given.rows)}")

                    lookups[name].append(per_second(get, given.seconds, THREADS))
                    began = time.monotonic()
                    assert len(table.scan()) == given.rows
                    scans[name].append(given.rows / (time.monotonic() - began))
        measured = {
            name: {
                "lookups_per_second": round(statistics.median(lookups[name])),
                "lookups_to_whole": _ratio(lookups[name], lookups["whole"]),
                "scanned_rows_per_second": round(statistics.median(scans[name])),
                "scan_to_whole": _ratio(scans[name], scans["whole"]),
            }
            for name in tables
        }
        rounds = {name: {"lookups": lookups[name], "scanned_rows": scans[name]} for name in measured}
        print(json.dumps(measured, indent=1))
        if given.write:
            figures = {"rows": given.rows, "seconds": given.seconds, "threads": THREADS, "shards": SHARDS, "sides": measured}
            write_result("shards", figures, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


if __name__ == "__main__":
    main()

"""`python -m in_a_row --count 200`: savepoints of jobs at full speed, of both providers, and write the result."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from in_a_row.row import Row
from live_jobs.event_files import PROVIDERS


def main() -> int:
    """Make, verify and restore them; returns 0 if all of them are right."""
    parser = argparse.ArgumentParser(prog="in_a_row", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="savepoints of each provider")
    parser.add_argument("--every", type=int, default=10, help="of so many, Spark starts from one")
    parser.add_argument("--providers", nargs="+", choices=PROVIDERS, default=list(PROVIDERS))
    parser.add_argument("--result", type=Path, help="a JSON file for what it came to")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from results import machine

    from millpond.spark.session import session

    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
    }
    spark = session("savepoints in a row", **conf)
    spark.sparkContext.setLogLevel("OFF")
    began, load, found = time.monotonic(), os.getloadavg()[0], {}
    for provider in given.providers:
        since = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="millpond-in-a-row-") as folder:
            row = Row(spark, Path(folder), provider)
            row.run(given.count, given.every)
        found[provider] = {"seconds": round(time.monotonic() - since), **row.facts()}
        print(provider, json.dumps(found[provider]), flush=True)
    spark.stop()
    result = {
        "command": f"python -m in_a_row --count {given.count} --every {given.every} --providers {' '.join(given.providers)}",
        "machine": machine(),
        "load_average": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
        "seconds": round(time.monotonic() - began),
        "savepoints": sum(facts["savepoints"] for facts in found.values()),
        "wrong": sum(len(facts["wrong"]) for facts in found.values()),
        "providers": found,
    }
    if given.result is not None:
        given.result.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

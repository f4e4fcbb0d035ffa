"""`python -m random_queries --count 1000 --seed 7`: compare random queries with Spark; print failures as small cases."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from random_queries.campaign import Campaign, spark_session
from random_queries.case import parse_case


def main() -> int:
    """Run the queries; returns 0 if all agree or are refused by name."""
    parser = argparse.ArgumentParser(prog="random_queries", description=__doc__)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--first", type=int, default=0, help="the first number, to run one again")
    parser.add_argument("--result", type=Path, help="a JSON file for what it came to")
    parser.add_argument("--save", type=Path, help="a folder for the minimised cases")
    parser.add_argument("--conditions", type=float, default=0.1, help="the share of expressions that are nested conditions")
    parser.add_argument("--plain", action="store_true", help="don't make failures small")
    parser.add_argument("--cases", type=Path, nargs="*", default=[], help="files of cases, to be run first")
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.count} queries", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="random-queries-") as folder:
        spark = spark_session(Path(folder))
        try:
            campaign = Campaign(spark, Path(folder), minimise=not given.plain, save=given.save, conditions=given.conditions)
            for path in given.cases:
                print(f"{path.stem}: {campaign.judge(parse_case(path.read_text())) or 'agrees'}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):  # prints what was found so far
                campaign.run(given.seed, range(given.first, given.first + given.count))
        finally:
            spark.stop()
    print(campaign.describe(), flush=True)
    if given.result is not None:
        facts = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()},
            "versions": {name: version(name) for name in ("millpond", "pyspark")},
            "seed": given.seed,
            "first": given.first,
            "count": given.count,
            "seconds": round(time.monotonic() - began),
            **campaign.result(),
        }
        given.result.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    sys.exit(main())

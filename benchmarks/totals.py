"""Totals of all groups of an aggregate in SQL, beside the same sums over its buckets, in one run.

    python benchmarks/totals.py [--groups 10000] [--days 7] [--runs 5] [--write]

A declared aggregate with hours and days, kept for ever: each group has an event in each hour.  The replica is there before.
The statements, by turns, each with a row for each group and the same counts and sums:

    total       SELECT page, hits, bytes FROM total('views')
    hours       the same by a sum over the rows of hours, GROUP BY page
    days        the same over the rows of days: fewer rows, and only right where spans begin and end with days
    one each    `Table.total` of Python for each group
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import write_result
from states import spark_session

import millpond
from millpond.tables.sql.end import SqlLimits

BEGIN = "2026-01-01 00:00:00"


def build(folder: Path, groups: int, days: int) -> None:
    """Run the aggregate over its events."""
    from pyspark.sql import functions as F

    spark = spark_session("totals", "4g", **{"spark.sql.session.timeZone": "UTC"})
    hour = f"timestamp '{BEGIN}' + make_interval(0, 0, 0, 0, CAST(id DIV {groups} AS INT))"
    rows = spark.range(0, groups * days * 24, 1, 8).selectExpr(f"id % {groups} AS page", f"{hour} AS at", "id % 1000 AS bytes")
    rows.write.parquet(str(folder / "in"))
    views = millpond.Aggregate(
        "views",
        key=["page"],
        event_time="at",
        values={"hits": F.count("*"), "bytes": F.sum("bytes")},
        resolutions={"1 hour": None, "1 day": None},
    )
    events = spark.readStream.schema("page long, at timestamp, bytes long").parquet(str(folder / "in"))
    with millpond.start(views, events, pond=folder / "pond", trigger="available-now") as job:
        job.wait_for_end()
    spark.stop()


def reads(pond: millpond.Pond, groups: int) -> dict[str, Callable[[], set[tuple[Any, ...]]]]:
    """Each read, giving (page, hits, bytes) of each group."""
    table = pond["views"]

    def statement(text: str) -> set[tuple[Any, ...]]:
        found = pond.sql(text, limits=SqlLimits(cache_bytes=0)).to_arrow().to_pydict()
        return set(zip(*found.values(), strict=True))

    def one_each() -> set[tuple[Any, ...]]:
        found = ((page, table.total(page=page)) for page in range(groups))
        return {(page, total["hits"], total["bytes"]) for page, total in found}

    summed = "SELECT page, sum(hits)::BIGINT, sum(bytes)::BIGINT FROM views WHERE resolution = '1 {unit}' GROUP BY page"
    return {
        "total": lambda: statement("SELECT page, hits, bytes FROM total('views')"),
        "hours": lambda: statement(summed.format(unit="hour")),
        "days": lambda: statement(summed.format(unit="day")),
        "one each": one_each,
    }


def main() -> None:
    """Run the statements by turns, and show the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/totals.json")
    options = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as name:
        build(Path(name), options.groups, options.days)
        with millpond.open(Path(name) / "pond", wait_seconds=300) as pond:
            for number in range(options.runs + 1):
                seconds, answers = {}, {}
                for kind, read in reads(pond, options.groups).items():
                    begin = time.perf_counter()
                    answers[kind] = read()
                    seconds[kind] = time.perf_counter() - begin
                assert len(answers["total"]) == options.groups
                assert all(answer == answers["total"] for answer in answers.values())
                if number:  # the first reads the replica's pages into memory
                    runs.append(seconds)
    result = {
        "what": "total() of all groups in SQL, beside sums over the buckets",
        "sizes": {name: getattr(options, name) for name in ("groups", "days", "runs")},
        "median_seconds": {kind: round(statistics.median(r[kind] for r in runs), 4) for kind in runs[0]},
        "times_faster_than": {
            kind: round(statistics.median(r[kind] / r["total"] for r in runs), 2) for kind in runs[0] if kind != "total"
        },
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("totals", result, runs)


if __name__ == "__main__":
    main()

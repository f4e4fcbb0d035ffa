"""What it takes to merge the sketches of many days into one answer, in one run.

    python benchmarks/sketches.py [--days 90] [--events 2000] [--hosts 5000] [--rounds 9] [--write]

Tables, one job each, over the same events of one key (so many each day), with a bucket a day:

    count       a count and a sum
    distinct    these, and distinct hosts (HLL)
    quantile    these, and the 99th percentile of a time (KLL)
    top_k       these, and the ten most frequent hosts (frequent items, of up to 10,000 hosts)

Reads, by turns, of 1 day, 7 days and all days:

    count …     `Table.total` of each table, from a replica that is there
    python      that of top_k without the compiled library, of all days
    spark …     a batch job that merges the same sketches, those of a cached DataFrame with a row a day, and computes the same

Both must count the same number of events and of hosts, and show the same counts of the most frequent hosts; the percentiles may
differ by the error that Spark states for them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from results import write_result
from states import spark_session

import millpond
from millpond.native.library import switched_off

SCHEMA = "page long, at timestamp, host string, ms double"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WEEK_DAYS = 7
MOST_MS = 1000
QUANTILE_ERROR = 0.03
WARM_UP_ROUNDS = 2
SKETCHES = {
    "distinct": ("hll_sketch_agg(host)", "hll_sketch_estimate(hll_union_agg({}))"),
    "quantile": ("kll_sketch_agg_double(ms)", "kll_sketch_get_quantile_double(kll_merge_agg_double({}), 0.99D)"),
    "top_k": ("approx_top_k_accumulate(host, 10000)", "approx_top_k_estimate(approx_top_k_combine({}, 10000), 10)"),
}
"""Value -> Spark's sketch of a day, and Spark's value of the sketches of several days"""


def value_of(kind: str) -> Any:
    """The sketch as it is declared."""
    return {
        "distinct": lambda: millpond.distinct("host"),
        "quantile": lambda: millpond.quantile("ms", 0.99),
        "top_k": lambda: millpond.top_k("host", 10),
    }[kind]()


def write_tables(spark: Any, folder: Path, options: argparse.Namespace) -> None:
    """The pond of each kind, and what Spark reads."""
    from pyspark.sql import functions as F

    rows = spark.range(0, options.days * options.events, 1, 4).selectExpr(
        "0L AS page",
        f"timestamp '{BEGIN:%Y-%m-%d} 00:00:00'"
        f" + make_interval(0, 0, 0, id DIV {options.events}, 0, 0, id % {options.events}) AS at",
        f"concat('host-', pmod(xxhash64(id), {options.hosts})) AS host",
        f"pmod(xxhash64(id, 1), {MOST_MS}) + 0.5D AS ms",
    )
    rows.write.parquet(str(folder / "days"))
    events = spark.readStream.schema(SCHEMA).parquet(str(folder / "days"))
    for kind in ("count", *SKETCHES):
        values = {"hits": F.count("*"), "ms": F.sum("ms")} | ({kind: value_of(kind)} if kind in SKETCHES else {})
        declared = millpond.Aggregate(
            "views", key=["page"], event_time="at", values=values, resolutions={"1 day": None}, dead_letters=None, future_skew=None
        )
        with millpond.start(declared, events, pond=folder / kind, trigger="available-now", partitions=2) as job:
            job.wait_for_end()


def cached_days(spark: Any, folder: Path, days: int) -> Any:
    """A row a day: its count, its sum and its sketches."""
    from pyspark.sql import functions as F

    each = [F.count("*").alias("hits"), F.sum("ms").alias("ms"), *(F.expr(sketch).alias(k) for k, (sketch, _) in SKETCHES.items())]
    daily = spark.read.parquet(str(folder / "days")).groupBy("page", F.date_trunc("day", "at").alias("day")).agg(*each)
    daily = daily.coalesce(1).cache()
    assert daily.count() == days
    return daily


def check(kind: str, total: Any, row: Any, days: int) -> None:
    """Raise if the two don't say the same."""
    assert (total["hits"], total["ms"]) == (row["hits"], row["ms"])
    assert sum(used.rows for used in total.used) == days
    if kind == "distinct":
        assert total[kind] == row[kind], (total[kind], row[kind])
    elif kind == "quantile":
        assert abs(total[kind] - row[kind]) <= MOST_MS * QUANTILE_ERROR, (total[kind], row[kind])
    elif kind == "top_k":
        counts = [[item["count"] for item in top] for top in (total[kind], row[kind])]
        assert counts[0] == counts[1], counts
        last = counts[0][-1]
        items = [{item["item"] for item in top if item["count"] > last} for top in (total[kind], row[kind])]
        assert items[0] == items[1], items


def measure(spark: Any, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of each read."""
    daily = cached_days(spark, folder, options.days)
    ponds = {kind: millpond.open(folder / kind, wait_seconds=60) for kind in ("count", *SKETCHES)}
    found = []
    try:
        for number in range(options.rounds + WARM_UP_ROUNDS):
            for days in sorted({1, WEEK_DAYS, options.days}):
                until = BEGIN + timedelta(days=options.days)
                since = until - timedelta(days=days)
                one: dict[str, Any] = {"days": days}
                of_days = daily.where(f"page = 0 AND day >= timestamp '{since:%Y-%m-%d} 00:00:00'")
                for kind, pond in ponds.items():
                    begin = time.perf_counter()
                    total = pond["views"].total(page=0, since=since, until=until)
                    one[kind] = time.perf_counter() - begin
                    value = {kind: SKETCHES[kind][1].format(kind)} if kind in SKETCHES else {}
                    merged = of_days.selectExpr(
                        "sum(hits) AS hits", "sum(ms) AS ms", *(f"{sql} AS {k}" for k, sql in value.items())
                    )
                    begin = time.perf_counter()
                    (row,) = merged.collect()
                    one[f"spark {kind}"] = time.perf_counter() - begin
                    check(kind, total, row, days)
                if days == options.days:
                    with switched_off():
                        begin = time.perf_counter()
                        total = ponds["top_k"]["views"].total(page=0, since=since, until=until)
                        one["python"] = time.perf_counter() - begin
                    check("top_k", total, row, days)
                if number >= WARM_UP_ROUNDS:
                    found.append(one)
    finally:
        for pond in ponds.values():
            pond.close()
    return found


def main() -> None:
    """Run all of it by turns, and show the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--events", type=int, default=2000, help="of each day")
    parser.add_argument("--hosts", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/sketches.json")
    options = parser.parse_args()
    spark = spark_session("sketches", "3g", **{"spark.sql.session.timeZone": "UTC"})
    with tempfile.TemporaryDirectory() as name:
        try:
            write_tables(spark, Path(name), options)
            rounds = measure(spark, Path(name), options)
        finally:
            spark.stop()
    result: dict[str, Any] = {
        "what": "a total of days with a sketch beside one without, and beside Spark's merge of the same sketches",
        "sizes": {name: getattr(options, name) for name in ("days", "events", "hosts")},
        "totals": [],
    }
    for days in sorted({one["days"] for one in rounds}):
        these = [one for one in rounds if one["days"] == days]
        median = {kind: statistics.median(one[kind] for one in these) for kind in ("count", *SKETCHES)}
        result["totals"].append(
            {
                "days": days,
                "milliseconds_median": {kind: round(1000 * seconds, 2) for kind, seconds in median.items()},
                "of_count": {kind: round(statistics.median(one[kind] / one["count"] for one in these), 2) for kind in SKETCHES},
                "of_spark": {k: round(statistics.median(one[k] / one[f"spark {k}"] for one in these), 3) for k in median},
            }
        )
    whole = [one for one in rounds if "python" in one]
    result["top_k_without_library"] = {
        "days": whole[0]["days"],
        "milliseconds_median": round(1000 * statistics.median(one["python"] for one in whole), 1),
        "of_top_k": round(statistics.median(one["python"] / one["top_k"] for one in whole), 1),
    }
    print(json.dumps(result, indent=1), file=sys.stderr if options.write else sys.stdout)
    if options.write:
        write_result("sketches", result, rounds)


if __name__ == "__main__":
    main()

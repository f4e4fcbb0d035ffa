"""What resolutions cost and what they save, in one run.

    python benchmarks/aggregates.py [--rows 600000] [--keys 2000] [--batches 6] [--days 90] [--rounds 3] [--write]

Jobs, by turns, over the same files of events (a week of event time, in order; HDFS-backed provider, 8 partitions):

    by hand     a groupBy of one resolution, the minute, with a watermark of two days
    declared    `millpond.Aggregate` with minutes (kept for 2 days), hours (90 days) and days, late events listed
    unlisted    the same without dead letters
    one each    three jobs by hand, one for each of these resolutions, one after the other

A rate is that of all batches but the first, from the end of the first to the end of the last; of `one each` it is that of all three
together.  Reads, of one key with an event in each minute of 90 days, from a replica that is there:

    total       `Table.total` over all of it
    minutes     the same from the rows of the minutes: `Table.range`, counted and added up in Python
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import write_result
from states import PROVIDERS, spark_session

import millpond

RESOLUTIONS: dict[str, str | None] = {"1 minute": "2 days", "1 hour": "90 days", "1 day": None}
UNITS = {"minute": "2 days", "hour": "90 days", "day": "400 days"}
SCHEMA = "page long, at timestamp, bytes long"
WEEK_SECONDS = 7 * 86_400
BEGIN = "2026-01-01 00:00:00"


def values() -> dict[str, Any]:
    """What each query counts."""
    from pyspark.sql import functions as F

    return {"hits": F.count("*"), "bytes": F.sum("bytes")}


def by_hand(events: Any, unit: str, keep: str) -> Any:
    """One resolution as one writes it oneself."""
    from pyspark.sql import functions as F

    bucket = F.window("at", f"1 {unit}")
    return events.withWatermark("at", keep).groupBy("page", bucket).agg(*(v.alias(n) for n, v in values().items()))


def declared(resolutions: dict[str, str | None], dead_letters: str | None = "7 days") -> millpond.Aggregate:
    """The same in several resolutions."""
    options: dict[str, Any] = {"key": ["page"], "event_time": "at", "values": values(), "future_skew": None}
    return millpond.Aggregate("views", resolutions=resolutions, dead_letters=dead_letters, **options)


def run(query: Any, checkpoint: Path) -> tuple[int, float]:
    """Rows and seconds of all batches but the first."""
    writer = query.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    job = writer.option("checkpointLocation", str(checkpoint)).start()
    job.awaitTermination()
    done = [p for p in job.recentProgress if p["numInputRows"]]
    ends = [(checkpoint / "commits" / str(p["batchId"])).stat().st_mtime for p in done]
    shutil.rmtree(checkpoint)
    return sum(p["numInputRows"] for p in done[1:]), ends[-1] - ends[0]


def measure_jobs(spark: Any, folder: Path) -> dict[str, float]:
    """Rows a second of each kind."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    rates = {}
    for kind, queries in (
        ("by hand", [by_hand(events, "minute", UNITS["minute"])]),
        ("declared", [declared(RESOLUTIONS).on(events, checkpoint=folder / "checkpoint")]),
        ("unlisted", [declared(RESOLUTIONS, dead_letters=None).on(events)]),
        ("one each", [by_hand(events, unit, keep) for unit, keep in UNITS.items()]),
    ):
        found = [run(query, folder / "checkpoint") for query in queries]
        rates[kind] = found[0][0] / sum(seconds for _, seconds in found)
    return rates


def measure_reads(spark: Any, folder: Path, days: int) -> list[dict[str, Any]]:
    """Seconds of a total, and of the same from the minutes."""
    minutes = days * 1440
    rows = spark.range(0, minutes, 1, 1).selectExpr(
        "0L AS page", f"timestamp '{BEGIN}' + make_interval(0, 0, 0, 0, 0, id) AS at", "id AS bytes"
    )
    rows.write.parquet(str(folder / "minutes"))
    events = spark.readStream.schema(SCHEMA).parquet(str(folder / "minutes"))
    with millpond.start(declared(dict.fromkeys(RESOLUTIONS)), events, pond=folder / "pond", trigger="available-now") as job:
        job.wait_for_end()
    found = []
    with millpond.open(folder / "pond", wait_seconds=60) as pond:
        table = pond["views"]
        for number in range(6):
            begin = time.perf_counter()
            total = table.total(page=0)
            middle = time.perf_counter()
            scanned = list(table.range(page=0, resolution="1 minute"))
            sums = len(scanned), sum(r["hits"] for r in scanned), sum(r["bytes"] for r in scanned)
            end = time.perf_counter()
            assert sums == (minutes, total["hits"], total["bytes"])
            if number:
                found.append({"total": middle - begin, "minutes": end - middle, "buckets": sum(u.rows for u in total.used)})
    return found


def main() -> None:
    """Run all of it by turns, and show the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/aggregates.json")
    options = parser.parse_args()
    spark = spark_session("aggregates", "4g", **{"spark.sql.session.timeZone": "UTC"})
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS["hdfs"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        at = f"timestamp '{BEGIN}' + make_interval(0, 0, 0, 0, 0, 0, id * {WEEK_SECONDS} / {options.rows})"
        for batch in range(options.batches):
            share = options.rows // options.batches
            events = spark.range(batch * share, (batch + 1) * share, 1, 1)
            events = events.selectExpr(f"pmod(xxhash64(id), {options.keys}) AS page", f"{at} AS at", "id % 1000 AS bytes")
            events.write.mode("append").parquet(str(folder / "in"))
        rounds = []
        for number in range(options.rounds + 1):
            rates = measure_jobs(spark, folder)
            print(rates, file=sys.stderr, flush=True)
            if number:  # the first warms the JVM
                rounds.append(rates)
        reads = measure_reads(spark, folder, options.days)
        spark.stop()
    result = {
        "what": "three resolutions beside one by hand; a total of 90 days beside its minutes",
        "sizes": {name: getattr(options, name) for name in ("rows", "keys", "batches", "days")},
        "median_rows_per_second": {kind: round(statistics.median(r[kind] for r in rounds)) for kind in rounds[0]},
        "declared_as_multiple_of_by_hand": round(statistics.median(r["declared"] / r["by hand"] for r in rounds), 3),
        "unlisted_as_multiple_of_by_hand": round(statistics.median(r["unlisted"] / r["by hand"] for r in rounds), 3),
        "declared_as_multiple_of_one_each": round(statistics.median(r["declared"] / r["one each"] for r in rounds), 3),
        "total": {
            "seconds_median": round(statistics.median(r["total"] for r in reads), 5),
            "minutes_seconds_median": round(statistics.median(r["minutes"] for r in reads), 4),
            "times_faster": round(statistics.median(r["minutes"] / r["total"] for r in reads), 1),
            "buckets": reads[0]["buckets"],
        },
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("aggregates", result, [*rounds, *reads])


if __name__ == "__main__":
    main()

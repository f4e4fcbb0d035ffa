"""Distinct counts, quantiles and frequent items of declared aggregates: against Spark over exactly these events."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import millpond
from inputs.event_file import write_event_file
from millpond.cli import main
from millpond.errors import MillpondError
from spark.aggregate.test_buckets import said
from suite.sizes import examples

BEGIN = dt.datetime(2026, 3, 6, 22, 0, tzinfo=dt.UTC)
SCHEMA = "at timestamp, page string, ms double, bytes long, host string"
PAGES = ("/", "/a", "/b")
RANKS = [0.0, 0.1, 0.5, 0.99]
# So small that the sketches of a day are full, and those of a minute aren't.
LG_K, KLL_K, TRACKED = 5, 60, 20


def values() -> dict[str, Any]:
    from pyspark.sql import functions as F

    return {
        "hits": F.count("*"),
        "hosts": millpond.distinct("host", rsd=0.19),
        "hosts_small": millpond.distinct("page"),
        "hosts_exact": millpond.distinct("host", exact=True),
        "theta": F.theta_sketch_estimate(F.theta_sketch_agg("host", LG_K)),
        "median": millpond.quantile("ms", 0.5, k=KLL_K),
        "ranks": millpond.quantile("bytes", RANKS, k=KLL_K),
        "seen": F.kll_sketch_get_n_double(F.kll_sketch_agg_double(F.col("ms"), KLL_K)),
        "ends": millpond.quantile("ms", [0.0, 1.0], k=KLL_K),
        "top": millpond.top_k("host", 3, max_items_tracked=TRACKED),
        "top_bytes": millpond.top_k("bytes", 4),
    }


def declare() -> millpond.Aggregate:
    resolutions = {"1 minute": "6 hours", "1 hour": "3 days", "1 day": None}
    return millpond.Aggregate("views", key=["page"], event_time="at", values=values(), resolutions=resolutions, future_skew=None)


def event(draw: random.Random, at: dt.datetime) -> dict[str, Any]:
    """One event; hosts are skewed, and some values are NULL."""
    host = f"h{int(600 * draw.random() ** 4)}" if draw.random() < 0.95 else None
    ms = None if draw.random() < 0.1 else draw.paretovariate(1.2)
    return {"at": at.isoformat(), "page": draw.choice(PAGES), "ms": ms, "bytes": draw.randrange(40), "host": host}


def write_events(folder: Path, draw: random.Random, files: int, each: int) -> list[dict[str, Any]]:
    folder.mkdir()
    written = []
    for number in range(files):
        now = BEGIN + dt.timedelta(hours=10 * number)
        rows = [event(draw, now + dt.timedelta(seconds=draw.random() * 36_000)) for _ in range(each)]
        write_event_file(folder, number, rows)
        written += rows
    return written


def of_span(rows: list[dict[str, Any]], page: str, since: Any, until: Any) -> list[dict[str, Any]]:
    return [r for r in rows if r["page"] == page and since <= dt.datetime.fromisoformat(r["at"]) < until]


def check(total: Any, rows: list[dict[str, Any]]) -> None:
    """A total is that of these events: exactly, or within what it says of itself."""
    hosts = [r["host"] for r in rows if r["host"] is not None]
    times = sorted(r["ms"] for r in rows if r["ms"] is not None)
    assert total["hits"] == len(rows)
    assert total["hosts_exact"] == len(set(hosts))
    assert total["hosts_small"] == 1
    assert total["seen"] == len(times)
    assert total["ends"] == ([times[0], times[-1]] if times else None)
    for name, sure in (("hosts", 4), ("theta", 4)):
        lower, upper, confidence = total.estimates[name]
        assert confidence == 0.954
        assert lower <= total[name] <= upper
        # Twice as far as the bounds say: one in 16,000 lies outside.
        assert (
            total[name] - sure / 2 * (total[name] - lower) - 1
            <= len(set(hosts))
            <= total[name] + sure / 2 * (upper - total[name]) + 1
        )
    if times:
        lower, upper, confidence = total.estimates["median"]
        assert confidence == 0.99
        assert lower <= total["median"] <= upper
        for value, rank in [(total["median"], 0.5), (lower, 0.5), (upper, 0.5)]:
            below, upto = sum(t < value for t in times) / len(times), sum(t <= value for t in times) / len(times)
            assert below - 0.12 <= rank <= upto + 0.12
    check_top(total, "top", [r["host"] for r in rows])
    check_top(total, "top_bytes", [r["bytes"] for r in rows])


def check_top(total: Any, name: str, items: list[Any]) -> None:
    lower, upper, confidence = total.estimates[name]
    assert confidence == 1.0
    assert upper == total[name]
    shown = [found["item"] for found in upper]
    assert len(set(shown)) == len(shown)
    for least, most in zip(lower, upper, strict=True):
        assert least["count"] <= items.count(least["item"]) <= most["count"]
    if lower == upper and len(set(items)) <= TRACKED:
        best = sorted((items.count(item) for item in set(items)), reverse=True)[: 4 if name == "top_bytes" else 3]
        assert [found["count"] for found in upper] == best


@pytest.mark.long
def test_totals_of_sketches_hold_for_all_events_of_their_span(spark, tmp_path, serve) -> None:
    draw = random.Random(11)
    rows = write_events(tmp_path / "in", draw, 4, 500)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    with declare().start(source, pond=tmp_path / "pond", trigger="available-now") as job:
        assert job.wait_for_end(120)
    with millpond.open(tmp_path / "pond") as pond:
        views, end = pond["views"], BEGIN + dt.timedelta(hours=40)
        used, spans = set(), []
        for _ in range(examples(60)):
            page, until = draw.choice(PAGES), end - dt.timedelta(seconds=draw.randrange(30_000))
            since = until - dt.timedelta(seconds=draw.choice((600, 20_000, 140_000)))
            total = views.total(page=page, since=since, until=until)
            found = of_span(rows, page, total.since, total.until)
            assert bool(total) == bool(found)
            if total:
                check(total, found)
                used |= {u.resolution for u in total.used}
                spans.append({"since": total.since, "until": total.until})
        assert used == {"1 minute", "1 hour", "1 day"}
        for row in views.series(page="/a", step="1 hour", since=end - dt.timedelta(hours=30), until=end):
            check(row, of_span(rows, "/a", row.since, row.until))
        whole = views.total(page="/")
        assert whole.estimates["hosts"].lower < whole.estimates["hosts"].upper
        with serve(tmp_path / "pond") as (url, _):
            asyncio.run(same_over_every_door(views, url, spans[:4]))
            on_the_command_line(views, (str(tmp_path / "pond"), url), str(tmp_path / "home"))


async def same_over_every_door(views: Any, url: str, spans: list[dict[str, Any]]) -> None:
    async with millpond.connect_async(url) as server:
        with millpond.connect(url) as remote:
            for span in ({}, *spans):
                here = views.total(page="/", **span)
                for there in (remote["views"].total(page="/", **span), await server["views"].total(page="/", **span)):
                    assert said(lambda there=there: there) == said(lambda here=here: here)
                    assert there.estimates == here.estimates
            here, there = (table.series(page="/", step="1 day") for table in (views, remote["views"]))
            assert [r.estimates for r in there] == [r.estimates for r in here]
            assert remote["views"].total(page="/nobody").estimates == {}
    said_there = httpx.get(f"{url}/tables/views/total?page=/", timeout=60).json()
    hosts = views.total(page="/").estimates["hosts"]
    assert said_there["estimates"]["hosts"] == {"lower": hosts.lower, "upper": hosts.upper, "confidence": 0.954}


def on_the_command_line(views: Any, places: tuple[str, ...], home: str) -> None:
    runner, whole = CliRunner(env={"MILLPOND_HOME": home}), views.total(page="/")
    for place in places:
        ran = runner.invoke(main, ["total", place, "views", "page=/", "--json"])
        assert json.loads(ran.stdout)["hosts"] == whole["hosts"], ran.output
        assert json.loads(ran.stderr.splitlines()[-1])["estimates"]["hosts"]["upper"] == whole.estimates["hosts"].upper
        ran = runner.invoke(main, ["total", place, "views", "page=/"])
        assert f"hosts is an estimate: {whole.estimates['hosts'].lower} to {whole.estimates['hosts'].upper}" in ran.stderr
        ran = runner.invoke(main, ["series", place, "views", "page=/", "--step", "1 day"])
        assert "estimates; --json" in ran.stderr


def test_values_that_cannot_be_are_refused(spark) -> None:
    for wrong in (
        lambda: millpond.distinct("host", rsd=0),
        lambda: millpond.distinct("host", rsd=1e-6),
        lambda: millpond.distinct("host", rsd=0.1, exact=True),
        lambda: millpond.quantile("ms", 1.5),
        lambda: millpond.quantile("ms", []),
        lambda: millpond.quantile("ms", "0.5"),
        lambda: millpond.quantile("ms", 0.5, k=1),
        lambda: millpond.top_k("host", 0),
        lambda: millpond.top_k("host", 10, max_items_tracked=9),
    ):
        with pytest.raises(MillpondError) as error:
            wrong()
        assert error.value.condition == "INVALID_REQUEST"


def test_the_program_of_sketches_is_the_same_query(spark) -> None:
    from spark.aggregate.test_program import plan_of, run

    batch = spark.createDataFrame([], SCHEMA)
    aggregate = declare()
    assert plan_of(run(aggregate.program(batch), batch)) == plan_of(aggregate.on(batch))

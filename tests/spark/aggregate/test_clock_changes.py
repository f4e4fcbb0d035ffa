"""Buckets while clocks change: each is one row and expires when readers expect it, and totals are those of all events."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import MillpondError
from oracles.catalyst import Catalyst, form
from spark.aggregate.test_buckets import declare, event, read_stream
from suite.sizes import a_few, examples

# In Havana and on the Azores a day of autumn has two midnights, and one of spring in Havana begins at one o'clock.
CHANGES = [
    ("America/New_York", dt.datetime(2025, 3, 9, 7, tzinfo=dt.UTC)),
    ("America/Havana", dt.datetime(2025, 11, 2, 5, tzinfo=dt.UTC)),
    ("America/Havana", dt.datetime(2025, 3, 9, 5, tzinfo=dt.UTC)),
    ("America/New_York", dt.datetime(2025, 11, 2, 6, tzinfo=dt.UTC)),
    ("Atlantic/Azores", dt.datetime(2025, 10, 26, 1, tzinfo=dt.UTC)),
]
KEEPS = {"1 minute": 2 * 86_400, "1 hour": 5 * 86_400, "1 day": None}


@pytest.fixture
def zone(spark, request: pytest.FixtureRequest):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield ZoneInfo(request.param)
    spark.conf.set("spark.sql.session.timeZone", before)


def span(resolution: str, at: dt.datetime, zone: ZoneInfo) -> tuple[dt.datetime, dt.datetime]:
    """Begin and end of a bucket; clocks change by whole hours here."""
    if resolution != "1 day":
        seconds = {"1 minute": 60, "1 hour": 3600}[resolution]
        begin = dt.datetime.fromtimestamp(at.timestamp() // seconds * seconds, dt.UTC)
        return begin, begin + dt.timedelta(seconds=seconds)
    day = at.astimezone(zone).date()
    begins = [dt.datetime.combine(day + dt.timedelta(days=n), dt.time(), zone) for n in range(2)]
    return begins[0].astimezone(dt.UTC), begins[1].astimezone(dt.UTC)


@pytest.mark.parametrize(("zone", "change"), a_few(CHANGES, 0), indirect=["zone"])
def test_buckets_are_kept_for_as_long_as_readers_expect_when_clocks_change(spark, tmp_path: Path, zone, change) -> None:
    random_, folder = random.Random(str(change)), tmp_path / "in"
    folder.mkdir()
    end = change + dt.timedelta(hours=30, seconds=random_.randrange(3600))
    events = [event(random_, end - dt.timedelta(minutes=7 * n, seconds=random_.randrange(60))) for n in range(1, 700)]
    # Spark rejects no event that comes together with a later one: buckets expire with the second batch.
    write_event_file(folder, 0, events)
    write_event_file(folder, 1, [event(random_, end)])
    resolutions = {name: None if keep is None else f"{keep} seconds" for name, keep in KEEPS.items()}
    aggregate = declare(resolutions=resolutions, dead_letters=None)
    with aggregate.start(read_stream(spark, folder), pond=tmp_path / "pond", trigger="available-now") as job:
        assert job.wait_for_end(120)
    times = Counter((row["page"], dt.datetime.fromisoformat(row["at"])) for row in events)
    buckets: Counter = Counter()
    for (page, at), count in times.items():
        for resolution, keep in KEEPS.items():
            begin, until = span(resolution, at, zone)
            expires = None if keep is None else until + dt.timedelta(seconds=keep)
            if expires is None or expires > end:
                buckets[page, resolution, begin, expires] += count
    with millpond.open(tmp_path / "pond", wait_seconds=60) as opened:
        views = opened["views"]
        rows = views.scan()
        newest = dt.datetime.fromtimestamp((rows.position.watermark_ms or 0) / 1000, dt.UTC)
        assert newest == end
        found = {(r["page"], r["resolution"], r["bucket_start"], r["expires_at"]): r["hits"] for r in rows}
        own = {span(name, end, zone)[0] for name in KEEPS}  # the last event's, which nobody counted here
        assert {key: n for key, n in found.items() if key[2] not in own} == {k: n for k, n in buckets.items() if k[2] not in own}
        answers = 0
        for _ in range(examples(100)):
            since = end - dt.timedelta(seconds=random_.choice((172_800, 432_000)) + random_.randrange(-5400, 5400))
            until = since + dt.timedelta(seconds=random_.choice((600, 7200, 40_000)))
            try:
                total = views.total(page="/", since=since, until=until)
            except MillpondError as error:
                assert error.condition == "HISTORY_GONE"
                continue
            answers += 1
            hits = sum(n for (page, at), n in times.items() if page == "/" and total.since <= at < total.until)
            assert total.get("hits", 0) == hits, (since, until, total.used)
        assert answers > 5


def test_a_timestamp_truncated_to_its_day_has_the_midnight_that_spark_gives(spark) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    draw = random.Random(5)
    try:
        for name, change in CHANGES:
            spark.conf.set("spark.sql.session.timeZone", name)
            found = Catalyst(spark, "t1 timestamp")
            micros = int(change.timestamp()) * 1_000_000
            found.use([(micros + draw.randrange(-(10**11), 10**11),) for _ in range(100)])
            (expression,) = found.optimized(["date_trunc('DAY', t1)"], lenient=False)
            ours = found.by_millpond(found.translated(expression))
            assert [form(value) for value in ours] == [form(value) for value in found.by_spark(expression)], name
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)

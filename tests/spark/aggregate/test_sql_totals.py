"""`total(…)` and `series(…)` in statements, of groups by a date and a float: each against the events themselves."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter

import millpond
from inputs.event_file import write_event_file
from millpond.tables.buckets import rows as bucket_rows
from servers.shards import shard_servers
from spark.aggregate.test_buckets import BEGIN

SCHEMA = "at timestamp, page string, day date, rate string, bytes long"
RATES = ["NaN", "0.5", "0.0", None]
DAYS = [None, "2026-03-01", "2026-03-02", "1969-12-31"]
FILES, FILE_HOURS = 4, 5


def write_events(folder, draw: random.Random) -> list[dict]:
    """Events of few pages and dates, some of them with no date, up to two days late."""
    folder.mkdir()
    written = []
    for number in range(FILES):
        now = BEGIN + dt.timedelta(hours=FILE_HOURS * number)
        rows = []
        for _ in range(50):
            at = now + dt.timedelta(seconds=draw.random() * 3600 * FILE_HOURS - draw.choice((0, 0, 600, 40_000, 170_000)))
            row = {
                "at": at.isoformat(),
                "page": draw.choice(("/", "/a", None)),
                "day": draw.choice(DAYS),
                "bytes": draw.randrange(99),
            }
            rows.append({name: value for name, value in row.items() if value is not None})
        write_event_file(folder, number, rows)
        written += rows
    return written


def of_events(events: list[dict], group: tuple, since: dt.datetime, until: dt.datetime) -> tuple[int, int]:
    """How many a group has in a span, and their bytes."""
    its = [e["bytes"] for e in events if group_of(e) == group and since <= dt.datetime.fromisoformat(e["at"]) < until]
    return len(its), sum(its)


def counted(events: list[dict], groups: set[tuple], since: dt.datetime, until: dt.datetime) -> dict[tuple, int]:
    """How many each group has in a span, if it has any."""
    hits = {group: of_events(events, group, since, until)[0] for group in groups}
    return {group: count for group, count in hits.items() if count}


def group_of(event: dict) -> tuple:
    """The group of an event or a row, as texts."""
    day, rate = event.get("day"), event.get("rate")
    return event.get("page"), None if day is None else str(day), None if rate is None else repr(float(rate))


def hour(at: dt.datetime) -> dt.datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def rows_of(pond: millpond.Pond, call: str, since: dt.datetime, until: dt.datetime) -> list[dict]:
    rows = pond.sql(f"SELECT * FROM {call}", {"since": since, "until": until}).rows()
    assert rows, (call, since, until)
    return rows


def test_statements_add_up_the_events_of_groups_by_a_date(spark, tmp_path, monkeypatch):
    from pyspark.sql import functions as F

    draw = random.Random(4)
    events = write_events(tmp_path / "in", draw)
    views = millpond.Aggregate(
        "by_day",
        key=["page", "day", "rate"],
        event_time="at",
        values={"hits": F.count("*"), "bytes": F.sum("bytes")},
        resolutions={"1 minute": "6 hours", "1 hour": None, "1 day": None},
    )
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    stream = stream.withColumn("rate", F.col("rate").cast("double"))
    with views.start(stream, pond=tmp_path / "pond", trigger="available-now") as job:
        assert job.wait_for_end(120)
    groups = {group_of(event) for event in events}
    end = BEGIN + dt.timedelta(hours=FILE_HOURS * FILES)
    with millpond.open(tmp_path / "pond", wait_seconds=60) as pond:
        for number in range(6):
            monkeypatch.setattr(bucket_rows, "_MOST_BYTES", (1, 1000, 64 << 20)[number % 3])  # by ranges, both, in memory
            since = end - dt.timedelta(seconds=draw.randrange(3 * 86_400))
            until = since + dt.timedelta(seconds=draw.randrange(60_000, 200_000))
            totals = rows_of(pond, "total('by_day', $since, $until)", since, until)
            steps = rows_of(pond, "series('by_day', '1 hour', $since, $until)", since, until)
            for row in totals + steps:
                assert (row["hits"], row["bytes"]) == of_events(events, group_of(row), row["_since"], row["_until"]), row
            first, last = {(row["_since"], row["_until"]) for row in totals}.pop()
            assert first <= since < until <= last
            assert {group_of(row): row["hits"] for row in totals} == counted(events, groups, first, last)
            hours = Counter()
            for row in steps:
                assert row["_until"] - row["_since"] == dt.timedelta(hours=1)
                hours[group_of(row)] += row["hits"]
            assert hours == counted(events, groups, hour(since), hour(until - dt.timedelta.resolution) + dt.timedelta(hours=1))
        (whole,) = pond.sql("SELECT sum(hits) AS hits, count(*) AS groups FROM total('by_day')").rows()
        assert (whole["hits"], whole["groups"]) == (len(events), len(groups))
        (some,) = pond.sql("SELECT sum(hits) AS hits FROM total('by_day') WHERE page IS NULL AND day = DATE '1969-12-31'").rows()
        assert some["hits"] == sum(group_of(event)[:2] == (None, "1969-12-31") for event in events)
        statement = "SELECT * FROM series('by_day', '1 day') ORDER BY ALL"
        with (
            shard_servers(tmp_path / "pond", ["0-2", "3-7"], tmp_path / "homes") as servers,
            millpond.connect_shards([server.url for server in servers]) as sharded,
        ):
            assert repr(sharded.sql(statement).rows()) == repr(pond.sql(statement).rows())


def test_groups_of_nothing_and_of_structs_long_texts_and_dates(spark, tmp_path, monkeypatch):
    from pyspark.sql import functions as F

    events = spark.range(600).selectExpr(
        f"timestamp '{BEGIN:%Y-%m-%d %H:%M:%S}' + make_interval(0, 0, 0, 0, 0, 0, id * 97) AS at",
        "CASE id % 4 WHEN 0 THEN repeat('x', 600) WHEN 1 THEN concat(repeat('x', 600), 'y') WHEN 2 THEN '' END AS text",
        "IF(id % 5 = 0, NULL, named_struct('a', id % 3, 'b', IF(id % 2 = 0, NULL, CAST(id % 4 AS STRING)))) AS pair",
        "date_add(DATE '2026-01-01', CAST(id % 3 AS INT)) AS day",
        "id AS bytes",
    )
    events.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(events.schema).parquet(str(tmp_path / "in"))
    values = {"hits": F.count("*"), "bytes": F.sum("bytes")}
    keys = {"whole": [], "split": ["text", "pair", "day"]}
    for name, key in keys.items():
        views = millpond.Aggregate(name, key=key, event_time="at", values=values, resolutions={"1 hour": None, "1 day": None})
        with views.start(stream, pond=tmp_path / "pond", trigger="available-now") as job:
            assert job.wait_for_end(120)
    with millpond.open(tmp_path / "pond", wait_seconds=60) as pond:
        for name, key in keys.items():
            expected = events.groupBy(*key).agg(*(value.alias(column) for column, value in values.items())).collect()
            for most in (1, 3000, 64 << 20):  # by ranges, both, in memory
                monkeypatch.setattr(bucket_rows, "_FEW_BYTES", most)
                monkeypatch.setattr(bucket_rows, "_MOST_BYTES", most)
                totals = pond.sql(f"SELECT {', '.join([*key, *values])} FROM total('{name}')").rows()
                assert sorted(map(repr, totals)) == sorted(repr(row.asDict(recursive=True)) for row in expected), (name, most)
                steps = pond.sql(
                    f"SELECT {', '.join([*key, 'sum(hits)::BIGINT AS hits'])} FROM series('{name}', '1 hour') GROUP BY ALL"
                )
                assert sorted(map(repr, steps.rows())) == sorted(
                    repr({column: row[column] for column in [*key, "hits"]}) for row in totals
                ), (name, most)

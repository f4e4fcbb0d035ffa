"""Declared aggregates with Spark: every total and series against a batch aggregation of the events themselves."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import random
from collections import Counter
from zoneinfo import ZoneInfo

import httpx
import pytest
from click.testing import CliRunner

import millpond
from inputs.event_file import write_event_file
from millpond.catalogue import open_jobs
from millpond.cli import main
from millpond.errors import MillpondError, ReplicaError, RequestError
from millpond.tables.buckets.answer import Total
from suite.sizes import IS_LONG, examples

BEGIN = dt.datetime(2026, 3, 6, 22, 0, tzinfo=dt.UTC)
SCHEMA = "at timestamp, page string, bytes long, host string"


def values():
    from pyspark.sql import functions as F

    return {
        "hits": F.count("*"),
        "bytes": F.sum("bytes"),
        "least": F.min("bytes"),
        "average": F.avg("bytes"),
        "hosts": F.approx_count_distinct("host"),
        "all_hosts": F.collect_set("host"),
        "median": F.percentile("bytes", 0.5),
    }


def declare(**options) -> millpond.Aggregate:
    resolutions = {"1 minute": "6 hours", "1 hour": "3 days", "1 day": None}
    return millpond.Aggregate(
        "views", **{"key": ["page"], "event_time": "at", "values": values(), "resolutions": resolutions, **options}
    )


def event(random_: random.Random, at: dt.datetime) -> dict:
    page = random_.choice(("/", "/a", "/b"))
    return {"at": at.isoformat(), "page": page, "bytes": random_.randrange(100), "host": f"h{random_.randrange(30)}"}


def write_days(folder, random_: random.Random, files: int) -> list[list[dict]]:
    """Files of events that come up to two weeks late, over several days in which clocks change in New York."""
    folder.mkdir()
    written = []
    for number in range(files):
        now = BEGIN + dt.timedelta(hours=5 * number)
        late = [random_.choice((0, 0, 600, 40_000, 400_000, 1_200_000)) * random_.random() for _ in range(60)]
        rows = [event(random_, now + dt.timedelta(seconds=random_.random() * 18_000 - s)) for s in late]
        write_event_file(folder, number, rows)
        written.append(rows)
    return written


def of_span(spark, rows, page: str, since, until) -> dict:
    """The values of all events of a span, by a batch aggregation."""
    df = spark.createDataFrame([(dt.datetime.fromisoformat(r["at"]), r["page"], r["bytes"], r["host"]) for r in rows], SCHEMA)
    where = (df.page == page) & (df["at"] >= since) & (df["at"] < until)
    (row,) = df.where(where).agg(*(v.alias(n) for n, v in values().items())).collect()
    return plain(row.asDict())


def plain(row: dict) -> dict:
    return {n: sorted(v) if isinstance(v, list) else v for n, v in row.items() if n not in ("page", "bucket_start")}


def read_stream(spark, folder):
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def said(read) -> object:
    """What a read says, with the span and the resolutions; of one that is refused, why."""
    try:
        answer = read()
    except MillpondError as error:
        return error.condition, error.message
    each = [] if isinstance(answer, Total) else [(r.since, r.until) for r in answer]
    rows = dict(answer) if isinstance(answer, Total) else [dict(r) for r in answer]
    return rows, answer.since, answer.until, answer.used, each, answer.batch


def same_on_the_command_line(views, place: str, home: str, months: int) -> None:
    """The commands write the rows that Python reads, in both forms, and which buckets make them up."""
    runner = CliRunner(env={"MILLPOND_HOME": home})
    ran = runner.invoke(main, ["total", place, views.name, "page=/a", "--json"])
    whole = views.total(page="/a")
    assert json.loads(ran.stdout)["hits"] == whole["hits"]
    footer = json.loads(ran.stderr.splitlines()[-1])
    assert [(u["resolution"], u["rows"]) for u in footer["used"]] == [(u.resolution, u.rows) for u in whole.used]
    ran = runner.invoke(main, ["series", place, views.name, "page=/a", "--step", "1 month"])
    assert len(ran.stdout.splitlines()) == months + 1, ran.output
    assert "resolution" not in ran.output
    assert (
        f"{whole.used[-1].rows} × {whole.used[-1].resolution}"
        in runner.invoke(main, ["total", place, views.name, "page=/a"]).stderr
    )
    ran = runner.invoke(main, ["total", place, views.name, "page=/nobody"])
    assert (ran.exit_code, len(ran.stdout.splitlines())) == (0, 1), ran.output
    assert "has no buckets of this group" in ran.stderr
    ran = runner.invoke(main, ["series", place, views.name, "page=/a", "--step", "1 second"])
    assert "[INVALID_REQUEST]" in ran.stderr


async def same_over_every_door(views, url, spans, too_long) -> None:
    """Every question has the same answer in both clients and over HTTP as in Python."""
    questions = [("total", {"key": {"page": "/nobody"}}), ("total", {"key": {}}), ("total", {"key": {"page": "/", "x": 1}})]
    questions += [("total", {"key": {"page": "/"}, **span}) for span in [{}, *spans, {"since": "noon"}, {"since": too_long}]]
    questions += [("total", {"key": {"page": "/"}, "since": BEGIN, "until": BEGIN})]
    questions += [("series", {"key": {"page": "/a"}, "step": step}) for step in ("1 day", "1 month", "7 days", "1 second", "")]
    questions += [("series", {"key": {"page": "/a"}, "step": "1 minute", "since": too_long, "until": BEGIN})]
    async with millpond.connect_async(url) as server:
        with millpond.connect(url) as remote:
            table = remote[views.name]
            awaited = server[views.name]
            for name, question in questions:
                options = {**question}
                key = options.pop("key")
                here = said(lambda name=name, key=key, options=options: getattr(views, name)(key, **options))
                assert said(lambda name=name, key=key, options=options: getattr(table, name)(key, **options)) == here
                try:
                    answer = await getattr(awaited, name)(key, **options)
                except MillpondError as error:
                    assert (error.condition, error.message) == here
                else:
                    assert said(lambda answer=answer: answer) == here
            with pytest.raises(RequestError) as error:
                table.series(page="/a", step="1 hour")
            assert error.value.condition == "ANSWER_TOO_LARGE"
    url_form = httpx.get(f"{url}/tables/{views.name}/total?page=/a", timeout=60).json()
    whole = views.total(page="/a")
    assert url_form["row"]["hits"] == whole["hits"]
    assert [u["resolution"] for u in url_form["used"]] == [u.resolution for u in whole.used]
    daily = httpx.get(f"{url}/tables/{views.name}/series?page=/a&_step=1%20day", timeout=60).json()
    assert [r["hits"] for r in daily["rows"]] == [r["hits"] for r in views.series(page="/a", step="1 day")]
    assert httpx.get(f"{url}/tables/{views.name}/series?page=/a", timeout=60).json()["error"]["condition"] == "INVALID_REQUEST"


def same_range_over_every_door(views, pond: str, url: str, home: str) -> None:
    """A range of buckets needs no word about dead letters, which have no bucket."""
    hours = [r for r in views.scan() if (r["page"], r["resolution"], r["dead_letter"]) == ("/a", "1 hour", None)]
    hours.sort(key=lambda r: r["bucket_start"])
    assert len(hours) > 3
    assert any(r["dead_letter"] is not None for r in views.scan(page="/a"))
    key = {"page": "/a", "resolution": "1 hour"}
    start, end = hours[1]["bucket_start"], hours[-1]["bucket_start"]
    for edges in ({"start": start}, {"end": end}, {"start": start, "end": end}):
        limits = {name: {"bucket_start": at} for name, at in edges.items()}
        expected = [dict(r) for r in hours if edges.get("start", r["bucket_start"]) <= r["bucket_start"]]
        expected = [r for r in expected if "end" not in edges or r["bucket_start"] < end]
        assert [dict(r) for r in views.range(key, **limits)] == expected
        expected = expected[:5]  # the server allows few
        with millpond.connect(url) as remote:
            assert [dict(r) for r in remote[views.name].range(key, **limits, limit=5)] == expected
        controls = {f"_{name}": json.dumps({"bucket_start": at.isoformat()}) for name, at in edges.items()}
        rows = httpx.get(f"{url}/tables/{views.name}/rows", params={**key, **controls, "_limit": "5"}, timeout=60).json()["rows"]
        assert [(r["resolution"], r["hits"]) for r in rows] == [(r["resolution"], r["hits"]) for r in expected]
        given = [word for name, at in edges.items() for word in (f"--{name}", f"bucket_start={at.isoformat()}")]
        for place in (pond, url):
            asked = ["scan", place, views.name, "page=/a", "resolution=1 hour", *given, "--limit", "5", "--json"]
            ran = CliRunner(env={"MILLPOND_HOME": home}).invoke(main, asked)
            assert [json.loads(line)["hits"] for line in ran.stdout.splitlines()] == [r["hits"] for r in expected], ran.output


@pytest.mark.parametrize("zone", ["UTC", pytest.param("America/New_York", marks=pytest.mark.long)])
def test_totals_and_series_are_those_of_all_events_of_their_span(spark, tmp_path, serve, zone):
    random_ = random.Random(zone)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        files = 14 if IS_LONG else 7
        written = write_days(tmp_path / "in", random_, files)
        rows = [row for each in written for row in each]
        with declare(future_skew=None).start(
            read_stream(spark, tmp_path / "in"), pond=tmp_path / "pond", trigger="available-now"
        ) as job:
            assert job.wait_for_end(120)
        with millpond.open(tmp_path / "pond") as pond:
            views = pond["views"]
            end = BEGIN + dt.timedelta(hours=5 * files)
            kept = {}
            for _ in range(examples(40, fewest=4, one_of=10)):
                page = random_.choice(("/", "/a", "/b"))
                until = end - dt.timedelta(seconds=random_.randrange(3 * 86_400))
                since = until - dt.timedelta(seconds=random_.choice((600, 20_000, 200_000, 1_000_000)))
                total = views.total(page=page, since=since, until=until)
                assert total.since <= since < until <= total.until
                kept[tuple(u.resolution for u in total.used)] = total
                found = of_span(spark, rows, page, total.since, total.until)
                assert plain(total) == found if total else found["hits"] == 0
            assert len(kept) > 1, "the spans are to use several resolutions"
            whole = views.total(page="/a")
            assert {u.resolution for u in whole.used} >= {"1 day"}
            assert plain(whole) == of_span(spark, rows, "/a", whole.since, whole.until)
            assert whole["hits"] == sum(r["page"] == "/a" for r in rows)
            series = views.series(page="/a", step="1 day")
            assert [r["bucket_start"] for r in series] == sorted(r["bucket_start"] for r in series)
            assert all(r["bucket_start"].astimezone(ZoneInfo(zone)).hour == 0 for r in series)
            for row in series if IS_LONG else series[::4]:
                assert plain(row) == of_span(spark, rows, "/a", row.since, row.until)
            assert sum(r["hits"] for r in series) == whole["hits"]
            months = views.series(page="/a", step="1 month")
            assert sum(r["hits"] for r in months) == whole["hits"]
            hours = views.series(page="/b", step="1 hour", since=end - dt.timedelta(days=2), until=end)
            assert {u.resolution for u in hours.used} == {"1 hour"}
            for row in hours if IS_LONG else hours[::24]:
                assert plain(row) == of_span(spark, rows, "/b", row.since, row.until)
            with pytest.raises(ReplicaError) as error:
                views.series(page="/a", step="1 minute", since=BEGIN - dt.timedelta(days=3), until=end)
            assert error.value.condition == "HISTORY_GONE"
            with serve(tmp_path / "pond", "--max-rows", str(len(series))) as (url, _):
                spans = [{"since": t.since, "until": t.until} for t in kept.values()]
                for place in (str(tmp_path / "pond"), url):
                    same_on_the_command_line(views, place, str(tmp_path / "home"), len(months))
                asyncio.run(same_over_every_door(views, url, spans, too_long=BEGIN - dt.timedelta(days=3)))
                same_range_over_every_door(views, str(tmp_path / "pond"), url, str(tmp_path / "home"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.long
def test_rows_of_each_resolution_expire_by_themselves_over_a_year(spark, tmp_path):
    """Batches a week apart: what is in the state is what retention says, for each resolution, and takes no more bytes."""
    from pyspark.sql import functions as F

    folder = tmp_path / "in"
    folder.mkdir()
    weeks = max(12, examples(52))
    random_ = random.Random(7)
    resolutions = {"1 minute": "2 days", "1 hour": "20 days", "1 day": "40 days", "1 month": None}
    of_one_size = {"hits": F.count("*"), "bytes": F.sum("bytes"), "hosts": F.approx_count_distinct("host")}
    aggregate = declare(future_skew=None, resolutions=resolutions, key=[], values=of_one_size)
    sizes = []
    for part in (range(weeks * 2 // 3), range(weeks * 2 // 3, weeks)):
        for week in part:
            now = BEGIN + dt.timedelta(weeks=week)
            write_event_file(folder, week, [event(random_, now - dt.timedelta(hours=h)) for h in range(0, 168, 3)])
        with aggregate.start(read_stream(spark, folder), pond=tmp_path / "pond", trigger="available-now") as job:
            assert job.wait_for_end(300)
        plan = millpond.plan_retention(tmp_path / "pond", "views", {})
        sizes.append({g.resolution: g.size_bytes for g in plan.going if g.after is not None})
    assert sizes[0] == sizes[1]
    assert all(sizes[0].values())
    with millpond.open(tmp_path / "pond") as pond:
        rows = pond["views"].scan()
        watermark = rows.position.watermark_ms
        last = (BEGIN + dt.timedelta(weeks=weeks - 1)).timestamp() * 1000
        assert watermark == last
        assert all(row["expires_at"] is None or row["expires_at"].timestamp() * 1000 > watermark for row in rows)
        counts = {n: sum(r["resolution"] == n for r in rows) for n in resolutions}
        assert counts["1 minute"] == 2 * 8 + 1
        assert counts["1 hour"] == 20 * 8 + 1
        assert counts["1 day"] == 41
        assert counts["1 month"] == len(
            {
                (BEGIN + dt.timedelta(weeks=w) - dt.timedelta(hours=h)).strftime("%Y%m")
                for w in range(weeks)
                for h in range(0, 168, 3)
            }
        )
        assert pond["views"].total()["hits"] == weeks * 56


def test_events_without_a_time_or_of_the_future_are_counted_apart(spark, tmp_path):
    folder, random_ = tmp_path / "in", random.Random(3)
    folder.mkdir()
    now = dt.datetime.now(dt.UTC)
    rows = [event(random_, now - dt.timedelta(seconds=n)) for n in range(5)]
    rows += [{**event(random_, now + dt.timedelta(days=4000)), "page": "/"} for _ in range(3)]
    rows += [{"at": None, "page": "/", "bytes": 1, "host": "h"}, {"at": None, "page": "/a", "bytes": 2, "host": "h"}]
    write_event_file(folder, 0, rows)
    with declare().start(read_stream(spark, folder), pond=tmp_path / "pond", trigger="available-now") as job:
        assert job.wait_for_end(60)
    with millpond.open(tmp_path / "pond") as pond:
        letters = [r for r in pond["views"].scan() if r["bucket_start"] is None]
        found = Counter((r["resolution"], r["page"]) for r in letters)
        assert found == {("future", "/"): 3, ("no time", "/"): 1, ("no time", "/a"): 1}
        listed = [json.loads(r["dead_letter"]) for r in letters]
        for each in listed:
            each["at"] = None if "at" not in each else dt.datetime.fromisoformat(each["at"]).isoformat()
        assert sorted(json.dumps(r, sort_keys=True) for r in listed) == sorted(json.dumps(r, sort_keys=True) for r in rows[5:])
        assert {r["hits"] for r in letters} == {1}
        assert sum(pond["views"].total(page=p).get("hits", 0) for p in ("/", "/a", "/b")) == 5
        (job_found,) = open_jobs(tmp_path / "pond")
        assert job_found.definitions()["views"].retention.keeps_closed is False


@pytest.mark.long
def test_a_restart_with_another_retention_is_refused(spark, tmp_path):
    write_days(tmp_path / "in", random.Random(1), 2)
    with declare().start(read_stream(spark, tmp_path / "in"), pond=tmp_path / "pond", trigger="available-now") as job:
        assert job.wait_for_end(60)
    with pytest.raises(MillpondError) as error:
        declare(resolutions={"1 minute": "7 hours", "1 hour": "3 days", "1 day": None}).start(
            read_stream(spark, tmp_path / "in"), pond=tmp_path / "pond", trigger="available-now"
        )
    assert error.value.condition == "DEFINITION_CHANGED"
    with declare().start(read_stream(spark, tmp_path / "in"), pond=tmp_path / "pond", trigger="available-now") as job:
        assert job.wait_for_end(60)


def test_bad_declarations_and_questions_say_what_is_wrong(spark, tmp_path):
    from pyspark.sql import functions as F

    for options in (
        {"key": "page"}, {"values": {}}, {"key": ["resolution"]}, {"resolutions": {"1 hour": "1 minute"}}, {"resolutions": {}},
        {"resolutions": {"1 hour": "2 months"}}, {"future_skew": "soon"}, {"values": {"Page": F.count("*")}},
    ):  # fmt: skip
        with pytest.raises(RequestError) as error:
            declare(**options)
        assert error.value.condition == "INVALID_REQUEST"
    source = read_stream(spark, tmp_path)
    for options in ({"key": ["site"]}, {"event_time": "when"}, {"event_time": "bytes"}):
        with pytest.raises(RequestError) as error:
            declare(**options).on(source)
        assert error.value.condition == "INVALID_REQUEST"
    with pytest.raises(MillpondError) as error:
        declare(values={"first": F.first("host")}).start(source, pond=tmp_path / "pond")
    assert error.value.condition == "NOT_DERIVABLE"

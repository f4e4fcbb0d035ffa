"""Another retention for the state of a stopped aggregate: random events, before and after, against a recount."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

import millpond
from inputs.event_file import write_event_file
from millpond.cli import main
from millpond.errors import MillpondError
from spark.aggregate.events import KEEPS, SCHEMA, counted, declare_views, draw_events, recount, resolutions, shown
from suite.sizes import a_few, examples

CHANGES = [
    {"1 minute": 2 * 86_400, "1 hour": 86_400},
    {"1 minute": 3600, "1 day": 4 * 86_400},
    {"1 minute": None, "1 hour": None, "1 day": 2 * 86_400},
]


def _start(spark, aggregate, folder: Path, pond: Path) -> millpond.Job:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    return millpond.start(aggregate, source, pond=pond, trigger="available-now")


@pytest.mark.parametrize("change", a_few(CHANGES, 0))
def test_buckets_are_kept_for_another_time_and_stay_one_row(spark, tmp_path: Path, change: dict[str, int | None]) -> None:
    draw = random.Random(str(change))
    files = examples(24, fewest=6)
    begin = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    written, half = draw_events(draw, begin, files), files // 2
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    after = {**KEEPS, **change}
    for number, rows in enumerate(written[:half]):
        write_event_file(folder, number, rows)
    with _start(spark, declare_views(), folder, pond) as job:
        assert job.wait_for_end(300)

    plan = millpond.plan_retention(pond, "views", resolutions(change))
    before, _ = recount([*written[:half], None], dedupe=False)
    now, _ = recount([*written[:half], None], dedupe=False, keeps=lambda batch: after if batch > half else KEEPS)
    for going in plan.going:
        name = going.resolution
        there = sum(key[1] == name for key in before)
        assert (going.rows, going.gone_rows) == (there, there - sum(key[1] == name for key in now))
        assert (going.size_bytes > 0) == (there > 0)
        assert (going.gone_bytes > 0) == (going.gone_rows > 0)
    words = [f"{name}={'ever' if keep is None else f'{keep} seconds'}" for name, keep in change.items()]
    ran = CliRunner().invoke(main, ["retention", str(pond), "views", *words])
    assert ran.exit_code == 0, ran.output
    assert "Nothing is done yet" in ran.output
    asked = millpond.what_if(pond, retention=resolutions(change))
    ran = CliRunner().invoke(main, ["retention", str(pond), "views", *words, "--yes"])
    assert ran.exit_code == 0, ran.output
    really = millpond.what_if(pond, codec="zstd")
    rows, became = (next(figure for figure in each.figures if figure.what == "rows") for each in (asked, really))
    assert (rows.then.known, rows.then.value) == ("measured", became.now.value)
    assert asked.partitions[0].then_bytes == really.partitions[0].now_bytes
    with millpond.open(pond, wait_seconds=60) as opened:
        assert shown(opened["views"])[0] == counted(now)

    for number, rows in enumerate(written[half:]):
        write_event_file(folder, half + number, rows)
    with pytest.raises(MillpondError) as raised:
        _start(spark, declare_views(), folder, pond)
    assert raised.value.condition == "DEFINITION_CHANGED"
    assert "millpond retention" in raised.value.hint
    assert str(pond) in raised.value.hint
    with _start(spark, declare_views(resolutions=resolutions(after)), folder, pond) as job:
        assert job.wait_for_end(300)
    batches = [*written[:half], None, *written[half:], None]
    buckets, letters = recount(batches, dedupe=False, keeps=lambda batch: after if batch > half else KEEPS)
    with millpond.open(pond, wait_seconds=60) as opened:
        found, listed = shown(opened["views"])
        assert found == counted(buckets)
        assert listed == letters
        _check_totals(opened["views"], written, draw, begin + dt.timedelta(hours=5 * files))


def _check_totals(table: millpond.Table, written: list[list[dict]], draw: random.Random, end: dt.datetime) -> None:
    """A total is of all events of its span or is refused, also where a shorter retention has removed buckets.

    That an event came too late for its bucket only makes a total smaller.
    """
    answered = 0
    for _ in range(examples(40)):
        until = end - dt.timedelta(seconds=draw.randrange(8 * 86_400))
        since = until - dt.timedelta(seconds=draw.choice((600, 20_000, 200_000, 700_000)))
        try:
            total = table.total(page="/", since=since, until=until)
        except MillpondError as error:
            assert error.condition == "HISTORY_GONE"
            continue
        times = [r["at"] for rows in written for r in rows if r["page"] == "/" and r["at"]]
        there = sum(total.since <= dt.datetime.fromisoformat(at) < total.until for at in times)
        late = sum(r["hits"] for r in table.scan(page="/") if r["resolution"].startswith("late"))
        assert there - late <= total.get("hits", 0) <= there
        answered += 1
    assert answered


def test_what_cant_be_is_refused(spark, tmp_path: Path) -> None:
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    write_event_file(folder, 0, [{"id": "1", "at": "2026-01-01T00:00:00Z", "page": "/"}])
    with _start(spark, declare_views(), folder, pond) as job:
        assert job.wait_for_end(60)
        for keep in ({"2 minutes": "1 hour"}, {"1 minute": "soon"}, {"1 hour": "1 minute"}):
            with pytest.raises(MillpondError) as raised:
                millpond.plan_retention(pond, "views", keep)
            assert raised.value.condition == "INVALID_REQUEST"
        for name, keep, condition in (("nothing", {}, "UNKNOWN_TABLE"), ("views", {}, "INVALID_REQUEST")):
            with pytest.raises(MillpondError) as raised:
                millpond.plan_retention(pond, name, keep).run()
            assert raised.value.condition == condition
    source = spark.readStream.schema(SCHEMA).json(str(folder))
    with millpond.start(declare_views(), source, pond=pond) as job:
        job.query.processAllAvailable()
        with pytest.raises(MillpondError) as raised:
            millpond.plan_retention(pond, "views", {"1 hour": "1 day"}).run()
        assert raised.value.condition == "CHECKPOINT_IN_USE"


@pytest.mark.long
def test_rows_of_one_bucket_become_one_and_a_name_means_its_version(spark, tmp_path: Path, monkeypatch) -> None:
    """A job that somebody started with other times has two rows of a bucket; commands find it by the name of its version."""
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    begin = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    written = draw_events(random.Random(61), begin, 4)
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    before: dict[str, str | None] = {"1 minute": "60 days", "1 hour": "90 days", "1 day": None}
    after = {**before, "1 minute": "70 days", "1 day": "100 days"}
    for half, keeps in enumerate((before, after)):
        for number in (2 * half, 2 * half + 1):
            write_event_file(folder, number, written[number])
        with _start(spark, declare_views(version=3, resolutions=keeps), folder, pond) as job:
            assert job.wait_for_end(120)
        (pond / "jobs/views.v3/tables/views.v3.json").rename(tmp_path / "definition.json")
    (tmp_path / "definition.json").rename(pond / "jobs/views.v3/tables/views.v3.json")

    plan = millpond.plan_retention(pond, "views")
    assert "views means version 3: views.v3" in plan.describe()
    assert sum(going.merged_rows for going in plan.going) > 0
    ran = CliRunner().invoke(main, ["retention", str(pond), "views", "--yes"])
    assert (ran.exit_code, "are merged" in ran.output) == (0, True), ran.output
    seconds = {name: None if keep is None else int(keep.split()[0]) * 86_400 for name, keep in after.items()}
    counts, letters = recount(written, dedupe=False, keeps=lambda _: seconds)
    with millpond.open(pond, wait_seconds=60) as opened:
        assert shown(opened["views"]) == (counted(counts), letters)
    with _start(spark, declare_views(version=3, resolutions=after), folder, pond) as job:
        assert job.wait_for_end(120)

    words = ["erase", str(pond), "views", "--table", "views", "page=/a"]
    ran = CliRunner().invoke(main, words)
    assert (ran.exit_code, "views means version 3: views.v3" in ran.output) == (0, True), ran.output
    ran = CliRunner().invoke(main, [*words, "--yes"])
    assert ran.exit_code == 0, ran.output
    with millpond.open(pond, wait_seconds=60) as opened:
        assert shown(opened["views"])[0] == {key: row for key, row in counted(counts).items() if key[0] != "/a"}

"""A lower retention hides buckets of a running job at once, behind every door; the state follows when the job is stopped."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import millpond
from inputs.event_file import write_event_file
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.storage import open_storage
from millpond.tables.sql.end import SqlLimits
from millpond.tables.sql.run import run_sql
from servers.s3 import BUCKET, QUICK, moto_server, use
from spark.aggregate.events import KEEPS, SCHEMA, SECONDS, declare_views, draw_events, resolutions
from suite.sizes import examples
from suite.waiting import wait_until

LOWER = {"1 minute": 3600, "1 hour": 86_400, "1 day": 4 * 86_400}
AFTER = {**KEEPS, **LOWER}
NOT_HIDDEN = resolutions({**AFTER, "1 day": 6 * 86_400})
Seen = dict[tuple[str, str, float], int]


def started(spark, aggregate, folder: Path, pond: Path, trigger: str | None = None) -> millpond.Job:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).json(str(folder))
    return millpond.start(aggregate, source, pond=pond, trigger=trigger, partitions=2)


def seen_in(rows: list[dict[str, Any]]) -> Seen:
    """The hits of each row, by page, resolution and start, which is 0 in rows of events without a bucket."""
    found: Seen = {}
    for r in rows:
        start = r["bucket_start"]
        key = (r["page"], r["resolution"], 0.0 if start is None else start.timestamp())
        assert key not in found, "two rows of one bucket"
        found[key] = r["hits"]
    return found


def left_of(before: Seen, keeps: dict[str, int | None], watermark_ms: int) -> Seen:
    """What is left of these rows with another retention."""

    def is_left(key: tuple[str, str, float]) -> bool:
        keep = keeps.get(key[1])
        return keep is None or (key[2] + SECONDS[key[1]] + keep) * 1000 > watermark_ms

    return {key: hits for key, hits in before.items() if is_left(key)}


def parsed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of JSON with times."""
    starts = [r["bucket_start"] for r in rows]
    return [{**r, "bucket_start": None if s is None else dt.datetime.fromisoformat(s)} for r, s in zip(rows, starts, strict=True)]


def sql_of(table: millpond.Table, statement: str) -> list[dict[str, Any]]:
    """The rows of a statement over this table."""
    return run_sql(SimpleNamespace(now=lambda name: table), statement, limits=SqlLimits()).rows()


def every_door(pond: Path, table: millpond.Table, url: str) -> dict[str, Seen]:
    """All rows, by the door that shows them."""
    with millpond.connect(url) as remote:
        answers = {
            "python": table.scan(),
            "live": table.live().scan(),
            "arrow": table.to_arrow().to_pylist(),
            "client": remote["views"].scan(),
            "http": parsed(httpx.get(f"{url}/tables/views/rows?_limit=100000", timeout=60).raise_for_status().json()["rows"]),
            "cold": millpond.read_arrow(pond, "views").to_pylist(),
            "sql": sql_of(table, "SELECT * FROM views"),
        }
        # DuckDB asks for one column only, which doesn't say whether a row is hidden.
        counts = {
            "sql": sql_of(table, "SELECT count(*) AS n FROM views")[0]["n"],
            "count": table.count(),
            "http count": httpx.get(f"{url}/tables/views/count", timeout=60).json()["count"],
        }
        assert set(counts.values()) == {len(answers["python"])}, counts
    return {door: seen_in(rows) for door, rows in answers.items()}


def hidden_by(pond: Path, keeps: dict[str, int | None]) -> str:
    """Run the command on the running job; returns what it says."""
    words = [f"{name}={'ever' if keep is None else f'{keep} seconds'}" for name, keep in keeps.items()]
    ran = CliRunner().invoke(main, ["retention", str(pond), "views", *words, "--hide", "--yes"])
    assert ran.exit_code == 0, ran.output
    return ran.output


def check_totals(table: millpond.Table, url: str, there: Seen, shown: Seen, draw: random.Random, end: dt.datetime) -> int:
    """A total is the sum of the shown buckets that it names, and its span has no gap; or it is refused.

    there:  all rows of the state
    """
    refused = 0
    for _ in range(examples(60)):
        page = draw.choice(("/", "/a"))
        until = end - dt.timedelta(seconds=draw.randrange(6 * 86_400))
        since = until - dt.timedelta(seconds=draw.choice((600, 20_000, 200_000, 700_000)))
        asked = {"page": page, "_since": since.isoformat(), "_until": until.isoformat()}
        answer = httpx.get(f"{url}/tables/views/total", params=asked, timeout=60)
        try:
            total = table.total(page=page, since=since, until=until)
        except MillpondError as error:
            assert (error.condition, answer.json()["error"]["condition"]) == ("HISTORY_GONE", "HISTORY_GONE")
            refused += 1
            continue
        assert total.since <= since
        assert total.until >= until
        ends = [total.since, *(used.until for used in total.used)]
        assert [used.since for used in total.used] == ends[:-1], "buckets one after the other"
        assert ends[-1] == total.until
        hits = 0
        for used in total.used:
            span = used.since.timestamp(), used.until.timestamp()
            keys = [key for key in there if key[:2] == (page, used.resolution) and span[0] <= key[2] < span[1]]
            assert set(keys) <= shown.keys(), "a total of hidden buckets"
            assert used.rows == len(keys)
            hits += sum(there[key] for key in keys)
        assert total.get("hits", 0) == hits
        assert (answer.json()["row"] or {}).get("hits", 0) == hits
        steps = table.series(page=page, since=since, until=until, step="1 day")
        days = {key[2]: n for key, n in shown.items() if key[:2] == (page, "1 day")}
        assert all(step["hits"] == days.get(step["bucket_start"].timestamp(), step["hits"]) for step in steps)
    return refused


def check_lookups(table: millpond.Table, pond: Path, url: str, rows: list[dict], shown: Seen, draw: random.Random) -> None:
    """Lookups of single rows, of those that are hidden and of others."""
    for row in draw.sample(rows, min(len(rows), examples(24))):
        if row["bucket_start"] is None:
            continue
        key = {column.name: row[column.name] for column in table.definition.key}
        (name,) = seen_in([row])
        query = {n: v.isoformat() if isinstance(v, dt.datetime) else v for n, v in key.items() if v is not None}
        query |= {f"{n}__isnull": "1" for n, v in key.items() if v is None}
        answer = httpx.get(f"{url}/tables/views/rows", params=query, timeout=60).raise_for_status().json()
        found, cold = table.get(key), millpond.read_row(pond, "views", key)
        assert [bool(found), bool(cold), bool(answer["rows"])] == [name in shown] * 3
        assert (found.evicted, cold.evicted, answer["evicted"] == [0]) == ((False,) * 3 if name in shown else (True,) * 3)
        assert table.with_closed().get(key)["hits"] == row["hits"]


def damaged(pond: Path, table: millpond.Table, url: str) -> None:
    """A file that can't be read refuses reads, and shows nothing; no time is changed while a command changes the state."""
    file, journal = pond / "jobs/views/retention.json", pond / "jobs/views/take-over.json"
    kept = file.read_bytes()
    for text in (b"{", b'{"format": 1, "stores": {"0/default": {"1 minute": "soon"}}}', b'{"format": 2, "stores": {}}'):
        file.write_bytes(text)
        assert condition_of(table.count) == condition_of(millpond.read_arrow, pond, "views") == "CORRUPT_FILE"
        answer = httpx.get(f"{url}/tables/views/total", params={"page": "/"}, timeout=60)
        assert answer.json()["error"]["condition"] == "CORRUPT_FILE"
    file.write_bytes(kept)
    journal.write_text("{}")
    assert condition_of(millpond.plan_retention(pond, "views", resolutions(KEEPS)).hide) == "CHECKPOINT_IN_USE"
    journal.unlink()
    assert file.read_bytes() == kept


def condition_of(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(MillpondError) as refused:
        call(*arguments)
    return refused.value.condition


@pytest.mark.long
@pytest.mark.parametrize("by", ["a restart", "the command"])
def test_a_lower_retention_hides_buckets_of_a_running_job_behind_every_door(spark, tmp_path: Path, serve, by: str) -> None:
    draw = random.Random(316)
    files = examples(24, fewest=8)
    begin = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    written, half = draw_events(draw, begin, files), files // 2
    folder, pond = tmp_path / "in", tmp_path / "pond"
    folder.mkdir()
    declared = declare_views(dead_letters=None)
    for number, rows in enumerate(written[:half]):
        write_event_file(folder, number, rows)
    with started(spark, declared, folder, pond) as job:
        job.query.processAllAvailable()
        with serve(pond) as (url, _), millpond.open(pond, wait_seconds=60) as opened:
            table = opened["views"]
            rows = table.live().scan()
            there, watermark_ms = left_of(seen_in(rows), KEEPS, rows.position.watermark_ms), rows.position.watermark_ms
            rows = [row for row in rows if set(seen_in([row])) <= there.keys()]
            tag = httpx.get(f"{url}/tables/views/rows", timeout=60).headers["etag"]
            millpond.plan_savepoint(pond, "all", job="views", count=False).run()
            plan = millpond.plan_retention(pond, "views", resolutions(LOWER))
            shown = left_of(there, AFTER, watermark_ms)
            assert {g.resolution: g.gone_rows for g in plan.going} == {
                name: sum(key[1] == name for key in there.keys() - shown.keys()) for name in LOWER
            }
            assert 0 < len(shown) < len(there)
            check_totals(table, url, there, there, draw, begin + dt.timedelta(hours=5 * half))

            assert "readers     see buckets" in hidden_by(pond, LOWER)
            for door, found in every_door(pond, table, url).items():
                assert found == shown, door
            check_lookups(table, pond, url, rows, shown, draw)
            assert check_totals(table, url, there, shown, draw, begin + dt.timedelta(hours=5 * half))
            known = httpx.get(f"{url}/tables/views/rows", headers={"if-none-match": tag}, timeout=60)
            assert known.status_code == 200
            of_spark = spark.read.format("millpond").option("pond", str(pond)).option("table", "views").load()
            assert of_spark.select("page", "hits").count() == len(shown)
            (differ,) = millpond.read_diff(pond, "all", "job:views").tables
            assert (differ.counts.removed, differ.counts.differ) == (len(there) - len(shown), len(there) - len(shown))
            damaged(pond, table, url)
            # The state has them all the while.
            assert left_of(seen_in(millpond.read_arrow(pond, "views", expired=True).to_pylist()), KEEPS, watermark_ms) == there

            # Raised back, in part and wholly.
            hidden_by(pond, {"1 minute": KEEPS["1 minute"], "1 day": 5 * 86_400})
            part = left_of(there, {**AFTER, "1 minute": KEEPS["1 minute"], "1 day": 5 * 86_400}, watermark_ms)
            assert left_of(every_door(pond, table, url)["http"], KEEPS, watermark_ms) == part
            hidden_by(pond, KEEPS)
            for door, found in every_door(pond, table, url).items():
                assert left_of(found, KEEPS, watermark_ms) == there, door
            assert httpx.get(f"{url}/tables/views/rows", headers={"if-none-match": tag}, timeout=60).status_code == 304
            for longer in ({"1 minute": "9 days"}, {"1 hour": None}):
                assert condition_of(millpond.plan_retention(pond, "views", longer).hide) == "INVALID_REQUEST"

            # The job goes on, also with events of buckets that are hidden.
            hidden_by(pond, LOWER)
            for number, more in enumerate(written[half:]):
                write_event_file(folder, half + number, more)
            job.query.processAllAvailable()
            opened.catch_up(60)
            state = millpond.read_arrow(pond, "views", expired=True).to_pylist()
            newest = table.scan()
            shown = left_of(seen_in(state), AFTER, newest.position.watermark_ms)
            assert seen_in(newest) == shown
            assert check_totals(table, url, seen_in(state), shown, draw, begin + dt.timedelta(hours=5 * files))

    # Without times, the command makes real what readers see.
    ran = CliRunner().invoke(main, ["retention", str(pond), "views"])
    assert "readers see them for 1 hour already" in ran.output, ran.output
    if by == "the command":
        ran = CliRunner().invoke(main, ["retention", str(pond), "views", "--yes"])
        assert ran.exit_code == 0, ran.output
        assert seen_in(millpond.read_arrow(pond, "views", expired=True).to_pylist()) == shown
        assert millpond.plan_retention(pond, "views").changes is False
    for other in (declare_views(resolutions=resolutions(AFTER)), declare_views(dead_letters=None, resolutions=NOT_HIDDEN)):
        assert condition_of(started, spark, other, folder, pond) == "DEFINITION_CHANGED"
    with started(spark, declare_views(dead_letters=None, resolutions=resolutions(AFTER)), folder, pond, "available-now") as job:
        assert job.wait_for_end(60)
    assert list((pond / "jobs/views").glob("checkpoint.before-retention-*"))
    with millpond.open(pond, wait_seconds=60) as opened:
        rows = opened["views"].with_closed().scan()
        assert left_of(seen_in(rows), AFTER, rows.position.watermark_ms) == left_of(shown, AFTER, rows.position.watermark_ms)


@pytest.mark.long
def test_buckets_of_a_pond_in_a_bucket_are_hidden_at_its_next_look(spark, tmp_path: Path, monkeypatch) -> None:
    draw, begin = random.Random(5), dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=30)
    folder = tmp_path / "in"
    folder.mkdir()
    for number, rows in enumerate(draw_events(draw, begin, 6)):
        write_event_file(folder, number, rows)
    with started(spark, declare_views(dead_letters=None), folder, tmp_path / "pond", "available-now") as job:
        assert job.wait_for_end(120)
    use(monkeypatch, moto_server())
    pond = f"s3://{BUCKET}/{uuid.uuid4().hex}/pond"
    copy = open_storage(pond)
    for path in (tmp_path / "pond").rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            copy.write(str(path.relative_to(tmp_path / "pond")), path.read_bytes())
    with millpond.open(pond, replica_dir=tmp_path / "home", settings=QUICK) as opened:
        table = opened["views"]
        rows = table.scan()
        there = seen_in(rows)
        left = left_of(there, AFTER, rows.position.watermark_ms)
        assert 0 < len(left) < len(there)
        for times, wanted in ((LOWER, left), (KEEPS, there), (LOWER, left)):
            millpond.plan_retention(pond, "views", resolutions({name: times[name] for name in LOWER})).hide()
            assert seen_in(millpond.read_arrow(pond, "views").to_pylist()) == wanted
            wait_until(lambda wanted=wanted: seen_in(table.scan()) == wanted, "the buckets of the next look")

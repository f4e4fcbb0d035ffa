"""The main job, compared with a recomputation in plain Python, which shares only the input with it."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.demo import pageviews
from millpond.demo.visits import VisitOptions, iter_visits, visit_stream
from millpond.spark.accesslog.lines import Request
from millpond.spark.job import Job
from millpond.spark.start import start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, PER_BATCH = 6_000, 2_000
MINUTE = 60_000_000  # microseconds, as `Request.time`
VISITS = list(iter_visits(VisitOptions(), 0, ROWS))
GOOD = [row for row in VISITS if row.error is None]
BAD = {(row.file, row.line): (row.error, row.text) for row in VISITS if row.error is not None}


def when(row: Request) -> datetime:
    assert row.time is not None
    return datetime.fromtimestamp(row.time / 1_000_000, UTC)


@pytest.fixture(scope="module")
def pond(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pond in which the main job has read all visits, in three batches."""
    path = tmp_path_factory.mktemp("main") / "pond"
    events = visit_stream(spark, rows=ROWS, rows_per_batch=PER_BATCH)
    jobs = pageviews.main_job(events, pond=path, trigger="available-now", partitions=2)
    for job in jobs:
        assert job.wait_for_end(240)
        failure = job.query.exception()
        assert failure is None, failure
    return path


@pytest.fixture(scope="module")
def tables(pond: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with millpond.open(pond, replica_dir=tmp_path_factory.mktemp("replica")) as opened:
        yield opened


@pytest.mark.long
def test_the_five_tables_are_there_with_their_keys_and_nothing_is_raw(tables: Any) -> None:
    keys = {name: [column.name for column in tables[name].definition.key] for name in tables.tables() if "." not in name}
    assert keys == {
        "bad_lines": ["file", "line"],
        "hosts": ["host"],
        "page_minutes": ["page", "minute"],
        "page_views": ["page"],
        "recent_minutes": ["minute", "window_end"],
    }
    for name in keys:
        assert tables[name].definition.warnings == ()
        assert all(column.raw is None for column in tables[name].definition.values)


@pytest.mark.long
def test_page_views_are_exact_visitors_included(tables: Any) -> None:
    hits, size = Counter(row.page for row in GOOD), Counter[str | None]()
    hosts, status = defaultdict(set), Counter((row.page, (row.status or 0) // 100) for row in GOOD)
    for row in GOOD:
        size[row.page] += row.bytes or 0
        hosts[row.page].add(row.host)
    expected = {
        page: (n, size[page], len(hosts[page]), *(status[page, digit] for digit in (2, 3, 4, 5))) for page, n in hits.items()
    }
    names = ("hits", "bytes", "visitors", "status_2xx", "status_3xx", "status_4xx", "status_5xx")
    found = tables["page_views"].scan()
    assert {row["page"]: tuple(row[name] for name in names) for row in found} == expected
    # Spark promises a relative standard deviation of 0.05; five times that doesn't happen with this seed.
    assert all(abs(row["approx_visitors"] - row["visitors"]) <= max(1, 0.25 * row["visitors"]) for row in found)


@pytest.mark.long
def test_page_minutes_count_late_events_and_duplicates_in_their_minute(tables: Any) -> None:
    hits: Counter[tuple[str | None, datetime]] = Counter()
    size: Counter[tuple[str | None, datetime]] = Counter()
    for row in GOOD:
        key = row.page, when(row).replace(second=0)
        hits[key] += 1
        size[key] += row.bytes or 0
    found = {(row["page"], row["minute"]): (row["hits"], row["bytes"]) for row in tables["page_minutes"].scan()}
    assert found == {key: (n, size[key]) for key, n in hits.items()}


@pytest.mark.long
def test_hosts_know_their_first_and_last_time(tables: Any) -> None:
    times = defaultdict(list)
    for row in GOOD:
        times[row.host].append(when(row))
    found = {row["host"]: (row["hits"], row["first_seen"], row["last_seen"]) for row in tables["hosts"].scan()}
    assert found == {host: (len(seen), min(seen), max(seen)) for host, seen in times.items()}


@pytest.mark.long
def test_recent_minutes_are_those_that_the_watermark_leaves(tables: Any) -> None:
    """Batch by batch, as Spark does it: leave out rows that the watermark of the batch before had passed, add the others, then
    remove rows that the batch's own watermark has passed."""
    rows = tables["recent_minutes"].live().scan()
    minutes: dict[int, list[Request]] = {}
    before = watermark = left_out = taken = 0
    newest = 0
    for batch in range(rows.batch + 1):
        for row in (row for row in VISITS[batch * PER_BATCH : (batch + 1) * PER_BATCH] if row.error is None):
            assert row.time is not None
            minute = row.time // MINUTE * MINUTE
            if (minute + MINUTE) // 1000 <= before:
                left_out += 1
            else:
                minutes.setdefault(minute, []).append(row)
            newest = max(newest, row.time // 1000)
        passed = [minute for minute in minutes if (minute + MINUTE) // 1000 <= watermark]
        taken += len(passed)
        for minute in passed:
            del minutes[minute]
        before, watermark = watermark, newest - 600_000
    assert rows.batch >= ROWS // PER_BATCH - 1
    assert rows.position.watermark_ms == watermark
    found = {int(row["minute"].timestamp() * 1_000_000): (row["hits"], row["bytes"]) for row in rows}
    assert found == {minute: (len(seen), sum(row.bytes or 0 for row in seen)) for minute, seen in minutes.items()}
    for row in rows:
        hosts = len({seen.host for seen in minutes[int(row["minute"].timestamp() * 1_000_000)]})
        assert abs(row["approx_visitors"] - hosts) <= max(1, 0.25 * hosts)
    assert minutes
    assert min(taken, left_out) > 0


@pytest.mark.long
def test_every_unreadable_line_is_in_bad_lines_with_its_reason(tables: Any) -> None:
    assert {(r["file"], r["line"]): (r["error"], r["text"]) for r in tables["bad_lines"].scan()} == BAD


@pytest.mark.long
def test_the_source_is_read_once_a_batch_though_two_branches_need_it(spark: SparkSession, tmp_path: Path) -> None:
    query = (
        pageviews.page_views(visit_stream(spark, rows=100))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    plan = query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    assert plan.count("MicroBatchScan") == 1
    assert plan.count("ReusedExchange") == 1


@pytest.mark.long
def test_a_bad_line_is_written_once_whatever_is_retried(spark: SparkSession, tmp_path: Path) -> None:
    """A batch whose sink fails runs again from the same offsets and the same state."""
    failed: list[int] = []

    def run(sink: Any) -> None:
        events = visit_stream(spark, rows=ROWS, rows_per_batch=PER_BATCH)
        job: Job = start(
            pageviews.bad_lines(events),
            table="bad_lines",
            pond=tmp_path / "pond",
            trigger="available-now",
            partitions=2,
            sink=sink,
        )
        with job, contextlib.suppress(Exception):
            job.wait_for_end(120)

    def fail_once(df: DataFrame, batch: int) -> None:
        df.collect()
        if batch == 1:
            failed.append(batch)
            raise RuntimeError("the sink is down")

    run(fail_once)
    run(fail_once)
    assert failed == [1, 1]
    run(lambda df, batch: df.collect() and None)
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "replica") as opened:
        rows = opened["bad_lines"].scan()
    assert rows.batch == 2
    assert [(r["file"], r["line"]) for r in rows if r["error"]] == sorted(BAD)
    assert {(r["file"], r["line"]): (r["error"], r["text"]) for r in rows} == BAD

"""Rows that a watermark removes from Spark's state are those that append mode emits; rows that Spark drops as late are late here.

The oracle is the same job: the rows that it emitted in each batch, and its own count of rows that the watermark dropped.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from live_jobs.event_files import BEGIN, PROVIDERS, Event, EventJob
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def events_of(batch: int, rng: random.Random) -> list[Event]:
    """At most one event for each window and key, some of them late; so Spark's count of dropped rows counts events."""
    found: dict[tuple[int, str], Event] = {}
    for _ in range(12):
        minute = max(0, batch * 2 - rng.choice([0, 0, 1, 2, 5, 9]))
        key = rng.choice("abc")
        found[(minute, key)] = (BEGIN + dt.timedelta(minutes=minute, seconds=rng.randint(0, 59)), key, rng.randint(1, 99))
    return list(found.values())


def windows(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        frame.withWatermark("time", "2 minutes")
        .groupBy(F.window("time", "1 minute"), "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    )


def sessions(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        frame.withWatermark("time", "2 minutes")
        .groupBy(F.session_window("time", "70 seconds"), "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    )


def emitted_by(run: EventJob) -> dict[int, set[tuple[Any, ...]]]:
    """The rows that the job emitted in each batch, in the form of `shown`."""
    return {batch: {_emitted(row) for row in rows} for batch, rows in run.emitted.items()}


def _emitted(row: Any) -> tuple[Any, ...]:
    window = row[0] if "start" in getattr(row[0], "__fields__", ()) else row[1]
    return window.start.astimezone(dt.UTC), window.end.astimezone(dt.UTC), row["k"], row["n"], row["total"]


def shown(row: Any) -> tuple[Any, ...]:
    name = "window" if "window_start" in row else "session"
    return row[f"{name}_start"], row[f"{name}_end"], row["k"], row["n"], row["total"]


@pytest.mark.parametrize("provider", a_few(PROVIDERS, 1))
@pytest.mark.parametrize("query", a_few([windows, sessions], 1))
def test_rows_that_expired_are_the_rows_that_were_emitted(
    spark: SparkSession, tmp_path: Path, query: Callable[[DataFrame], DataFrame], provider: str
) -> None:
    rng, run = random.Random(3), EventJob(spark, tmp_path, query, provider)
    retention = millpond.Retention(history_batches=None)
    late: list[tuple[Path, list[Event]]] = []
    try:
        run.add(0, events_of(0, rng))
        with millpond.open(tmp_path / "ck", replica_dir=tmp_path / "home", retention=retention) as pond:
            start = pond["t"].changes().token
            for number in range(1, 9):
                events = events_of(number, rng)
                late.append((run.add(number, events)[0], events))
            pond.catch_up(60)
            table = pond["t"]
            by_batch = emitted_by(run)
            emitted = {row for rows in by_batch.values() for row in rows}
            assert len(emitted) > 8
            everything = table.scan()
            final = [row for row in everything if row.final]
            live = {shown(row) for row in table.live().scan()}
            assert {shown(row) for row in everything if not row.final} == live
            assert not live & emitted
            expired = {shown(row) for row in final}
            changes = table.changes(since=start)
            gone = [c for c in changes if c.kind == "expire"]
            assert not {c.kind for c in changes} - {"insert", "update", "expire"} or query is sessions
            finals = {(c.batch, shown(c.final)) for c in gone if c.final is not None}
            every_final = {(batch, row) for batch, rows in by_batch.items() for row in rows}
            if provider == "snapshots":
                # Snapshots don't show what a batch put before it removed a row; a batch without new input puts nothing.
                idle = run.batches_without_input()
                every_final = {(batch, row) for batch, row in every_final if batch in idle}
                assert len(every_final) > 4
                assert len(gone) >= len(finals)
            assert finals == every_final
            assert expired == {row for _, row in every_final}
            for row in final:
                key = {name: row[name] for name in table.definition.columns[: len(table.definition.key)]}
                found = table.get(key)
                assert found == row
                assert (found.final, found.evicted) == (True, False)
                gone_now = table.live().get(key)
                assert not gone_now
                assert gone_now.evicted
            assert table.count() == len(everything)
            if query is windows:
                check_lateness(run, pond, late)
    finally:
        run.query.stop()


def check_lateness(run: EventJob, pond: millpond.Pond, read: list[tuple[Path, list[Event]]]) -> None:
    table, late = pond["t"], 0
    for path, events in read:
        for time, k, _ in events:
            start = time.replace(second=0)
            key = {"window_start": start, "window_end": start + dt.timedelta(minutes=1), "k": k}
            answer = table.find_event(file=path, key=key)
            assert (answer.applied, answer.batch_read is not None) == (True, True), answer
            late += answer.late == "yes"
            by_time = table.find_event(file=path, event_time=time)
            assert by_time.batch_read == answer.batch_read
            assert by_time.late in (answer.late, "unknown")
            assert answer.late in ("yes", "no")
    assert late == sum(run.dropped().values()) > 0
    assert not table.find_event(file=run.folder / "in" / "9999.json").applied

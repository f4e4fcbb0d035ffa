"""`find_event` says that an event came too late if and only if Spark dropped it.

The oracle is Spark's own count of rows that the watermark dropped, batch by batch.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from live_jobs.event_files import BEGIN, Event, EventJob
from millpond.tables.history.find_event import EventAnswer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = dt.timedelta(seconds=1)
DELAY = "2 minutes"
LENGTH, SLIDE, GAP = 240, 120, 70
# (k, seconds since BEGIN) of each file.  The watermark is 120 seconds behind the newest event: 480 after the first file.  The
# second file has times around 480, and around the times whose windows and sessions end then.  The third moves the watermark to
# 780, and the fourth comes right after it: Spark plans that batch with 780, but still filters by 480.  It filters the fifth by 780.
FILES = (
    (("a", 600), ("b", 590)),
    (("a", 480), ("b", 481), ("c", 479), ("a", 410), ("b", 411), ("c", 230), ("d", 241), ("e", 599)),
    (("a", 900),),
    (("b", 700), ("c", 481), ("d", 480), ("e", 300)),
    (("a", 780), ("b", 781), ("c", 779), ("d", 710), ("e", 711), ("f", 530)),
)
Ask = Callable[[Any, Path, Event], EventAnswer]


def event(k: str, seconds: int) -> Event:
    return BEGIN + seconds * SECOND, k, 1


@contextmanager
def ran(
    spark: SparkSession, folder: Path, query: Callable[[DataFrame], DataFrame]
) -> Iterator[tuple[EventJob, millpond.Pond, list[tuple[Path, Event]]]]:
    """A job that has read all files, a pond that followed it from the first file on, and the events of the other files."""
    job = EventJob(spark, folder, query, "hdfs")
    files = [[event(*each) for each in file] for file in FILES]
    try:
        job.add(0, files[0])
        keep = millpond.Retention(history_batches=None, closed_seconds=None)
        with millpond.open(folder / "ck", replica_dir=folder / "home", retention=keep) as pond:
            paths = [*job.add(1, files[1]), *job.add(2, files[2], files[3]), *job.add(4, files[4])]
            pond.catch_up(60)
            yield job, pond, [(path, each) for path, events in zip(paths, files[1:], strict=True) for each in events]
    finally:
        job.query.stop()


def held_against_spark(job: EventJob, late: list[EventAnswer]) -> None:
    """Check that Spark dropped as many rows in each batch as there are late ones, in more than one batch."""
    said = Counter(answer.batch_read for answer in late)
    dropped = {batch: rows for batch, rows in job.dropped().items() if rows}
    assert said == dropped
    assert len(dropped) > 1


def watermarked(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("time", DELAY)


@pytest.mark.long
def test_late_for_drop_duplicates(spark: SparkSession, tmp_path: Path) -> None:
    with ran(spark, tmp_path, lambda frame: watermarked(frame).dropDuplicates(["k", "time"])) as (job, pond, events):
        table, answers = pond["t"], []
        for path, (time, k, _) in events:
            answer = table.find_event(file=path, key={"k": k, "time": time})
            assert table.find_event(file=path, event_time=time).late == answer.late
            assert answer.late in ("yes", "no"), answer
            answers.append(answer)
        held_against_spark(job, [answer for answer in answers if answer.late == "yes"])
        batches = sorted({answer.batch_read for answer in answers if answer.batch_read is not None})
        assert batches[2] == batches[1] + 1  # otherwise every batch was filtered by the watermark of its plan


@pytest.mark.long
def test_late_for_drop_duplicates_within_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    with ran(spark, tmp_path, lambda frame: watermarked(frame).dropDuplicatesWithinWatermark(["k"])) as (job, pond, events):
        table, answers = pond["t"], []
        for path, (time, k, _) in events:
            answer = table.find_event(file=path, key={"k": k}, event_time=time)
            assert answer.late in ("yes", "no"), answer
            answers.append(answer)
        held_against_spark(job, [answer for answer in answers if answer.late == "yes"])
        # This key has no time.
        assert table.find_event(file=events[-1][0], key={"k": "a"}).late == "unknown"


@pytest.mark.long
def test_late_for_sliding_windows(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    def query(frame: DataFrame) -> DataFrame:
        window = F.window("time", f"{LENGTH} seconds", f"{SLIDE} seconds")
        return watermarked(frame).groupBy(window, "k").agg(F.count("*").alias("n"))

    with ran(spark, tmp_path, query) as (job, pond, events):
        table, late, by_time = pond["t"], {}, Counter[str]()
        for path, (time, k, _) in events:
            begin = int((time - BEGIN) / SECOND) // SLIDE * SLIDE
            each = []
            for start in (begin, begin - SLIDE):
                first = BEGIN + start * SECOND
                key = {"window_start": first, "window_end": first + LENGTH * SECOND, "k": k}
                answer = table.find_event(file=path, key=key)
                assert answer.late in ("yes", "no"), answer
                each.append(answer.late)
                if answer.late == "yes":
                    # Spark counts dropped groups: the events of one batch and window are one row.
                    late[(answer.batch_read, k, start)] = answer
            said = table.find_event(file=path, event_time=time).late
            by_time[said] += 1
            assert said == "unknown" or {said} == set(each), (path, time)
        held_against_spark(job, list(late.values()))
        assert by_time.keys() == {"yes", "no", "unknown"}


def test_late_for_session_windows(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    def query(frame: DataFrame) -> DataFrame:
        return watermarked(frame).groupBy(F.session_window("time", f"{GAP} seconds"), "k").agg(F.count("*").alias("n"))

    with ran(spark, tmp_path, query) as (job, pond, events):
        table = pond["t"]
        sessions = table.with_closed().scan()
        dropped = job.dropped()
        unknown: Counter[int | None] = Counter()
        for path, (time, k, _) in events:
            answer = table.find_event(file=path, event_time=time)
            assert answer.late in ("no", "unknown"), answer  # the key doesn't have the end of its session
            unknown[answer.batch_read] += answer.late == "unknown"
            within = [s for s in sessions if s["k"] == k and s["session_start"] <= time < s["session_end"]]
            assert within or answer.late == "unknown", (time, k)
        assert all(unknown[batch] >= rows for batch, rows in dropped.items())
        assert sum(1 for rows in dropped.values() if rows) > 1


@pytest.mark.long
def test_what_is_late_deeper_in_a_chain_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    def query(frame: DataFrame) -> DataFrame:
        once = watermarked(frame).dropDuplicates(["k", "time"])
        return once.groupBy(F.window("time", "1 minute"), "k").agg(F.count("*").alias("n"))

    with ran(spark, tmp_path, query) as (job, pond, events):
        assert sum(job.dropped().values()) > 0
        assert len(pond.tables()) == 2
        for name in pond.tables():
            for path, (time, k, _) in events:
                start = time.replace(second=0)
                window = {"window_start": start, "window_end": start + 60 * SECOND, "k": k}
                key = window if name == "t" else {"k": k, "time": time}
                for answer in (pond[name].find_event(file=path, key=key), pond[name].find_event(file=path, event_time=time)):
                    assert answer.applied
                    assert answer.late == "unknown", answer
                    assert "several stateful operators" in answer.reason

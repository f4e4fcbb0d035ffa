"""Generated visits: always the same rows, with enough variety for a demo."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millpond.demo.visits import VisitOptions, VisitSource, VisitStream, iter_visits, parse_options, plan_ranges, visit_stream
from millpond.errors import MillpondError
from millpond.spark.accesslog.lines import Request

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

ALL = list(iter_visits(VisitOptions(), 0, 20_000))


def test_the_stream_of_a_seed_never_changes() -> None:
    text = "\n".join(repr(tuple(row)) for row in ALL)
    assert hashlib.sha256(text.encode()).hexdigest() == "f3e51df200b882a4e0f884f0ee9fe3402f30ed80ce15efa51b39ee45b0853083"


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 19_000), st.integers(0, 900))
def test_a_row_is_the_same_whichever_batch_it_is_read_in(start: int, length: int) -> None:
    assert list(iter_visits(VisitOptions(), start, start + length)) == ALL[start : start + length]


def test_another_seed_is_another_stream() -> None:
    other = list(iter_visits(VisitOptions(seed=2), 0, 100))
    assert sum(a.host == b.host for a, b in zip(ALL, other, strict=False)) < 20


def test_pages_are_skewed_visitors_return_and_some_lines_are_late_repeated_or_broken() -> None:
    good = [row for row in ALL if row.error is None]
    pages, hosts = Counter(row.page for row in good), Counter(row.host for row in good)
    assert pages.most_common(1)[0][1] > 20 * len(good) / len(pages) / 2
    assert len(hosts) < len(good) * 0.8
    assert 5 < len(ALL) - len(good) < 60

    late = sum(1 for row in good if row.time is not None and row.time // 1_000_000 < 1_767_225_600 + (row.line or 0) // 100 - 5)
    assert 0.01 < late / len(good) < 0.03
    repeated = Counter(row._replace(line=None) for row in good)
    assert 0.003 < sum(n - 1 for n in repeated.values()) / len(good) < 0.05


def test_a_broken_line_names_its_file_line_and_reason() -> None:
    broken = [row for row in ALL if row.error is not None]
    assert all(row == Request(file="visits-1", line=row.line, error=row.error, text=row.text) for row in broken)
    assert all(row.text and "GET" in row.text for row in broken)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 9))
def test_tasks_cut_a_batch_without_gap_or_overlap(start: int, length: int, partitions: int) -> None:
    ranges = plan_ranges(start, start + length, partitions)
    assert len(ranges) <= partitions
    assert [i for r in ranges for i in range(r.start, r.end)] == list(range(start, start + length))


def test_the_stream_keeps_its_limits_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = VisitStream(parse_options({"rows": "100", "rowsPerBatch": "30"}))
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert reader.latestOffset({"row": 0}, ReadMaxRows(30)) == {"row": 30}
    assert reader.latestOffset({"row": 90}, ReadMaxRows(30)) == {"row": 100}
    assert reader.latestOffset({"row": 100}, ReadMaxRows(30)) == {"row": 100}
    assert reader.latestOffset({"row": 10}, ReadAllAvailable()) == {"row": 100}

    now = 50.0
    monkeypatch.setattr("millpond.demo.visits.time.monotonic", lambda: now)
    paced = VisitStream(parse_options({"rowsPerSecond": "10"}))
    assert paced.latestOffset({"row": 5}, ReadMaxRows(1000)) == {"row": 5}
    now += 2.0
    assert paced.latestOffset({"row": 5}, ReadMaxRows(1000)) == {"row": 25}


def test_a_stream_without_an_end_can_t_be_read_to_its_end() -> None:
    with pytest.raises(MillpondError) as refused:
        VisitStream(VisitOptions()).prepareForTriggerAvailableNow()
    assert refused.value.condition == "INVALID_REQUEST"
    with pytest.raises(MillpondError):
        parse_options({"rows": "-5"})


def test_spark_sees_the_same_rows_in_a_stream_and_in_a_batch_query(spark: SparkSession, tmp_path: Path) -> None:
    found: list[object] = []

    def keep(df: DataFrame, _batch: int) -> None:
        found.extend(df.collect())

    query = visit_stream(spark, rows=500, rows_per_batch=200).writeStream.foreachBatch(keep)
    query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert len(query.recentProgress) == 3
    spark.dataSource.register(VisitSource)
    table = spark.read.format("visits").option("rows", 500).load().collect()
    assert sorted(map(repr, found)) == sorted(map(repr, table))
    assert [row.url for row in table] == [row.url for row in ALL[:500]]

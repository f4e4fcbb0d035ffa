"""The streaming source over access logs: its limits, its offsets, and how Spark uses them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from inputs.real_log import CUT_REQUESTS, NO_WHOLE_LOG, WHOLE_LOG, first_lines
from millpond.errors import MillpondError
from millpond.spark.accesslog.source import AccessLogSource, AccessLogStream, log_stream, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINE = '{host} - - [01/Aug/1995:00:{minute:02}:{second:02} -0400] "GET /{page}.html HTTP/1.0" 200 {size}\n'


@pytest.fixture(autouse=True)
def _own_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))


def text(count: int, first: int = 0) -> str:
    return "".join(
        LINE.format(host=f"h{i % 7}", minute=i // 60, second=i % 60, page=i % 5, size=i) for i in range(first, first + count)
    )


def stream(path: Path, **options: str) -> AccessLogStream:
    return AccessLogStream(parse_options({"path": str(path), **options}))


def read(reader: AccessLogStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The line numbers of a batch, task by task."""
    return [line for task in reader.partitions(start, end) for batch in reader.read(task) for line in batch["line"].to_pylist()]


def batches(reader: AccessLogStream, limit: Any = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    start = reader.initialOffset()
    while True:
        # Spark keeps offsets as JSON.
        end = json.loads(json.dumps(reader.latestOffset(start, limit or reader.getDefaultReadLimit())))
        if end == start:
            return
        yield start, end
        start = end


def test_batches_keep_the_row_limit_and_cover_the_log_once(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(text(100))
    reader = stream(log, rowsPerBatch="30")
    seen = [read(reader, start, end) for start, end in batches(reader)]
    assert [len(lines) for lines in seen] == [30, 30, 30, 10]
    assert [line for lines in seen for line in lines] == list(range(1, 101))


def test_the_engine_s_own_limit_wins_over_the_option(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(text(100))
    reader = stream(log, rowsPerBatch="30")
    assert [len(read(reader, *batch)) for batch in batches(reader, ReadAllAvailable())] == [100]
    assert [len(read(reader, *batch)) for batch in batches(reader, ReadMaxRows(60))] == [60, 40]


def test_a_batch_is_the_same_however_many_tasks_read_it_and_whoever_reads_it_again(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(text(50))
    first, again = stream(log, rowsPerBatch="20", partitions="1"), stream(log, rowsPerBatch="7", partitions="6")
    for start, end in batches(first):
        assert read(first, start, end) == read(again, start, end)
        assert len(again.partitions(start, end)) > 1


def test_several_logs_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(text(5).encode()))
    (tmp_path / "a.log").write_text(text(5))
    (tmp_path / "c.tsv").write_text("host\ttime\tmethod\turl\tresponse\tbytes\nh\t1\tGET\t/\t200\t1\n")
    reader = stream(tmp_path, rowsPerBatch="4", partitions="1")
    seen = [
        (Path(file).name, line)
        for start, end in batches(reader)
        for task in reader.partitions(start, end)
        for batch in reader.read(task)
        for file, line in zip(batch["file"].to_pylist(), batch["line"].to_pylist(), strict=True)
    ]
    # Line 1 of the TSV is the header.
    assert seen == [("a.log", n) for n in range(1, 6)] + [("b.log.gz", n) for n in range(1, 6)] + [("c.tsv", 2)]


def test_lines_that_are_appended_are_the_next_batch(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(text(3))
    reader = stream(log)
    ((_, end),) = batches(reader)
    with log.open("a") as more:
        more.write(text(2, first=3)[:-1])
    later = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert read(reader, end, later) == [4]
    with log.open("a") as more:
        more.write("\n")
    assert read(reader, later, reader.latestOffset(later, reader.getDefaultReadLimit())) == [5]


def test_available_now_reads_what_was_there_when_it_began_and_no_more(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(text(5)[:-1])
    reader = stream(log, rowsPerBatch="2")
    reader.prepareForTriggerAvailableNow()
    with log.open("a") as more:
        more.write(" and more\n" + text(5, first=5))
    every = list(batches(reader))
    assert [read(reader, *batch) for batch in every] == [[1, 2], [3, 4], [5]]
    (task,) = reader.partitions(*every[-1])
    assert [batch["bytes"].to_pylist() for batch in reader.read(task)] == [[4]]


def test_a_replay_at_real_time_gives_lines_when_they_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("millpond.spark.accesslog.source.time.monotonic", lambda: now)
    log = tmp_path / "access.log"
    log.write_text(text(30) + "broken\n" + text(1) + text(30, first=30))
    reader = stream(log, speed="10")
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert read(reader, reader.initialOffset(), first) == [1]
    now += 1.0
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert read(reader, first, second) == list(range(2, 12))
    now += 1.9
    # The broken line and the late one come together with their neighbours.
    third = reader.latestOffset(second, reader.getDefaultReadLimit())
    assert read(reader, second, third) == list(range(12, 33))


def test_a_log_that_is_replaced_stops_the_stream_also_for_a_batch_that_was_planned(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(text(10))
    reader = stream(log)
    ((start, end),) = batches(reader)
    log.write_text(text(10, first=5))
    for call in (lambda: reader.partitions(start, end), lambda: reader.latestOffset(end, ReadAllAvailable())):
        with pytest.raises(MillpondError) as refused:
            call()
        assert refused.value.condition == "LOG_REPLACED"
    log.unlink()
    with pytest.raises(MillpondError) as refused:
        reader.partitions(start, end)
    assert refused.value.condition == "FILE_MISSING"


@pytest.mark.parametrize(
    "options",
    [{"path": ""}, {"rowsPerBatch": "0"}, {"rowsPerBatch": "x"}, {"speed": "-1"}, {"speed": "inf"}, {"logFormat": "iis"}],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, str]) -> None:
    with pytest.raises(MillpondError) as refused:
        parse_options({"path": "/x", **options})
    assert refused.value.condition == "INVALID_REQUEST"
    assert refused.value.context["option"] == next(iter(options))


def run_to_end(events: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None]) -> list[dict[str, Any]]:
    query = events.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    return [dict(progress) for progress in query.recentProgress]


@pytest.mark.skipif(not WHOLE_LOG.exists(), reason=NO_WHOLE_LOG)
def test_the_committed_cut_is_the_beginning_of_the_real_log() -> None:
    assert WHOLE_LOG.read_bytes().startswith(first_lines())


@pytest.mark.long
def test_a_real_log_takes_ten_batches_or_more_and_every_offset_says_which_lines(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "nasa.tsv"
    log.write_bytes(first_lines())
    rows: dict[int, list[tuple[int, str, int]]] = {}

    def keep(df: DataFrame, batch: int) -> None:
        rows[batch] = [(r.line, r.url, r.bytes) for r in df.select("line", "url", "bytes").collect()]

    run_to_end(log_stream(spark, str(log), rows_per_batch=350), tmp_path / "checkpoint", keep)
    assert len(rows) >= 10
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    read_before = 1  # the header
    for batch in sorted(rows):
        offset = json.loads((tmp_path / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2])
        (place,) = offset["files"].values()
        expected = [(n, lines[n - 1][4], int(lines[n - 1][6])) for n in range(read_before + 1, place["line"] + 1)]
        assert sorted(rows[batch]) == expected
        read_before = place["line"]
    assert read_before == len(lines) == 1 + CUT_REQUESTS


@pytest.mark.long
def test_spark_reads_plain_and_gzip_alike_in_streams_and_in_batch_queries(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text(40) + "broken\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress((text(40) + "broken\n").encode()))
    found: list[Any] = []
    run_to_end(
        log_stream(spark, str(tmp_path / "[ab].*"), rows_per_batch=25),
        tmp_path / "checkpoint",
        lambda df, _: found.extend(df.collect()),
    )
    spark.dataSource.register(AccessLogSource)
    table = spark.read.format("accesslog").option("path", str(tmp_path / "[ab].*")).load().collect()
    assert sorted(map(repr, found)) == sorted(map(repr, table))
    for name in ("a.log", "b.gz"):
        of_file = [row for row in found if row.file == str(tmp_path / name)]
        assert [row.line for row in of_file if row.error] == [41]
        assert sum(row.bytes for row in of_file if not row.error) == sum(range(40))


@pytest.mark.long
def test_a_restart_goes_on_at_the_line_where_the_last_run_ended(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(text(10))
    seen: list[int] = []

    def keep(df: DataFrame, _batch: int) -> None:
        seen.extend(row.line for row in df.select("line").collect())

    run_to_end(log_stream(spark, str(log)), tmp_path / "checkpoint", keep)
    with log.open("a") as more:
        more.write(text(5, first=10))
    run_to_end(log_stream(spark, str(log)), tmp_path / "checkpoint", keep)
    assert sorted(seen) == list(range(1, 16))

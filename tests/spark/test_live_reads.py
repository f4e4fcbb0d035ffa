"""While a job runs, every answer is exactly the state of the batch in it, on all partitions."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import MillpondError
from suite.sizes import a_few, examples
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = examples(15, 7)
PARTITIONS = 4
SCHEMA = "page string, bytes long, time timestamp"


def write_batch(folder: Path, batch: int) -> None:
    rows = [
        {"page": f"/p{(batch * 31 + i * i) % 40}", "bytes": batch * 1000 + i, "time": f"2026-01-01T00:{batch:02d}:{i % 60:02d}Z"}
        for i in range(60)
    ]
    write_event_file(folder, batch, rows)


def recompute(folder: Path, batch: int) -> dict[str, tuple[int, int]]:
    """hits and bytes by page, over the input of batches 0 to `batch`."""
    hits: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for number in range(batch + 1):
        for line in (folder / f"{number:06d}.json").read_text().splitlines():
            row = json.loads(line)
            hits[row["page"]] += 1
            total[row["page"]] += row["bytes"]
    return {page: (hits[page], total[page]) for page in hits}


@pytest.mark.parametrize("provider", a_few(["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"], 1))
def test_no_answer_mixes_two_batches_while_the_job_runs(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    from pyspark.sql import functions as F

    incoming = tmp_path / "in"
    incoming.mkdir()
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key)
    spark.conf.set(key, f"org.apache.spark.sql.execution.streaming.state.{provider}")
    try:
        events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(incoming))
        df = events.groupBy("page").agg(F.count("*").alias("hits"), F.sum("bytes").alias("bytes"))
        write_batch(incoming, 0)
        job = millpond.start(df, table="views", pond=tmp_path / "pond", partitions=PARTITIONS)
    finally:
        spark.conf.set(key, before)
    answers: list[tuple[int, dict[str, tuple[int, int]]]] = []
    problems: list[MillpondError] = []
    ended = threading.Event()

    def read_in_a_loop(pond: millpond.Pond) -> None:
        while not ended.is_set():
            try:
                rows = pond["views"].scan()
            except MillpondError as error:
                problems.append(error)
                ended.wait(0.005)
                continue
            answers.append((rows.batch, {row["page"]: (row["hits"], row["bytes"]) for row in rows}))

    with job:
        job.wait_for_batch(0, timeout_seconds=60)
        with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home") as pond:
            reader = threading.Thread(target=read_in_a_loop, args=(pond,))
            reader.start()
            try:
                for batch in range(1, BATCHES):
                    write_batch(incoming, batch)
                    job.wait_for_batch(batch, timeout_seconds=60)
                    if batch % 4:  # the reader meets these batches at rest, and each fourth one as it may
                        wait_until(lambda batch=batch: answers and answers[-1][0] >= batch, f"an answer of batch {batch}")
                pond.catch_up(60)
                wait_until(lambda: pond["views"].scan(limit=1).job_state == "running", "the heartbeat of a running job")
                wait_until(lambda: len(answers) > BATCHES, "more answers than batches")
            finally:
                ended.set()
                reader.join()
            job.stop()
            last = pond["views"].scan()
            assert last.batch == BATCHES - 1
            assert {row["page"]: (row["hits"], row["bytes"]) for row in last} == recompute(incoming, BATCHES - 1)
    assert problems == []
    seen = [batch for batch, _ in answers]
    assert seen == sorted(seen), "batches went backwards"
    assert BATCHES // 2 < len(set(seen)) < len(seen)
    right = {batch: recompute(incoming, batch) for batch in set(seen)}
    for batch, found in answers:
        assert found == right[batch], f"batch {batch}"
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home") as pond:
        row = pond["views"].get(page="/p0")
        assert row.job_state == "stopped"
        assert row.behind_seconds == 0.0


def test_a_foreign_job_is_read_by_pointing_at_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    incoming = tmp_path / "in"
    incoming.mkdir()
    for batch in range(3):
        write_batch(incoming, batch)
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(incoming))
    df = events.withWatermark("time", "1 minute").groupBy(F.window("time", "1 minute"), "page").agg(F.count("*").alias("hits"))
    checkpoint = tmp_path / "their checkpoint"
    writer = df.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    with millpond.open(checkpoint, replica_dir=tmp_path / "home") as pond:
        (name,) = pond.tables()
        raw = pond[name]
        assert raw.definition.derived is False
        assert raw.columns == ("window_start", "window_end", "page", "count")
        millpond.define(df, checkpoint, table="recent")
        table = pond["recent"]
        assert table.columns == ("window_start", "window_end", "page", "hits")
        rows: list[Any] = list(table.scan())
        assert rows
        by_page = table.scan(page=rows[0]["page"])
        assert [r["page"] for r in by_page] == [rows[0]["page"]] * len(by_page)
        one = table.get(page=rows[0]["page"], window_start=rows[0]["window_start"])
        assert one == rows[0]
        assert one.lag.event_lag_seconds is not None
        assert one.job_state == "unknown"
